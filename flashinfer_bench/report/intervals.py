"""The interval of a recorded latency, as reports use it: it has to hold for a re-run in a new worker.

A trace of an older version has an interval of one worker's readings alone; it is widened here by the default spread
between workers of its kind of device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flashinfer_bench.data.evaluation import as_time
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.timing.between_workers import default_spread, widened_interval

GPU_CLOCKS: Final = ("cupti", "cuda_events")
"""Clocks that time a GPU."""


@dataclass(frozen=True)
class TimeInterval:
    """The 95 % interval of a latency, in milliseconds."""

    low_ms: float
    high_ms: float
    kind: str
    """"workers", "one worker, widened", or empty where the report has widened it."""

    @property
    def half_share(self) -> float:
        """Half its width as a share of its middle."""
        middle = (self.low_ms + self.high_ms) / 2
        return (self.high_ms - self.low_ms) / 2 / middle if middle > 0 else 0.0

    def meets(self, other: TimeInterval) -> bool:
        """Say whether two intervals have a time in common."""
        return self.low_ms <= other.high_ms and other.low_ms <= self.high_ms


def latency_of(evaluation: AnyEvaluation) -> float | None:
    """Return the latency of a verdict in ms; None where it has none, or one that no call has."""
    return as_time(evaluation.performance.latency_ms) if evaluation.performance is not None else None


def read_interval(evaluation: AnyEvaluation) -> TimeInterval | None:
    """Return the interval of a verdict's latency; None where it has no latency."""
    latency = latency_of(evaluation)
    if latency is None:
        return None
    record = read_measurement(evaluation)
    return interval_of(latency, record.bounds, record.interval, record.method)


def interval_of(latency_ms: float, bounds: tuple[float, float] | None, kind: str, method: str) -> TimeInterval:
    """Return the interval of a time.

    Args:
        latency_ms: the time; above 0.
        bounds: those that the trace tells; None where it tells none.
        kind: what they hold for; empty where the trace does not say, so that they are of one worker's readings.
        method: the clock.
    """
    if bounds is None or not kind:
        device = "cuda" if method in GPU_CLOCKS else "cpu"
        return TimeInterval(*widened_interval(latency_ms, bounds, default_spread(device)), "")
    return TimeInterval(*bounds, kind)
