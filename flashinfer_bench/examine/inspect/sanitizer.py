"""compute-sanitizer: the commands, and the findings in what it prints.

torch's allocator hides writes beyond a tensor, which land in memory that belongs to it. So each tensor gets an
allocation of its own, with a gap behind it. Outputs are not filled before the call: reading one is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.examine.inspect.order import Inspected, ToolStep
from flashinfer_bench.examine.inspect.tools import ToolPlan

TYPES: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
OWN_FLAGS: Final = {"memcheck": ("--padding", "1024")}
"""Type → its further flags. The gap makes a write into the next tensor a write into nothing."""
ENVIRONMENT: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
MOST_PRINTED: Final = 100
MARK: Final = "========="
PLACE: Final = re.compile(
    r"\bat (?:(?P<kernel>\S.*?)\+)?0x[0-9a-fA-F]+(?: in (?P<file>[^\[\]]*?):(?P<line>\d+)(?::(?P<old>[^\[]+))?)?"
    r"(?= \[|\s*$)"
)
"""Where something happened. Older releases tell the kernel last."""
ACCESS: Final = re.compile(r"\b(Read|Write) access at ")
THREAD: Final = re.compile(r"by thread (\([\d,]+\)) in block (\([\d,]+\))")
PASSED_OVER: Final = (
    *("COMPUTE-SANITIZER", "ERROR SUMMARY", "RACECHECK SUMMARY", "LEAK SUMMARY", "Target application returned"),
    *("This tool", "No attachable"),
)
"""How lines begin that are no findings."""
OF_THE_TOOL: Final = re.compile(r"(?:Internal Sanitizer Error|Error: (?!Race)|Warning: (?!Race))")
"""How a line begins in which the tool speaks of itself."""


@dataclass(frozen=True)
class CodePlace:
    """Where in the code."""

    kernel: str
    file: str = ""
    """As the compiler knew it; the path of the solution's source where it is one. Empty where it is not known."""
    line: int | None = None
    access: str = ""
    """"Read" or "Write", where it is told."""


@dataclass(frozen=True)
class SanitizerFinding:
    """One thing that is wrong; many threads may have done it."""

    type: str
    """One of TYPES."""
    message: str
    places: tuple[CodePlace, ...] = ()
    thread: str = ""
    block: str = ""
    """Of the first thread that did it."""
    count: int = 1
    """How often it was printed."""

    @property
    def where(self) -> str:
        """The first place with a file, in words."""
        places = [place for place in self.places if place.line is not None] or list(self.places)
        if not places:
            return ""
        return f"{places[0].file}:{places[0].line}" if places[0].line is not None else f"in {places[0].kernel}"

    def describe(self) -> str:
        """Return the finding as a line for people."""
        where = " and ".join(dict.fromkeys(replace(self, places=(place,)).where for place in self.places))
        thread = f", thread {self.thread} of block {self.block}" if self.thread else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        kernel = f" in {self.places[0].kernel}" if self.places and self.places[0].line is not None else ""
        return f"{self.type}: {where + ': ' if where else ''}{self.message}{kernel}{thread}{times}"

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON-able values."""
        return asdict(self)


def plan_sanitizer(program: Path, types: Sequence[str], limit_s: float) -> ToolPlan:
    """Return a step for each type."""
    common = ["--target-processes", "application-only", "--show-backtrace", "no", "--print-limit", str(MOST_PRINTED)]
    steps = [
        ToolStep(
            name=one,
            argv=[str(program), "--tool", one, *common, *OWN_FLAGS.get(one, ())],
            calls=True,
            limit_s=limit_s,
            environment=ENVIRONMENT,
        )
        for one in types
    ]
    return ToolPlan(program, steps)


def read_findings(done: Inspected, sources: Iterable[str]) -> list[SanitizerFinding]:
    """Return what all steps found, equal findings once.

    Args:
        done: what came of the steps.
        sources: the paths of the solution's sources.
    """
    paths = list(sources)
    return [finding for step in done.steps for finding in join_equal(parse_findings(step.name, step.text, paths))]


def find_problems(done: Inspected, findings: Sequence[SanitizerFinding]) -> list[str]:
    """Return a line for each step that did not do what it should; a crash that a finding explains is none."""
    problems = []
    for step in done.steps:
        if any(finding.type == step.name for finding in findings):
            continue
        own = [line for line in _marked(step.text) if OF_THE_TOOL.match(line)]
        reason = "; ".join(own) or step.error.strip().rpartition("\n")[2] or step.ended
        if not reason and MARK not in step.text:
            reason = "compute-sanitizer said nothing: it did not look at the call"
        if reason:
            problems.append(f"{step.name}: {reason}")
    return problems


def parse_findings(type_: str, text: str, sources: Sequence[str]) -> Iterator[SanitizerFinding]:
    """Yield the findings in what one type printed: a line with one space after the mark begins one, others go on."""
    current: SanitizerFinding | None = None
    for line in text.splitlines():
        if not line.startswith(MARK):
            continue
        rest = line.removeprefix(MARK)
        is_further = rest.startswith("  ")
        words = rest.strip()
        if not is_further:
            if current is not None:
                yield current
            is_finding = words and not words.startswith(PASSED_OVER) and not OF_THE_TOOL.match(words)
            current = SanitizerFinding(type_, _message(words)) if is_finding else None
        if current is not None:
            current = _add(current, words, sources)
    if current is not None:
        yield current


def join_equal(findings: Iterable[SanitizerFinding]) -> list[SanitizerFinding]:
    """Return findings of the same message and places once, with their count."""
    joined: dict[tuple[str, tuple[CodePlace, ...]], SanitizerFinding] = {}
    for finding in findings:
        key = (finding.message, finding.places)
        before = joined.get(key)
        joined[key] = finding if before is None else replace(before, count=before.count + 1)
    return list(joined.values())


def _marked(text: str) -> list[str]:
    return [line.removeprefix(MARK).strip() for line in text.splitlines() if line.startswith(MARK)]


def _message(words: str) -> str:
    """Return the words of a finding's first line, without the place."""
    message = words.removeprefix("Error: ").removeprefix("Warning: ")
    return "race between accesses to shared memory" if message.startswith("Race reported") else message


def _add(finding: SanitizerFinding, words: str, sources: Sequence[str]) -> SanitizerFinding:
    """Add what a line of a finding tells: a place, or the thread."""
    thread = THREAD.search(words)
    if thread:
        return finding if finding.thread else replace(finding, thread=thread[1], block=thread[2])
    place = PLACE.search(words)
    if place is None or not (place["kernel"] or place["file"]):
        return finding
    access = ACCESS.search(words)
    kernel = (place["kernel"] or place["old"] or "").strip()
    line = int(place["line"]) if place["line"] else None
    file = name_source(place["file"] or "", sources)
    return replace(finding, places=(*finding.places, CodePlace(kernel, file, line, access[1] if access else "")))


def name_source(file: str, sources: Sequence[str]) -> str:
    """Return the solution's path of a file that a compiler knew by another one; other files keep their names."""
    parts = PurePosixPath(file).parts
    fitting = [path for path in sources if parts[-len(PurePosixPath(path).parts) :] == PurePosixPath(path).parts]
    return max(fitting, key=len, default=file)
