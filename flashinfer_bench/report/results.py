"""Results: the verdicts that count, each with its figures, as rankings, pages, histories and differences read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus
from flashinfer_bench.data.sets.columns import JudgedTrace, list_judged
from flashinfer_bench.data.sets.told import IntervalRecord, ToldTrace
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

UNKNOWN_AUTHOR: Final = "unknown"
"""The author of a solution that the set does not have."""
NORMAL_95: Final = 1.96
"""A 95 % interval reaches this many standard errors to each side."""
_PASSED: Final = EvaluationStatus.PASSED


@dataclass(frozen=True, slots=True)
class Result:
    """One verdict with its figures."""

    definition: str
    op_type: str
    solution: str
    author: str
    workload: str
    hardware: str
    status: str
    is_passed: bool
    is_ranked: bool
    """Whether it may be compared with others: it passed, is no quick look, and its time means something."""
    latency_ms: float | None
    low_ms: float | None
    """Bounds of the 95 % interval of the latency, from the readings of one worker."""
    high_ms: float | None
    reference_ms: float | None
    log_error: float | None
    """Standard error of the logarithm of the speed-up, by the intervals of both times."""
    share: float | None
    """Share of the roofline."""
    evaluation: AnyEvaluation
    trace: AnyTrace
    told: ToldTrace

    @property
    def speedup(self) -> float | None:
        """Over the reference; None where one of both was not measured."""
        return self.reference_ms / self.latency_ms if self.reference_ms and self.latency_ms else None


@dataclass(frozen=True)
class MeanRatio:
    """A geometric mean of ratios."""

    value: float
    low: float | None
    """Bounds of its 95 % interval; None where a ratio has none."""
    high: float | None


@collector_paused()
def list_results(trace_set: TraceSet, traces: Iterable[AnyTrace], *, latest_only: bool = True) -> list[Result]:
    """Return the results of traces; of a job that was judged more than once the latest, unless all are asked for."""
    found = list_judged(trace_set, traces)
    return [_result(judged) for judged in found if judged.is_latest or not latest_only]


def mean_of(ratios: Sequence[float], log_errors: Sequence[float | None]) -> MeanRatio | None:
    """Return the geometric mean of ratios with its interval; None where there is no ratio."""
    usable = [ratio for ratio in ratios if ratio > 0]
    if not usable:
        return None
    centre = sum(map(math.log, usable)) / len(usable)
    errors = [error for error in log_errors if error is not None]
    if len(errors) < len(ratios):
        return MeanRatio(math.exp(centre), None, None)
    reach = NORMAL_95 * math.sqrt(sum(error * error for error in errors)) / len(errors)
    return MeanRatio(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, 700.0)))


def log_error_of(record: IntervalRecord, centre: float | None) -> float | None:
    """Return the standard error of a time's logarithm, by its interval."""
    if record.interval95_ms is None or not centre or centre <= 0:
        return None
    low, high = record.interval95_ms
    return max(0.0, high - low) / (2 * NORMAL_95) / centre


def _result(judged: JudgedTrace) -> Result:
    evaluation, told, trace = judged.evaluation, judged.told, judged.trace
    performance = evaluation.performance
    latency = performance.latency_ms if performance is not None and performance.latency_ms > 0 else None
    reference = performance.reference_latency_ms if performance is not None else 0.0
    interval = told.interval.interval95_ms if latency is not None else None
    is_passed = evaluation.status is _PASSED
    return Result(
        definition=trace.definition,
        op_type=judged.op_type or "",
        solution=trace.solution or "",
        author=judged.author or UNKNOWN_AUTHOR,
        workload=trace.workload.uuid,
        hardware=evaluation.environment.hardware,
        status=evaluation.status.value,
        is_passed=is_passed,
        is_ranked=is_passed and latency is not None and not told.run.quick and told.measurement.meaningful,
        latency_ms=latency,
        low_ms=max(0.0, interval[0]) if interval is not None else None,
        high_ms=interval[1] if interval is not None else None,
        reference_ms=reference if reference > 0 else None,
        log_error=_ratio_error(told, latency, reference),
        share=told.roofline.share,
        evaluation=evaluation,
        trace=trace,
        told=told,
    )


def _ratio_error(told: ToldTrace, latency: float | None, reference: float) -> float | None:
    own, other = log_error_of(told.interval, latency), log_error_of(told.baseline, reference)
    return math.hypot(own, other) if own is not None and other is not None else None
