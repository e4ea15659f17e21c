"""The outcome of `build`: a row for each solution, the exit code, and its text and JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.cli.render import Column, count, format_duration, render_table, wrap_line
from flashinfer_bench.compile import BuildTarget
from flashinfer_bench.data import Solution, SupportedLanguages
from flashinfer_bench.data.entry import COMPILED, find_binding

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
Result = Literal["built", "cached", "failed", "fault", "skipped"]
WORDS: Final[dict[Result, str]] = {
    "built": "built",
    "cached": "built before",
    "failed": "FAILED",
    "fault": "no result",
    "skipped": "skipped",
}
"""The word for each result. The solution is to blame for `failed`, the machine for `fault`."""
COLUMNS: Final = (Column("Solution"), Column("Language"), Column("Binding"), Column("Result"), Column("Time", True))
MESSAGE_LINES: Final = 40
SHOWN_NAMES: Final = 3


@dataclass(frozen=True)
class BuildRow:
    """The result of one solution."""

    solution: Solution
    result: Result
    seconds: float = 0.0
    """Time of its compilers, in seconds, now or when it was first built."""
    message: str = ""
    """Why there is no artifact."""
    artifact: Path | None = None

    @property
    def binding(self) -> str | None:
        """The binding that connects it to Python; None for a solution in Python."""
        return find_binding(self.solution).binding.value if self.solution.spec.language in COMPILED else None

    @property
    def note(self) -> str | None:
        """How its binding was found, where its spec names none."""
        return find_binding(self.solution).note


@dataclass
class BuildOutcome:
    """The rows of a build so far."""

    root: Path
    """The cache's folder."""
    target: BuildTarget
    rows: list[BuildRow] = field(default_factory=list)
    seconds: float = 0.0

    def exit_code(self, *, require_built: bool) -> int:
        """Return 1 if a build failed or had no result, or if one was skipped and `require_built` is set; else 0."""
        bad = {"failed", "fault", "skipped"} if require_built else {"failed", "fault"}
        return 1 if any(row.result in bad for row in self.rows) else 0


def describe_row(row: BuildRow) -> str:
    """Return a line of progress."""
    first = to_printable(row.message.partition("\n")[0])
    tail = f": {first}" if first else f" in {row.seconds:.1f} s" if row.result == "built" and row.seconds else ""
    return f"{row.solution.name}: {WORDS[row.result]}{tail}" + (f"\n  {to_printable(row.note)}" if row.note else "")


def render_outcome(outcome: BuildOutcome, width: int) -> str:
    """Lay out the table, the reasons of failures, the reasons of skips, and the totals."""
    parts = [render_table(COLUMNS, [_cells(row) for row in outcome.rows], width)] if outcome.rows else []
    parts += [_describe_failure(row, width) for row in outcome.rows if row.result in ("failed", "fault")]
    skips = [wrap_line(line, width) for line in _describe_skips(outcome)]
    parts += ["\n".join([*skips, ""])] if skips else []
    return "\n".join([*parts, wrap_line(_totals(outcome), width) + "\n"])


def outcome_document(outcome: BuildOutcome) -> dict[str, Any]:
    """Return the outcome as JSON-able values."""
    return {
        "version": FORMAT_VERSION,
        "cache": str(outcome.root),
        "architectures": [f"sm_{name}" for name in outcome.target.architectures],
        "seconds": round(outcome.seconds, 3),
        "counts": dict(Counter(row.result for row in outcome.rows)),
        "solutions": [_document(row) for row in outcome.rows],
    }


def _cells(row: BuildRow) -> list[str]:
    seconds = f"{row.seconds:.1f} s" if row.seconds else ""
    return [row.solution.name, row.solution.spec.language.value, row.binding or "", WORDS[row.result], seconds]


def _describe_failure(row: BuildRow, width: int) -> str:
    lines = [to_printable(line.rstrip()) for line in row.message.splitlines() if line.strip()]
    if len(lines) > MESSAGE_LINES:
        lines = [*lines[:MESSAGE_LINES], f"… {len(lines) - MESSAGE_LINES} more lines; --format json has them"]
    return "\n".join([f"{row.solution.name}: {WORDS[row.result]}", *(wrap_line(line, width, 2) for line in lines), ""])


def _describe_skips(outcome: BuildOutcome) -> list[str]:
    """Return a line for each reason, with the solutions that were skipped for it."""
    reasons: dict[str, list[str]] = {}
    for row in outcome.rows:
        if row.result == "skipped":
            reasons.setdefault(row.message, []).append(row.solution.name)
    lines = []
    for reason, names in reasons.items():
        more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
        lines.append(f"skipped {', '.join(names[:SHOWN_NAMES])}{more}: {reason}")
    return lines


def _totals(outcome: BuildOutcome) -> str:
    counts = Counter(row.result for row in outcome.rows)
    parts = [f"{counts[result]} {word}" for result, word in WORDS.items() if counts[result]]
    architectures = ", ".join(f"sm_{name}" for name in outcome.target.architectures)
    uses_gpu = any(row.solution.spec.language is SupportedLanguages.CUDA for row in outcome.rows)
    target = f", CUDA code for {architectures}" if uses_gpu else ""
    took = format_duration(outcome.seconds)
    return f"{count(len(outcome.rows), 'solution')} in {took}{target}: {', '.join(parts) or 'nothing to do'}"


def _document(row: BuildRow) -> dict[str, Any]:
    return {
        "name": row.solution.name,
        "definition": row.solution.definition,
        "author": row.solution.author,
        "language": row.solution.spec.language.value,
        "binding": row.binding,
        "note": row.note,
        "result": row.result,
        "seconds": round(row.seconds, 3),
        "message": row.message or None,
        "artifact": str(row.artifact) if row.artifact is not None else None,
    }
