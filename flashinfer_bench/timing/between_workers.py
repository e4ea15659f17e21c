"""Run-to-run intervals: how far a time holds for the next worker. Pure.

Samples of one worker agree better with each other than with the next worker's: each worker has memory, a context and
moments of its own. So the interval of one worker's samples is widened by the spread between workers, or comes from
several workers by Student's t. A spread is the standard deviation of the logarithm of latencies of the same code in
different workers: 0.004 means 0.4 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from statistics import fmean, stdev, variance
from typing import Any, Final

from flashinfer_bench.timing.statistics import STEP_NS, student_quantile

LEVEL: Final = 0.95
"""Share of intervals that hold the result of a re-run in new workers."""
DEFAULT_SPREADS: Final = {"cuda": 0.004, "cpu": 0.1}
"""Spread on an unknown machine (docs/measurements.md)."""
DEFAULT_FREEDOM: Final = 6.0
"""Degrees of freedom of a default; a measured spread counts alone from as many on."""
MOST_FREEDOM: Final = 200.0
"""A spread that is known by more degrees of freedom forgets the oldest: a machine changes."""
WORKERS: Final = "workers"
ONE_WORKER: Final = "one worker, widened"
NOISY: Final = "noisy"

Interval = tuple[float, float]


@dataclass(frozen=True)
class WorkerSpread:
    """What is known of the spread between workers on one device."""

    share: float
    """Standard deviation of the latency between workers, as a share of it."""
    freedom: float
    """Degrees of freedom that it is known by."""
    is_measured: bool = False
    """It was measured on this machine."""

    @property
    def half(self) -> float:
        """Half the interval, as a logarithm, of one worker whose samples leave nothing open.

        Two such intervals of equal code meet unless their workers differ by twice this.
        """
        return student_quantile(LEVEL, self.freedom) * self.share


def default_spread(kind: str) -> WorkerSpread:
    """Return the spread on an unknown machine; kind is "cuda" or "cpu"."""
    return WorkerSpread(DEFAULT_SPREADS[kind], DEFAULT_FREEDOM)


def learned_spread(kind: str, squares: float, freedom: float) -> WorkerSpread:
    """Return the spread that measurements show; the default counts for missing degrees of freedom.

    Args:
        kind: "cuda" or "cpu".
        squares: sum of squares of logarithms of latencies about the mean of their own code.
        freedom: degrees of freedom of that sum.
    """
    if freedom <= 0:
        return default_spread(kind)
    missing = max(0.0, DEFAULT_FREEDOM - freedom)
    share = sqrt((squares + missing * DEFAULT_SPREADS[kind] ** 2) / (freedom + missing))
    return WorkerSpread(share, freedom + missing, is_measured=True)


def sum_squares(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the sum of squares of logarithms about the mean of each group, and its degrees of freedom.

    Args:
        groups: latencies of the same code on the same input, each of another worker.
    """
    usable = [[log(value) for value in group] for group in groups if len(group) > 1 and min(group) > 0]
    return sum(variance(group) * (len(group) - 1) for group in usable), float(sum(len(group) - 1 for group in usable))


def interval_of_workers(latencies: Sequence[float]) -> Interval:
    """Return Student's 95 % interval of the mean over workers, at least two."""
    half = student_quantile(LEVEL, len(latencies) - 1) * stdev(latencies) / sqrt(len(latencies))
    return max(0.0, fmean(latencies) - half), fmean(latencies) + half


def widened_interval(latency: float, samples: Interval | None, spread: WorkerSpread) -> Interval:
    """Return the 95 % interval of one worker's latency: that of its samples and the spread add up as squares."""
    within = 0.0 if samples is None or latency <= 0 else (samples[1] - samples[0]) / 2 / latency
    share = sqrt(within**2 + spread.half**2)
    return latency * exp(-share), latency * exp(share)


def is_noisy(latency_ns: float, samples_ns: Interval | None, spread: WorkerSpread) -> bool:
    """Tell whether the samples of one worker leave more open than the next worker would: more samples would help."""
    if samples_ns is None or latency_ns <= 0:
        return False
    half_ns = (samples_ns[1] - samples_ns[0]) / 2
    return half_ns / latency_ns > spread.half and half_ns > STEP_NS


def told_with_spread(record: Mapping[str, Any], latency_ms: float, spread: WorkerSpread) -> dict[str, Any]:
    """Return one worker's record with an interval that holds for the next worker; that of its samples is renamed."""
    found = record.get("interval95_ms")
    samples = (float(found[0]), float(found[1])) if isinstance(found, (list, tuple)) and len(found) == 2 else None
    told = {key: value for key, value in record.items() if key not in ("flags", "interval95_ms")}
    flags = [flag for flag in record.get("flags", []) if flag != NOISY]
    if is_noisy(latency_ms * 1e6, samples and (samples[0] * 1e6, samples[1] * 1e6), spread):
        flags.append(NOISY)
    told |= {"flags": flags} if flags else {}
    told |= {"readings95_ms": list(samples)} if samples else {}
    interval = widened_interval(latency_ms, samples, spread)
    if latency_ms <= 0 or not all(map(isfinite, interval)):
        return told
    told |= {"interval95_ms": [round(bound, 9) for bound in interval], "interval": ONE_WORKER}
    source = "this machine" if spread.is_measured else "default"
    return told | {"worker_spread": round(spread.share, 6), "worker_spread_from": source}


def told_of_workers(record: Mapping[str, Any], latencies_ms: Sequence[float]) -> dict[str, Any]:
    """Return the record of one of several workers with all their latencies and the interval of the mean."""
    told = {"readings95_ms" if key == "interval95_ms" else key: value for key, value in record.items()}
    interval = [round(bound, 9) for bound in interval_of_workers(latencies_ms)]
    workers_ms = [round(value, 9) for value in latencies_ms]
    return {**told, "interval95_ms": interval, "interval": WORKERS, "workers_ms": workers_ms}
