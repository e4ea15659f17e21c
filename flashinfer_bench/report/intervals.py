"""The interval of a recorded latency in reports. It covers a re-run in a new worker.

In a trace of an older version, the recorded interval covers only the samples of one worker. This module widens it by
the default run-to-run variation of its kind of device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import Measurement, read_measurement
from flashinfer_bench.data.sets.results import UNMEASURED, Result
from flashinfer_bench.data.sets.weights import weighted_mean
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.report.decision import join_halves, log_half_of
from flashinfer_bench.timing.between_workers import default_spread, widened_interval

LARGEST_LOG: Final = 700.0
"""Largest logarithm whose exponential is a finite float."""


@dataclass(frozen=True)
class TimeInterval:
    """The 95 % interval of a latency, in milliseconds."""

    low_ms: float
    high_ms: float
    kind: str
    """"workers", "one worker, widened", or empty if the report widened it."""

    @property
    def half_share(self) -> float:
        """Half its width as a share of its midpoint."""
        return (self.high_ms - self.low_ms) / (self.high_ms + self.low_ms or 1.0)

    def meets(self, other: TimeInterval) -> bool:
        """Return whether two intervals overlap."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms


@dataclass(frozen=True)
class MeanRatio:
    """A geometric mean of ratios, with the bounds of its 95 % interval. The bounds are None if a ratio has no
    interval."""

    value: float
    low: float | None
    high: float | None


def latency_of(evaluation: AnyEvaluation) -> float | None:
    """Return the latency of a verdict in ms. None if the latency is missing or out of range."""
    return as_time((evaluation.performance or UNMEASURED).latency_ms)


def read_interval(evaluation: AnyEvaluation) -> TimeInterval | None:
    """Return the interval of a verdict's latency; None if it has no latency."""
    return _interval(latency_of(evaluation), read_measurement(evaluation))


def interval_of(result: Result) -> TimeInterval | None:
    """Return the interval of a result's latency; None if it has no latency."""
    return _interval(result.latency_ms, result.measurement)


def half_of(result: Result) -> float | None:
    """Return half the interval of a latency, as a logarithm; None if there is no latency."""
    return _half(result.latency_ms, interval_of(result))


def speedup_half_of(result: Result) -> float | None:
    """Return half the interval of a speed-up, as a logarithm, from the intervals of both times."""
    reference = _interval(result.reference_ms, result.reported.baseline, result.measurement.method)
    return join_halves([half_of(result), _half(result.reference_ms, reference)])


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
    if half is None:
        return MeanRatio(math.exp(centre), None, None)
    reach = half / math.fsum(weights)
    return MeanRatio(math.exp(centre), math.exp(centre - reach), math.exp(min(centre + reach, LARGEST_LOG)))


def _interval(time_ms: float | None, record: Measurement, clock: str = "") -> TimeInterval | None:
    """Return the interval of a time from its record. `clock`, if given, replaces the method in the record."""
    if time_ms is None:
        return None
    if record.bounds is not None and record.interval:
        return TimeInterval(*record.bounds, record.interval)
    device = "cuda" if (clock or record.method) in ("cupti", "cuda_events") else "cpu"
    return TimeInterval(*widened_interval(time_ms, record.bounds, default_spread(device)), "")


def _half(time_ms: float | None, interval: TimeInterval | None) -> float | None:
    return log_half_of(time_ms, interval.low_ms, interval.high_ms) if time_ms and interval is not None else None
