"""The result of one backend of a case as one flat row, for the [PERF] line, the CSV and the JSON lines.

Numbers come from the trace's measurement (`data.measurement`); files get its record as it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median, pstdev
from typing import Any, Final, Literal

from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.data import Evaluation, EvaluationStatus
from flashinfer_bench.data.measurement import Measurement, read_measurement
from flashinfer_bench.report.verdict import reason_of, to_one_line
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.routines.case.support import Platform
from flashinfer_bench.timing.flags import LATE_SHARE

RowOutcome = Literal["passed", "mismatch", "failed", "skipped"]
NS_PER_MS: Final = 1e6
ROOFLINE: Final = {
    "share": "roofline_share",
    "bound": "roofline_bound",
    "floor_ms": "roofline_ms",
    "peak": "roofline_peak",
}
"""The name of a fact → its name in a row."""
HOST_BOUND: Final = "host_bound"
"""Ignore this flag while the spin hides the host: a host is usually slower than the kernels that it launches."""


@dataclass(frozen=True)
class RowTiming:
    """The figures of a measurement, in milliseconds."""

    median_ms: float
    """Of `run` alone: what FlashInfer's benchmark times."""
    std_ms: float
    """nan where the record has no spread."""
    caveat: str | None = None
    """Why the time means nothing, or little."""
    setup_ms: float | None = None
    """What `setup` takes before each call; None where there is none."""


@dataclass
class PerfRow:
    """The result of one backend of one case."""

    request: Request
    backend: str
    outcome: RowOutcome
    reason: str = ""
    """Why it was skipped, failed or differs."""
    timing: RowTiming | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    """Figures beside the time: rates, roofline, errors."""
    record: Mapping[str, Any] = field(default_factory=dict)
    """The measurement as the trace holds it."""
    device: str = ""


def make_row(request: Request, backend: str, evaluation: Evaluation, *, device: str) -> PerfRow:
    """Return the row of a verdict."""
    record = _record(evaluation)
    timing = read_timing(evaluation)
    row = PerfRow(request, backend, "passed", timing=timing, record=record, device=device)
    if evaluation.status is EvaluationStatus.INCORRECT_NUMERICAL:
        row.outcome, row.reason = "mismatch", reason_of(evaluation)
    elif evaluation.status is not EvaluationStatus.PASSED:
        row.outcome, row.reason = "failed", f"{evaluation.status.value}: {reason_of(evaluation)}"
    elif timing is None:
        row.outcome, row.reason = "failed", "the trace holds no measurement"
    if evaluation.correctness is not None:
        row.facts["max_absolute_error"] = evaluation.correctness.max_absolute_error
        row.facts["max_relative_error"] = evaluation.correctness.max_relative_error
    if timing is not None:
        row.facts.update(_rates(request, timing, evaluation.environment.hardware))
    return row


def make_skipped(request: Request, backend: str, reason: str, place: Platform) -> PerfRow:
    """Return the row of a backend that cannot run here."""
    return PerfRow(request, backend, "skipped", to_one_line(reason), device=place.device)


def make_failed(request: Request, backend: str, reason: str, place: Platform) -> PerfRow:
    """Return the row of a backend, or of a whole case, that has no verdict."""
    return PerfRow(request, backend, "failed", to_one_line(reason), device=place.device)


def read_timing(evaluation: Evaluation) -> RowTiming | None:
    """Read median and deviation from a trace. Return None where nothing was timed.

    Older measurements have other fields, so each field may be missing.
    """
    measured = read_measurement(evaluation)
    samples, trials = measured.readings_ns, measured.trials_ms
    found = measured.kernel_ms if measured.kernel_ms is not None else measured.median_ms
    found = found if found is not None else measured.latency_ms
    if found is None and samples:
        found = median(samples) / NS_PER_MS
    if found is None and trials:
        found = sum(trials) / len(trials)
    if found is None and evaluation.performance is not None:
        found = evaluation.performance.latency_ms
    if found is None:
        return None
    deviation = measured.std_ms
    if deviation is None:
        deviation = pstdev(samples) / NS_PER_MS if samples else math.nan
    return RowTiming(found, deviation, _caveat(measured), measured.setup_ms)


def _rates(request: Request, timing: RowTiming, hardware: str) -> dict[str, Any]:
    assert request.case is not None  # only a case that was made is timed
    facts = describe_time(request.case.cost, hardware, timing.median_ms) or {}
    if "share" in facts:
        facts.setdefault("too_fast", "")
    return {ROOFLINE.get(name, name): fact for name, fact in facts.items()}


def _record(evaluation: Evaluation) -> Mapping[str, Any]:
    found = (evaluation.extra or {}).get("measurement")
    return found if isinstance(found, Mapping) else {}


def _caveat(measured: Measurement) -> str | None:
    if not measured.meaningful:
        return measured.reason or "the time means nothing"
    return ", ".join(flag for flag in measured.flags if flag != HOST_BOUND or _came_late(measured)) or None


def _came_late(measured: Measurement) -> bool:
    """Tell whether the host launched too late in more than LATE_SHARE of the samples. The time is the host's then."""
    late, samples = measured.late, measured.samples
    return late is not None and samples is not None and late > LATE_SHARE * samples
