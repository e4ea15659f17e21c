"""What one evaluation says in one line: why it failed, whether its timing means anything, which trace counts.

Traces come from foreign files too, so nothing under `extra` is trusted to have a shape, and no text to be printable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.data.measurement import BriefMeasurement, read_measurement
from flashinfer_bench.data.sets.latest import find_latest
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

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
    return to_one_line(" ".join(filter(None, [before, _raised_line(lines[start:])])))


def to_one_line(text: str) -> str:
    """Make text safe for one line of a terminal: control characters shown as escapes, length bounded."""
    if text.isidentifier():  # most are one word
        return text if len(text) <= REASON_LIMIT else f"{text[: REASON_LIMIT - 1]}…"
    flat = to_printable(" ".join(text.split()))
    return flat if len(flat) <= REASON_LIMIT else flat[: REASON_LIMIT - 1] + "…"


def caveat_of(evaluation: AnyEvaluation) -> str | None:
    """Say why the latency means nothing, as under Triton's interpreter; None when it means something."""
    return caveat_in(read_measurement(evaluation))


def caveat_in(measurement: BriefMeasurement) -> str | None:
    """Say why the latency means nothing, by its measurement."""
    if measurement.meaningful:
        return None
    return to_one_line(measurement.reason or "this time says nothing about the kernel")


def judged(traces: Iterable[AnyTrace]) -> list[tuple[AnyTrace, AnyEvaluation]]:
    """Keep the traces that hold a verdict; of a repeated solution, workload and hardware the latest one counts."""
    return [(trace, trace.evaluation) for trace in find_latest(traces) if trace.evaluation is not None]


def _raised_line(lines: list[str]) -> str:
    """Find the line of a traceback that names the exception: the first one that is not indented again."""
    return next((line for line in lines[1:] if not line[0].isspace()), lines[-1])
