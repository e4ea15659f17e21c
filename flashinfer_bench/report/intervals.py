"""The interval of a recorded latency in reports. The interval includes the variation between workers.

In traces of earlier versions, the recorded interval covers only the samples of one worker. This module then widens the
interval by the default run-to-run variation of the kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import Measurement
from flashinfer_bench.data.sets.results import UNMEASURED, Result
from flashinfer_bench.data.sets.weights import weighted_mean
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.report.decision import half_share, join_halves, log_half_of
from flashinfer_bench.timing.between_workers import LARGEST_LOG, default_spread, widened_interval


@final
@dataclass(frozen=True)
class TimeInterval:
    """The 95 % interval of a latency, in milliseconds."""

    low_ms: float
    high_ms: float
    kind: str
    """"workers", "one worker, widened", or empty if the report widened the recorded interval."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Both bounds."""
        return self.low_ms, self.high_ms

    @property
    def half_share(self) -> float:
        """Half the width of the interval, divided by the midpoint."""
        return half_share(self.low_ms, self.high_ms)


@final
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


def overlap(first: tuple[float, float] | None, second: tuple[float, float] | None) -> bool:
    """Return whether two intervals overlap. An unknown interval overlaps no other."""
    return first is not None and second is not None and first[0] <= second[1] and second[0] <= first[1]


def latency_of(evaluation: AnyEvaluation) -> float | None:
    """Return the latency of a verdict in ms. None if the latency is missing or out of range."""
    return as_time((evaluation.performance or UNMEASURED).latency_ms)


def interval_of(result: Result) -> TimeInterval | None:
    """Return the interval of a result's latency; None without a latency."""
    return _interval(result.latency_ms, result.measurement)


def half_of(result: Result) -> float | None:
    """Return half the interval of a latency, as a logarithm; None if there is no latency."""
    return _half(result.latency_ms, result.measurement)


def mean_speedup(results: Iterable[Result]) -> MeanRatio | None:
    """Return the geometric mean of the known speed-ups; None if none is known.

    The mean has an interval if the reference is the baseline, and the intervals of all times are recorded.
    """
    return mean_of((item.speedup, item.weight, _half_of_speedup(item)) for item in results)


def mean_of(ratios: Iterable[tuple[float | None, float, float | None]]) -> MeanRatio | None:
    """Return the geometric mean of the ratios above 0 with its interval; None if there is no such ratio.

    Args:
        ratios: each ratio with its weight, and half its interval as a logarithm.
    """
    known = [(ratio, weight, half) for ratio, weight, half in ratios if ratio and ratio > 0]
    if not known:
        return None
    centre = weighted_mean([(math.log(ratio), weight) for ratio, weight, _ in known])
    value = math.exp(centre) if len(known) > 1 else known[0][0]
    half = join_halves([half and half * weight for _, weight, half in known])
    if half is None:
        return MeanRatio(value, None, None)
    reach = half / math.fsum(weight for _, weight, _ in known)
    return MeanRatio(value, math.exp(centre - reach), math.exp(min(centre + reach, LARGEST_LOG)))


def _interval(time_ms: float | None, record: Measurement) -> TimeInterval | None:
    """Return the interval of a time from its record."""
    if time_ms is None:
        return None
    if record.bounds is not None and record.interval:
        return TimeInterval(*record.bounds, record.interval)
    device = "cuda" if record.method in ("cupti", "cuda_events") else "cpu"
    return TimeInterval(*widened_interval(time_ms, record.bounds, default_spread(device)), "")


def _half(time_ms: float | None, record: Measurement) -> float | None:
    interval = _interval(time_ms, record)
    return log_half_of(time_ms, *interval.bounds) if time_ms and interval is not None else None


def _half_of_speedup(item: Result) -> float | None:
    """Return half the interval of a speed-up over the reference, as a logarithm; None unless the intervals of both
    times are recorded."""
    times = ((item.latency_ms, item.measurement), (item.reference_ms, item.reported.baseline))
    if item.baseline_ms is not None or not all(record.interval for _, record in times):
        return None
    return join_halves([_half(time_ms, record) for time_ms, record in times])
