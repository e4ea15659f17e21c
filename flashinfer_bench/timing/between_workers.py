"""How far a time holds for the next worker: the spread between workers, and intervals that hold it. Pure.

Readings of one worker agree with each other better than with those of the next: each worker has memory, a context and
moments of its own. So an interval of one worker's readings alone would miss the next worker's time. Here it is widened
by the spread between workers, or it comes from several workers by Student's t. The spread is the standard deviation of
the logarithm of latencies of the same code in different workers, as a share: 0.004 for 0.4 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from statistics import fmean, stdev, variance
from typing import Any, Final

from flashinfer_bench.timing.statistics import student_quantile

LEVEL: Final = 0.95
"""Share of intervals that hold what a re-run in new workers comes to."""
DEFAULT_SPREADS: Final = {"cuda": 0.004, "cpu": 0.1}
"""Standard deviation between workers where this machine's is not known, as a share of the latency. On an H200 300
ratios of identical solutions were within 0.73 % of 1; in another series 95 % were within 0.74 %, which is 0.3 % for a
worker (docs/measurements.md). On two CPU cores it was 20 % while six other programs ran;
an idle machine is far steadier, and soon known."""
KNOWN_FREEDOM: Final = 6.0
"""A spread that was measured counts from so many degrees of freedom on. Below, the default counts, too."""
DEFAULT_FREEDOM: Final = 6.0
"""Degrees of freedom that a default counts as: another machine may be less steady."""
MOST_FREEDOM: Final = 200.0
"""A spread that is known by more degrees of freedom than this forgets the oldest: a machine changes."""
WORKERS: Final = "workers"
ONE_WORKER: Final = "one worker, widened"
NOISY: Final = "noisy"
STEP_NS: Final = 32
"""Step of a GPU's clock. Readings that are known to one step are never noisy."""


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
        """Half the interval of one worker's latency whose readings leave nothing open, as a logarithm.

        A re-run has the spread, too: the difference of two workers is 1.4 times as wide as the spread of one. Two such
        intervals of equal code meet unless their workers differ by twice this.
        """
        return student_quantile(LEVEL, self.freedom) * self.share


def default_spread(kind: str) -> WorkerSpread:
    """Return what is taken where nothing is known; kind is "cuda" or "cpu"."""
    return WorkerSpread(DEFAULT_SPREADS[kind], DEFAULT_FREEDOM)


def learned_spread(kind: str, squares: float, freedom: float) -> WorkerSpread:
    """Return the spread that measurements tell; with few of them the default has its part.

    Args:
        kind: "cuda" or "cpu".
        squares: sum of squares of logarithms of latencies about the mean of their own code.
        freedom: degrees of freedom of that sum.
    """
    if freedom <= 0:
        return default_spread(kind)
    missing = max(0.0, KNOWN_FREEDOM - freedom)
    total = freedom + missing
    share = sqrt((squares + missing * DEFAULT_SPREADS[kind] ** 2) / total)
    return WorkerSpread(share, total, is_measured=True)


def sum_squares(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the sum of squares of logarithms about the mean of each group, and its degrees of freedom.

    Args:
        groups: latencies of the same code on the same input, each of a worker of its own. A group of one tells nothing.
    """
    usable = [[log(value) for value in group] for group in groups if len(group) > 1 and min(group) > 0]
    return sum(variance(group) * (len(group) - 1) for group in usable), float(sum(len(group) - 1 for group in usable))


def interval_of_workers(latencies: Sequence[float]) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean over workers, at least two."""
    half = student_quantile(LEVEL, len(latencies) - 1) * stdev(latencies) / sqrt(len(latencies))
    return max(0.0, fmean(latencies) - half), fmean(latencies) + half


def widened_interval(latency: float, readings: tuple[float, float] | None, spread: WorkerSpread) -> tuple[float, float]:
    """Return the 95 % interval of a latency that one worker was timed with: both errors add up as squares."""
    within = 0.0 if readings is None or latency <= 0 else (readings[1] - readings[0]) / 2 / latency
    share = sqrt(within**2 + spread.half**2)
    return latency * exp(-share), latency * exp(share)


def is_noisy(latency_ns: float, readings_ns: tuple[float, float] | None, spread: WorkerSpread) -> bool:
    """Say whether the readings of one worker leave more open than the next worker would: more readings would help."""
    if readings_ns is None or latency_ns <= 0:
        return False
    half_ns = (readings_ns[1] - readings_ns[0]) / 2
    return half_ns / latency_ns > spread.half and half_ns > STEP_NS


def told_with_spread(record: Mapping[str, Any], latency_ms: float, spread: WorkerSpread) -> dict[str, Any]:
    """Return the record of a measurement in one worker with an interval that holds for the next one.

    The interval of its readings alone stays as `readings95_ms`.
    """
    found = record.get("interval95_ms")
    readings = (float(found[0]), float(found[1])) if isinstance(found, (list, tuple)) and len(found) == 2 else None
    flags = [flag for flag in record.get("flags", []) if flag != NOISY]
    in_ns = None if readings is None else (readings[0] * 1e6, readings[1] * 1e6)
    flags += [NOISY] if is_noisy(latency_ms * 1e6, in_ns, spread) else []
    told = {key: value for key, value in record.items() if key not in ("flags", "interval95_ms")}
    told |= {"flags": flags} if flags else {}
    told |= {"readings95_ms": list(readings)} if readings is not None else {}
    low, high = widened_interval(latency_ms, readings, spread)
    if not (isfinite(low) and isfinite(high)) or latency_ms <= 0:
        return told
    return {
        **told,
        "interval95_ms": [round(low, 9), round(high, 9)],
        "interval": ONE_WORKER,
        "worker_spread": round(spread.share, 6),
        "worker_spread_from": "this machine" if spread.is_measured else "default",
    }


def told_of_workers(record: Mapping[str, Any], latencies_ms: Sequence[float]) -> dict[str, Any]:
    """Return the record of several workers: one of theirs, with all their latencies and the interval of the mean."""
    readings = record.get("interval95_ms")
    low, high = interval_of_workers(latencies_ms)
    return {
        **{key: value for key, value in record.items() if key != "interval95_ms"},
        **({"readings95_ms": readings} if readings is not None else {}),
        "interval95_ms": [round(low, 9), round(high, 9)],
        "interval": WORKERS,
        "workers_ms": [round(value, 9) for value in latencies_ms],
    }
