"""compute-sanitizer: the commands, and the findings in its output.

torch's allocator hides writes beyond a tensor, which land in memory that belongs to it. So each tensor gets an
allocation of its own, with a gap behind it. Outputs are not filled before the call: reading one is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.errors import Misuse
from flashinfer_bench.examine.inspect.look import Inspected, ToolPlan, ToolStep, make_document, render_document

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
"""A place in the code. Older releases print the kernel last."""
ACCESS: Final = re.compile(r"\b(Read|Write) access at ")
THREAD: Final = re.compile(r"by thread (\([\d,]+\)) in block (\([\d,]+\))")
NO_FINDING: Final = re.compile(
    r"$|COMPUTE-SANITIZER|\w+ SUMMARY|Target application returned|This tool|No attachable|"
    r"(?P<own>Internal Sanitizer Error|Error: (?!Race)|Warning: (?!Race))"
)
"""Start of a line that is no finding. `own`: the tool speaks of itself."""


def check_types(given: Sequence[str] | None) -> list[str]:
    """Return the checks to make: those that were named, each once, or all.

    Raises:
        Misuse: one is unknown.
    """
    unknown = [name for name in given or () if name not in TYPES]
    if unknown:
        raise Misuse(f"unknown {', '.join(unknown)}; known: {', '.join(TYPES)}")
    return list(dict.fromkeys(given or TYPES))


def plan_sanitizer(program: Path, types: Sequence[str], limit_s: float) -> ToolPlan:
    """Return a step for each type."""
    common = ["--target-processes", "application-only", "--show-backtrace", "no", "--print-limit", str(MOST_PRINTED)]
    steps = []
    for one in types:
        argv = [str(program), "--tool", one, *common, *OWN_FLAGS.get(one, ())]
        steps.append(ToolStep(one, argv, calls=True, limit_s=limit_s, environment=ENVIRONMENT))
    return ToolPlan(program, steps)


def read_findings(done: Inspected) -> dict[str, Any]:
    """Return the document of all steps: the findings, equal ones once, and each check that did not look."""
    sources = [source.path for source in done.job.solution.sources]
    findings: list[dict[str, Any]] = []
    problems = []
    for step in done.steps:
        found = parse_findings(step.name, step.text, sources)
        findings += found
        marked = [line.removeprefix(MARK).strip() for line in step.text.splitlines() if line.startswith(MARK)]
        own = [line for line in marked if (match := NO_FINDING.match(line)) and match["own"]]
        reason = "; ".join(own) or step.error.strip().rpartition("\n")[2] or step.ended
        if not marked:
            reason = reason or "compute-sanitizer said nothing: it did not look at the call"
        if reason and not found:  # a finding explains a crash
            problems.append(f"{step.name}: {reason}")
    types = [step.name for step in done.steps]
    return make_document("compute-sanitizer", done, types=types, findings=findings, problems=problems)


def parse_findings(type_: str, text: str, sources: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the findings in the output of one type: a line with one space after the mark begins one, others go on.

    Args:
        type_: one of TYPES.
        text: the output.
        sources: paths of the solution's sources, which stand for the paths that a compiler knew.
    """
    found: list[dict[str, Any]] = []
    current: dict[str, Any] | None = None
    for line in text.splitlines():
        words = line.removeprefix(MARK)
        if words == line:
            continue
        if not words.startswith("  "):
            words = words.strip()
            current = None if NO_FINDING.match(words) else {"type": type_, "message": _message(words), "places": []}
            if current is not None:
                found.append(current | {"thread": "", "block": "", "count": 1})
                current = found[-1]
        if current is not None:
            _add(current, words, sources)
    joined: dict[str, dict[str, Any]] = {}
    for one in found:  # many threads may have done it
        joined.setdefault(f"{one['message']} {one['places']}", {**one, "count": 0})["count"] += 1
    return list(joined.values())


def _message(words: str) -> str:
    """Return the words of a finding's first line, without the place."""
    message = words.removeprefix("Error: ").removeprefix("Warning: ")
    return "race between accesses to shared memory" if message.startswith("Race reported") else message


def _add(finding: dict[str, Any], words: str, sources: Sequence[str]) -> None:
    """Add a line to its finding: a place, or the first thread."""
    thread = THREAD.search(words)
    place = PLACE.search(words)
    if thread and not finding["thread"]:
        finding["thread"], finding["block"] = thread.groups()
    if thread or place is None or not (place["kernel"] or place["file"]):
        return
    access = ACCESS.search(words)
    file = place["file"] or ""
    parts = PurePosixPath(file).parts
    own = [path for path in sources if parts[-len(PurePosixPath(path).parts) :] == PurePosixPath(path).parts]
    finding["places"].append(
        {
            "kernel": (place["kernel"] or place["old"] or "").strip(),
            "file": max(own, key=len, default=file),
            "line": int(place["line"]) if place["line"] else None,
            "access": access[1] if access else "",
        }
    )


def render_findings(document: Mapping[str, Any]) -> str:
    """Return the findings as lines."""
    lines = []
    for type_ in document["types"]:
        own = [describe_finding(one) for one in document["findings"] if one["type"] == type_]
        is_checked = not any(problem.startswith(f"{type_}:") for problem in document["problems"])
        lines += own or ([f"{type_}: nothing found"] if is_checked else [])
    return render_document(document, [*lines, *(f"not checked: {problem}" for problem in document["problems"])])


def describe_finding(finding: Mapping[str, Any]) -> str:
    """Return a finding as a line for people."""
    places = finding["places"]
    named = [f"in {one['kernel']}" if one["line"] is None else f"{one['file']}:{one['line']}" for one in places]
    where = " and ".join(dict.fromkeys(named))
    kernel = f" in {places[0]['kernel']}" if places and places[0]["line"] is not None else ""
    thread = f", thread {finding['thread']} of block {finding['block']}" if finding["thread"] else ""
    times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
    return f"{finding['type']}: {where + ': ' if where else ''}{finding['message']}{kernel}{thread}{times}"
