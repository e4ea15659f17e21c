"""compute-sanitizer: the commands, and the findings in its output.

torch's allocator hides writes beyond a tensor, because they land in memory of the allocator. So each tensor gets its
own allocation, with a gap behind it. Outputs are not filled before the call, so that reading an output is a finding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.errors import UsageError
from flashinfer_bench.examine.inspect.tool_runs import Inspected, ToolStep, make_document, render_document

TYPES: Final = ("memcheck", "racecheck", "initcheck", "synccheck")
OWN_FLAGS: Final = {"memcheck": ("--padding", "1024")}
"""Type of check → further flags. Without padding, a write past the end of a tensor hits the next tensor, and is not
found."""
ENVIRONMENT: Final = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
MOST_PRINTED: Final = 100
MARK: Final = "========="
LOCATION: Final = re.compile(
    r"(?:\b(?P<access>Read|Write) access )?\bat (?:(?P<kernel>\S.*?)\+)?0x[0-9a-fA-F]+"
    r"(?: in (?P<file>[^\[\]]*?):(?P<line>\d+)(?::(?P<old>[^\[]+))?)?(?= \[|\s*$)"
)
"""A source location. Older releases print the kernel last."""
THREAD: Final = re.compile(r"by thread (\([\d,]+\)) in block (\([\d,]+\))")
NO_FINDING: Final = re.compile(r"COMPUTE-SANITIZER|\w+ SUMMARY|Target application returned|This tool|No attachable")
OF_ITSELF: Final = re.compile(r"Internal Sanitizer Error|Error: (?!Race)|Warning: (?!Race)")
"""Beginnings of lines in which the tool reports its own errors and warnings."""


def check_types(given: Sequence[str] | None) -> list[str]:
    """Return the named checks, each once, or all checks.

    Raises:
        UsageError: a check is unknown.
    """
    unknown = [name for name in given or () if name not in TYPES]
    if unknown:
        raise UsageError(f"unknown {', '.join(unknown)}; known: {', '.join(TYPES)}")
    return list(dict.fromkeys(given or TYPES))


def plan_sanitizer(program: Path, types: Sequence[str], limit_s: float) -> list[ToolStep]:
    """Return a step for each type."""
    common = ["--target-processes", "application-only", "--show-backtrace", "no", "--print-limit", str(MOST_PRINTED)]
    steps = []
    for one in types:
        argv = [str(program), "--tool", one, *common, *OWN_FLAGS.get(one, ())]
        steps.append(ToolStep(one, argv, calls=True, limit_s=limit_s, environment=ENVIRONMENT))
    return steps


def read_findings(done: Inspected) -> dict[str, Any]:
    """Return the document of all steps: the findings without duplicates, and each check that did not run."""
    sources = [source.path for source in done.job.solution.sources]
    findings: list[dict[str, Any]] = []
    problems = []
    for step in done.steps:
        found = parse_findings(step.name, step.text, sources)
        findings += found
        own = [head for head, *_ in split_blocks(step.text) if OF_ITSELF.match(head)]
        silent = "" if MARK in step.text else "compute-sanitizer said nothing: it did not look at the call"
        reason = "; ".join(own) or step.error.strip().rpartition("\n")[2] or step.ended or silent
        if reason and not found:  # a crash after a finding is no further problem
            problems.append(f"{step.name}: {reason}")
    types = [step.name for step in done.steps]
    return make_document("compute-sanitizer", done, types=types, findings=findings, problems=problems)


def split_blocks(text: str) -> list[list[str]]:
    """Return the marked lines of an output in blocks. A line with one space after the mark begins a block."""
    said = "\n".join(line.removeprefix(MARK)[1:] for line in text.splitlines() if line.startswith(MARK))
    return [block.splitlines() for block in re.split(r"\n(?! )", said) if block.strip()]


def parse_findings(type_: str, text: str, sources: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the findings in the output of one type.

    Args:
        type_: one of TYPES.
        text: the output.
        sources: paths of the solution's sources; they replace the paths of the build folder.
    """
    found: dict[str, dict[str, Any]] = {}
    for block in split_blocks(text):
        if NO_FINDING.match(block[0]) or OF_ITSELF.match(block[0]):
            continue
        threads = [match.groups() for line in block if (match := THREAD.search(line))]
        lines = (match for line in block if not THREAD.search(line) and (match := LOCATION.search(line)))
        locations = [_read_location(match, sources) for match in lines if match["kernel"] or match["file"]]
        message = block[0].removeprefix("Error: ").removeprefix("Warning: ")
        if message.startswith("Race reported"):
            message = "race between accesses to shared memory"
        thread, in_block = threads[0] if threads else ("", "")
        one = {"type": type_, "message": message, "places": locations, "thread": thread, "block": in_block, "count": 0}
        found.setdefault(f"{message} {locations}", one)["count"] += 1  # many threads may report the same error
    return list(found.values())


def _read_location(match: re.Match[str], sources: Sequence[str]) -> dict[str, Any]:
    file = match["file"] or ""
    own = [path for path in sources if f"/{file}".endswith(f"/{path}")]
    return {
        "kernel": (match["kernel"] or match["old"] or "").strip(),
        "file": max(own, key=len, default=file),
        "line": int(match["line"]) if match["line"] else None,
        "access": match["access"] or "",
    }


def render_findings(document: Mapping[str, Any]) -> str:
    """Return the findings as lines."""
    lines = []
    for type_ in document["types"]:
        own = [describe_finding(one) for one in document["findings"] if one["type"] == type_]
        is_checked = not any(problem.startswith(f"{type_}:") for problem in document["problems"])
        lines += own or ([f"{type_}: nothing found"] if is_checked else [])
    return render_document(document, [*lines, *(f"not checked: {problem}" for problem in document["problems"])])


def describe_finding(finding: Mapping[str, Any]) -> str:
    """Return a finding as one line of text."""
    locations = finding["places"]
    named = [f"in {one['kernel']}" if one["line"] is None else f"{one['file']}:{one['line']}" for one in locations]
    where = " and ".join(dict.fromkeys(named))
    kernel = f" in {locations[0]['kernel']}" if locations and locations[0]["line"] is not None else ""
    thread = f", thread {finding['thread']} of block {finding['block']}" if finding["thread"] else ""
    times = f" ({finding['count']} times)" if finding["count"] > 1 else ""
    return f"{finding['type']}: {where + ': ' if where else ''}{finding['message']}{kernel}{thread}{times}"
