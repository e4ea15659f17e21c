"""Run-to-run intervals: how much a time may change from one worker to the next. Pure functions.

Samples differ more between workers than within one worker. Each worker has its own memory, context and time of
measurement. So the spread between workers widens the interval of one worker's samples. The interval of several workers
is Student's. A spread is the standard deviation, over workers, of the logarithm of equal code's latency: 0.004 means
0.4 %.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log, sqrt
from statistics import fmean, variance
from typing import Any, Final

from flashinfer_bench.timing.statistics import LEVEL, STEP_NS, mean_half_width, student_quantile

DEFAULT_SPREADS: Final = {"cuda": 0.004, "cpu": 0.1}
"""Device type → spread on an unknown machine. It covered nearly all workers of equal code on the machines that were
tried."""
DEFAULT_FREEDOM: Final = 6.0
"""Degrees of freedom of a default spread. A measured spread with at least this many degrees of freedom is used alone.
"""
MOST_FREEDOM: Final = 200.0
"""Maximum degrees of freedom of a measured spread. Beyond these, older measurements count less, since a machine
changes."""
LARGEST_LOG: Final = 700.0
"""Largest logarithm whose exponential is a finite float."""
WORKERS: Final = "workers"
ONE_WORKER: Final = "one worker, widened"
NOISY: Final = "noisy"

Interval = tuple[float, float]


@dataclass(frozen=True)
class WorkerSpread:
    """The known spread between workers on one device."""

    share: float
    """Standard deviation of the latency between workers, as a share of the latency."""
    freedom: float
    """Degrees of freedom of `share`."""
    is_measured: bool = False
    """Whether the spread was measured on this machine."""

    @property
    def half(self) -> float:
        """Half the interval, as a logarithm, for one worker whose samples have no noise.

        If two workers with equal code differ by at most twice this value, their intervals overlap.
        """
        return student_quantile(LEVEL, self.freedom) * self.share


def default_spread(kind: str) -> WorkerSpread:
    """Return the spread on an unknown machine; kind is "cuda" or "cpu"."""
    return WorkerSpread(DEFAULT_SPREADS[kind], DEFAULT_FREEDOM)


def learned_spread(kind: str, squares: float, freedom: float) -> WorkerSpread:
    """Return the measured spread. If this spread has too few degrees of freedom, the default spread supplies the
    missing degrees.

    Args:
        kind: "cuda" or "cpu".
        squares: sum of squares, as `sum_squares` returns it.
        freedom: degrees of freedom of the sum.
    """
    if freedom <= 0:
        return default_spread(kind)
    missing = max(0.0, DEFAULT_FREEDOM - freedom)
    share = sqrt((squares + missing * DEFAULT_SPREADS[kind] ** 2) / (freedom + missing))
    return WorkerSpread(share, freedom + missing, is_measured=True)


def sum_squares(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the sum of squares within groups, and its degrees of freedom. A deviation is the difference between a
    latency's logarithm and the mean logarithm of its group.

    Args:
        groups: in each group, latencies of the same code on the same input, each from another worker.
    """
    usable = [[log(value) for value in group] for group in groups if len(group) > 1 and min(group) > 0]
    freedoms = [len(group) - 1 for group in usable]
    return sum(variance(group) * own for group, own in zip(usable, freedoms, strict=True)), float(sum(freedoms))


def widened_interval(latency: float, samples: Interval | None, spread: WorkerSpread) -> Interval:
    """Return the 95 % interval of one worker's latency. The half-widths of the samples' interval and of the spread are
    added as squares."""
    within = 0.0 if samples is None or latency <= 0 else (samples[1] - samples[0]) / 2 / latency
    share = sqrt(within**2 + spread.half**2)
    return latency * exp(-share), latency * exp(min(share, LARGEST_LOG))


def interval_of_workers(latencies: Sequence[float]) -> Interval:
    """Return Student's 95 % interval of the mean over at least two workers."""
    half = mean_half_width(latencies)
    return max(0.0, fmean(latencies) - half), fmean(latencies) + half


def is_noisy(latency_ms: float, samples_ms: Interval | None, spread: WorkerSpread) -> bool:
    """Return whether the sample noise of one worker exceeds the run-to-run spread, so that more samples would help."""
    half_ms = 0.0 if samples_ms is None else (samples_ms[1] - samples_ms[0]) / 2
    return half_ms > STEP_NS / 1e6 and half_ms > spread.half * latency_ms > 0


def report_with_spread(record: Mapping[str, Any], latency_ms: float, spread: WorkerSpread) -> dict[str, Any]:
    """Return one worker's record with an interval that holds for the next worker.

    An interval of another form than two numbers counts as missing, since evaluators may make records, too.
    """
    reported = _name_readings(record)
    match reported.get("readings95_ms"):
        case [int() | float() as low, int() | float() as high]:
            samples: Interval | None = (low, high)
        case _:
            samples = None
    flags = [flag for flag in reported.pop("flags", []) if flag != NOISY]
    if is_noisy(latency_ms, samples, spread):
        flags.append(NOISY)
    reported |= {"flags": flags} if flags else {}
    interval = widened_interval(latency_ms, samples, spread)
    if latency_ms <= 0 or not all(map(isfinite, interval)):
        return reported
    reported |= {"interval95_ms": _rounded(interval), "interval": ONE_WORKER, "worker_spread": round(spread.share, 6)}
    return reported | {"worker_spread_from": "this machine" if spread.is_measured else "default"}


def report_of_workers(record: Mapping[str, Any], latencies_ms: Sequence[float]) -> dict[str, Any]:
    """Return the record of one of several workers. It gets the latencies of all workers, and the interval of their
    mean."""
    interval = {"interval95_ms": _rounded(interval_of_workers(latencies_ms)), "interval": WORKERS}
    return {**_name_readings(record), **interval, "workers_ms": _rounded(latencies_ms)}


def _name_readings(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with the samples' interval as "readings95_ms"."""
    return {"readings95_ms" if key == "interval95_ms" else key: value for key, value in record.items()}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 9) for value in values]
