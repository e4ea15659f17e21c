"""The interval of a recorded latency, as reports use it: it has to hold for a re-run in a new worker.

A trace of an older version has an interval of one worker's readings alone; it is widened here by the default spread
between workers of its kind of device.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.trace_lines import AnyEvaluation
from flashinfer_bench.timing.between_workers import default_spread, widened_interval


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


def read_interval(evaluation: AnyEvaluation) -> TimeInterval | None:
    """Return the interval of a verdict's latency; None where it has no latency."""
    latency = evaluation.performance.latency_ms if evaluation.performance is not None else 0.0
    if latency <= 0:
        return None
    record = read_measurement(evaluation)
    bounds = record.bounds
    if bounds is None or not record.interval:
        kind = "cuda" if record.method in ("cupti", "cuda_events") else "cpu"
        bounds = widened_interval(latency, bounds, default_spread(kind))
        return TimeInterval(*bounds, "")
    return TimeInterval(*bounds, record.interval)
