"""Describes an evaluation in one line: why a solution failed, or why a time is not meaningful.

Trace files are untrusted, so control characters are shown as escapes.
"""

from __future__ import annotations

from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.data.measurement import Measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation

REASON_LIMIT: Final = 300
"""Largest number of characters of a one-line reason. The trace's log has the whole text."""
TRACEBACK: Final = "Traceback (most recent call last)"


def reason_of(evaluation: AnyEvaluation) -> str:
    """Return the reason of a failure as one line of the log; empty for an empty log."""
    return first_reason(evaluation.log)


def first_reason(text: str) -> str:
    """Return the first line of a message. If a traceback follows, return the line that names the exception."""
    before, mark, after = text.partition(TRACEBACK)
    lines, head = text.strip().splitlines(), (before.strip().splitlines() or [""])[0].rstrip()
    if not lines or not mark or (head and not head.endswith(":")):
        return to_one_line("".join(lines[:1]))
    raised = next((line for line in after.splitlines()[1:] if line[:1].strip()), lines[-1])
    return to_one_line(f"{head} {raised}")


def to_one_line(text: str) -> str:
    """Return text that is safe for one line of a terminal, cut at the limit."""
    flat = to_printable(" ".join(text.split()))
    return flat if len(flat) <= REASON_LIMIT else f"{flat[: REASON_LIMIT - 1]}…"


def caveat_in(measurement: Measurement) -> str | None:
    """Return why a latency is not meaningful, as under Triton's interpreter; None for a meaningful latency."""
    if measurement.meaningful:
        return None
    return to_one_line(measurement.reason or "this time says nothing about the kernel")
