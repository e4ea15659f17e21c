"""Messages of failed compilers: the first error with file and line, then the bounded log. It also decides who is to
blame."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from typing import Final

from flashinfer_bench.base.bounded_log import bound_text
from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.compile.artifact import StepReport

HEAD_BYTES, TAIL_BYTES = 9_000, 3_000
"""Bytes kept of each end of a compiler's log. The head has the first error. The message must fit into a trace's log."""
ERRORS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^(?P<file>[^\s:()][^:()\n]*):(?P<line>\d+)(?::\d+)?: (?:fatal |internal compiler )?error: (?P<what>.+)$",
        r"^(?P<file>[^\s:()][^:()\n]*)\((?P<line>\d+)\): (?:catastrophic )?error(?: #[\w\-]+)?\s*: (?P<what>.+)$",
        r"^At end of source: (?:fatal )?error(?: #[\w\-]+)?: (?P<what>.+)$",
        r"^(?P<file>[^\s:()][^:()\n]*):(?P<line>\d+): (?P<what>undefined reference to .+)$",
        r"^(?P<what>.*(?:undefined reference to|multiple definition of|cannot find -l|undefined symbol).*)$",
        r"^(?P<what>ptxas .*(?:error|fatal)\s*: .+)$",
        r"^(?P<what>(?:nvlink|nvcc|ptxas|cicc|collect2|cc1plus|ld|g\+\+|clang).*(?:error|fatal)\s*:.+)$",
        r"^(?P<what>.*\b(?:error|fatal)\b.*)$",
    )
)
BUILD_SYSTEM: Final = re.compile(r"^ninja: |^FAILED: |Error building extension|non-zero exit status", re.MULTILINE)
"""Output of a build system whose compiler failed. A solution may build extensions while it is imported."""
FOLDERS: Final = re.compile(r"^/[^\s:]*/(?=[^\s:/]+:\d+: )")
"""The folders of an absolute path before a line number. They are a worker's: long, and gone after the run."""
OUT_OF_MEMORY: Final = re.compile(
    r"out of memory|virtual memory exhausted|bad_alloc|cannot allocate memory|memory exhausted|memory allocation", re.I
)
DISK_FULL: Final = re.compile(r"No space left on device|Disk quota exceeded")
KILLED: Final = re.compile(
    r"(?:Killed|Terminated) signal terminated program|died due to signal (?:9|15)\b|\bKilled$", re.M
)
"""Words that compiler drivers print after a compiler was killed. A source can print the same words (`#error Killed`),
so they prove nothing."""
WRONG_ARCHITECTURE: Final = re.compile(
    r"^(?:ptxas .*(?:not supported on|requires) \.target|nvcc fatal\s*: Unsupported gpu architecture).*$", re.M
)
NOT_PLAIN: Final = re.compile(
    r"internal compiler error|\.gch\b|\bPCH\b|precompiled header|Segmentation fault|signal terminated program", re.I
)
"""Output that may come from the compiler's own failure, or from a precompiled header."""
LACKING: Final = re.compile(r"No such file|Permission denied|cannot find|cannot open|could not open|too large", re.I)
"""Output about a missing or unusable file. Another machine, or a later installation, may compile the source."""


def describe_failure(step: StepReport, note: str | None = None) -> str:
    """Return the message of a step that failed: its first error, then a note on the build, then its bounded output."""
    ended = f"{step.name}: the compiler {describe_exit(step.code)}"
    first = first_error(step.output)
    log = bound_text(step.output.strip(), head_bytes=HEAD_BYTES, tail_bytes=TAIL_BYTES)
    parts = [first or ended, ended if first else "", note or "", f"--- compiler output ---\n{log}" if log else ""]
    return "\n".join(part for part in parts if part)


def first_error(output: str, patterns: Sequence[re.Pattern[str]] = ERRORS) -> str | None:
    """Return the first error as `file:line: error: message`; None if no line is an error."""
    for pattern in patterns:
        result = pattern.search(output)
        if result:
            groups = result.groupdict()
            prefix = f"{groups['file']}:{groups['line']}: error: " if groups.get("file") else "error: "
            return prefix + result["what"].strip().removeprefix("error: ")
    return None


def put_error_first(message: str) -> str:
    """Return an error's message. If it quotes a build system's output, the compiler's first error comes first."""
    if not BUILD_SYSTEM.search(message):
        return message
    first = first_error(message, ERRORS[:-1])  # the last pattern matches any line with the word error
    return message if first is None else f"{FOLDERS.sub('', first)}\n{message}"


def is_no_plain_error(step: StepReport) -> bool:
    """Return whether something besides an error in the source may have made a step fail."""
    return step.code < 0 or bool(NOT_PLAIN.search(step.output)) or first_error(step.output) is None


def fails_everywhere(step: StepReport) -> bool:
    """Return whether a step failed because of its source alone, so that it fails again with the same compilers.

    A link step never counts, because a missing library may be installed later. A step never counts if it lacked a file,
    memory or disk space, or was killed.
    """
    lacks = any(words.search(step.output) for words in (LACKING, OUT_OF_MEMORY, DISK_FULL, KILLED))
    return step.name.startswith("compile ") and not is_no_plain_error(step) and not lacks


def why_machine(step: StepReport, *, disk_is_full: bool, memory_kills: int) -> str | None:
    """Return why the machine, and not the solution, is to blame; None if it is not.

    Args:
        memory_kills: processes that the kernel killed during the step because memory ran out.
    """
    if disk_is_full and DISK_FULL.search(step.output):
        return "the disk is full"
    if step.code in (-signal.SIGKILL, -signal.SIGTERM) or (memory_kills > 0 and KILLED.search(step.output)):
        return "a compiler was killed, probably because memory ran out: use fewer at once (--build-jobs)"
    return None


def other_architecture(step: StepReport) -> str | None:
    """Return the compiler's line that says that the code needs another GPU; None if no line says so."""
    if first_error(step.output, ERRORS[:2]) is not None:  # the source has an error, whatever else is printed
        return None
    result = WRONG_ARCHITECTURE.search(step.output)
    return re.sub(r"^.*\b(?:error|fatal)\s*: ", "", result[0]).strip() if result else None
