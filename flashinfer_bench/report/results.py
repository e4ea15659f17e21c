"""Results: the verdicts that count, each with its figures, as rankings, pages, histories and differences read them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.data.evaluation import EvaluationStatus, as_time
from flashinfer_bench.data.sets.columns import JudgedTrace, list_judged
from flashinfer_bench.data.sets.told import IntervalRecord, ToldTrace
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace
from flashinfer_bench.report.decision import join_halves, log_half_of
from flashinfer_bench.report.intervals import TimeInterval, interval_of

if TYPE_CHECKING:
    from flashinfer_bench.data.trace_set import TraceSet

UNKNOWN_AUTHOR: Final = "unknown"
"""The author of a solution that the set does not have."""
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
    """Bounds of the 95 % interval of the latency, which holds for a re-run in a new worker."""
    high_ms: float | None
    reference_ms: float | None
    log_half: float | None
    """Half the interval of the latency, as a logarithm; None where there is no latency."""
    speedup_log_half: float | None
    """Half the interval of the speed-up, as a logarithm, by the intervals of both times."""
    share: float | None
    """Share of the roofline."""
    standing: str
    """What its time counts for in a ranking, as of a measurement; empty if it is not ranked."""
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


def mean_of(ratios: Sequence[float], log_halves: Sequence[float | None]) -> MeanRatio | None:
    """Return the geometric mean of ratios with its interval; None where there is no ratio.

    Args:
        ratios: those that are not above 0 are left out.
        log_halves: half the interval of each, as a logarithm.
    """
    usable = [math.log(ratio) for ratio in ratios if ratio > 0]
    if not usable:
        return None
    centre = sum(usable) / len(usable)
    half = join_halves(log_halves) if len(log_halves) == len(usable) else None
    if half is None:
        return MeanRatio(math.exp(centre), None, None)
    reach = half / len(usable)
    return MeanRatio(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, 700.0)))


def ratio_of(old: Result, new: Result) -> tuple[float, float | None] | None:
    """Return new over old latency with half its interval as a logarithm; None where one has no latency."""
    if old.latency_ms is None or new.latency_ms is None:
        return None
    return new.latency_ms / old.latency_ms, join_halves([old.log_half, new.log_half])


def _result(judged: JudgedTrace) -> Result:
    evaluation, told, trace = judged.evaluation, judged.told, judged.trace
    performance = evaluation.performance
    latency = as_time(performance.latency_ms) if performance is not None else None
    reference = as_time(performance.reference_latency_ms) if performance is not None else None
    interval = _interval(told.interval, latency, told.measurement.method)
    own = log_half_of(latency or 0.0, interval.low_ms, interval.high_ms) if interval is not None else None
    is_passed = evaluation.status is _PASSED
    is_ranked = is_passed and latency is not None and not told.run.quick and told.measurement.meaningful
    return Result(
        definition=trace.definition,
        op_type=judged.op_type or "",
        solution=trace.solution or "",
        author=judged.author or UNKNOWN_AUTHOR,
        workload=trace.workload.uuid,
        hardware=evaluation.environment.hardware,
        status=evaluation.status.value,
        is_passed=is_passed,
        is_ranked=is_ranked,
        latency_ms=latency,
        low_ms=interval.low_ms if interval is not None else None,
        high_ms=interval.high_ms if interval is not None else None,
        reference_ms=reference,
        log_half=own,
        speedup_log_half=join_halves([own, _reference_half(told, reference or 0.0)]),
        share=told.roofline.share,
        standing=told.measurement.standing if is_ranked else "",
        evaluation=evaluation,
        trace=trace,
        told=told,
    )


def _interval(record: IntervalRecord, time_ms: float | None, method: str) -> TimeInterval | None:
    if time_ms is None or time_ms <= 0:
        return None
    low, high = record.interval95_ms or (0.0, -1.0)
    return interval_of(time_ms, (low, high) if 0 <= low <= high else None, record.interval, method)


def _reference_half(told: ToldTrace, reference: float) -> float | None:
    interval = _interval(told.baseline, reference, told.measurement.method)
    return log_half_of(reference, interval.low_ms, interval.high_ms) if interval is not None else None
