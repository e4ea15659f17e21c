"""The interval of a recorded latency in reports. The interval includes the variation between workers.

In traces of earlier versions, the recorded interval covers only the samples of one worker. This module then widens the
interval by the default run-to-run variation of the kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import Measurement, ReportedTrace, read_reported
from flashinfer_bench.data.sets.results import UNMEASURED, Result
from flashinfer_bench.data.sets.weights import weighted_mean
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.report.decision import half_share, join_halves, log_half_of
from flashinfer_bench.timing.between_workers import default_spread, widened_interval

LARGEST_LOG: Final = 700.0
"""Largest logarithm whose exponential is a finite float."""


@dataclass(frozen=True)
class TimeInterval:
    """The 95 % interval of a latency, in milliseconds."""

    low_ms: float
    high_ms: float
    kind: str
    """"workers", "one worker, widened", or empty if the report widened the recorded interval."""

    @property
    def half_share(self) -> float:
        """Half the width of the interval, divided by the midpoint."""
        return half_share(self.low_ms, self.high_ms)

    def meets(self, other: TimeInterval) -> bool:
        """Return whether two intervals overlap."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms


@dataclass(frozen=True)
class MeanRatio:
    """A geometric mean of ratios, with the bounds of the mean's 95 % interval. Both bounds are None if a ratio has no
    interval."""

    value: float
    low: float | None
    high: float | None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Both bounds."""
        return None if self.low is None or self.high is None else (self.low, self.high)


def latency_of(evaluation: AnyEvaluation) -> float | None:
    """Return the latency of a verdict in ms. None if the latency is missing or out of range."""
    return as_time((evaluation.performance or UNMEASURED).latency_ms)


def interval_of(result: Result) -> TimeInterval | None:
    """Return the interval of a result's latency; None without a latency."""
    return _interval(result.latency_ms, result.measurement)


def half_of(result: Result) -> float | None:
    """Return half the interval of a latency, as a logarithm; None if there is no latency."""
    return _half(result.latency_ms, interval_of(result))


def mean_speedup(results: Iterable[Result]) -> MeanRatio | None:
    """Return the geometric mean of the known speed-ups; None if none is known.

    The mean has an interval if the reference is the baseline, and the intervals of all times are recorded.
    """
    known = [(item.speedup, item) for item in results if item.speedup]
    halves = [
        _speedup_half(item.latency_ms, item.reference_ms, item.reported) if item.baseline_ms is None else None
        for _, item in known
    ]
    return mean_of([speedup for speedup, _ in known], halves, [item.weight for _, item in known])


def read_speedup(evaluation: AnyEvaluation) -> MeanRatio | None:
    """Return the speed-up of a verdict over the reference; None without a latency, or without a measured reference."""
    performance = evaluation.performance or UNMEASURED
    latency_ms, reference_ms = as_time(performance.latency_ms), as_time(performance.reference_latency_ms)
    if not (latency_ms and reference_ms):
        return None
    return mean_of([reference_ms / latency_ms], [_speedup_half(latency_ms, reference_ms, read_reported(evaluation))])


def mean_of(
    ratios: Sequence[float], log_halves: Sequence[float | None], weights: Sequence[float] = ()
) -> MeanRatio | None:
    """Return the geometric mean of ratios above 0 with its interval; None if there is no ratio.

    Args:
        ratios: the ratios to average.
        log_halves: half the interval of each ratio, as a logarithm; empty for a mean without an interval.
        weights: the weight of each ratio; empty for equal weights.
    """
    if not ratios:
        return None
    weights = weights or [1.0] * len(ratios)
    centre = weighted_mean(list(zip(map(math.log, ratios), weights, strict=True)))
    half = join_halves([one and one * weight for one, weight in zip(log_halves, weights, strict=False)])
    value = math.exp(centre) if len(ratios) > 1 else ratios[0]
    if half is None:
        return MeanRatio(value, None, None)
    reach = half / math.fsum(weights)
    return MeanRatio(value, math.exp(centre - reach), math.exp(min(centre + reach, LARGEST_LOG)))


def _interval(time_ms: float | None, record: Measurement) -> TimeInterval | None:
    """Return the interval of a time from its record."""
    if time_ms is None:
        return None
    if record.bounds is not None and record.interval:
        return TimeInterval(*record.bounds, record.interval)
    device = "cuda" if record.method in ("cupti", "cuda_events") else "cpu"
    return TimeInterval(*widened_interval(time_ms, record.bounds, default_spread(device)), "")


def _speedup_half(latency_ms: float | None, reference_ms: float | None, reported: ReportedTrace) -> float | None:
    """Return half the interval of a speed-up, as a logarithm; None unless the intervals of both times are recorded."""
    times = ((latency_ms, reported.measurement), (reference_ms, reported.baseline))
    return join_halves(
        [_half(time_ms, _interval(time_ms, record)) if record.interval else None for time_ms, record in times]
    )


def _half(time_ms: float | None, interval: TimeInterval | None) -> float | None:
    return log_half_of(time_ms, interval.low_ms, interval.high_ms) if time_ms and interval is not None else None
