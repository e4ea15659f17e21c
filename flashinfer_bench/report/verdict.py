"""What one evaluation says in one line: why it failed, and whether its timing means anything.

Traces come from foreign files too, so no text is trusted to be printable.
"""

from __future__ import annotations

from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.data.measurement import Measurement, read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation

REASON_LIMIT: Final = 300
"""The most characters of a one-line reason. The trace's log has the whole text."""
TRACEBACK: Final = "Traceback (most recent call last)"


def reason_of(evaluation: AnyEvaluation) -> str:
    """Give the line of the log that says why the solution failed; empty when the log is."""
    return first_reason(evaluation.log)


def first_reason(text: str) -> str:
    """Give a message in one line: its first, and of a traceback in it the line that names the exception."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    start = next((index for index, line in enumerate(lines) if TRACEBACK in line), None)
    if start is None or (start > 0 and not lines[0].rstrip().endswith(":")):
        return to_one_line(lines[0])
    before = lines[0].strip() if start > 0 else lines[0].partition(TRACEBACK)[0].strip()
    raised = next((line for line in lines[start + 1 :] if not line[0].isspace()), lines[-1])
    return to_one_line(" ".join(filter(None, [before, raised])))


def to_one_line(text: str) -> str:
    """Make text safe for one line of a terminal: control characters shown as escapes, length bounded."""
    flat = text if text.isidentifier() else to_printable(" ".join(text.split()))  # most are one word
    return flat if len(flat) <= REASON_LIMIT else flat[: REASON_LIMIT - 1] + "…"


def caveat_of(evaluation: AnyEvaluation) -> str | None:
    """Say why the latency means nothing, as under Triton's interpreter; None when it means something."""
    return caveat_in(read_measurement(evaluation))


def caveat_in(measurement: Measurement) -> str | None:
    """Say why the latency means nothing, by its measurement."""
    if measurement.meaningful:
        return None
    return to_one_line(measurement.reason or "this time says nothing about the kernel")
