"""Statistics of samples: order statistics, and intervals of the median or trimmed mean of dependent samples. Pure
functions.

Consecutive samples share clocks, temperature and caches, so intervals come from batch means (Alexopoulos and Seila,
"Output Data Analysis", Handbook of Simulation, 1998, section 7.3). A series is cut into consecutive batches, and the
medians (or trimmed means) of batches are treated as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from math import cos, pi, sqrt, tan
from statistics import fmean, median
from typing import Final

from flashinfer_bench.timing.measurement import WALL

LEVEL: Final = 0.95
"""Share of intervals that hold the true value."""
MOST_BATCHES: Final = 10
FEWEST_BATCHES: Final = 3
"""Minimum batches of a series. A series with fewer batches has no interval."""
BATCH: Final = 3
"""Minimum samples of a batch."""
LONG_SAMPLE_NS: Final = 10_000_000
"""A GPU sample of at least this length is a batch by itself. After the long pause before it, the previous sample has no
more effect."""
STEP_NS: Final = 32
"""Step of a GPU's clock. A time that is known to half a step is precise enough. A time that is known to one step is
never noisy."""
STEPS: Final = 2_000
"""Number of terms of a sum, enough for five digits of a quantile of Student's t."""
FURTHEST: Final = 40.0
"""Largest quantile, in standard errors. With more than a few degrees of freedom, no quantile is larger."""

Middle = Callable[[Sequence[float]], float]


def count_together(spans_ns: Sequence[float], method: object) -> int:
    """Return the minimum samples of a batch. It depends on the length of the samples, and on the clock."""
    return 1 if method != WALL and spans_ns and min(spans_ns) >= LONG_SAMPLE_NS else BATCH


def describe(series: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the order statistics of all samples, and their mean and standard deviation, by name.

    Args:
        series: samples of each trial; every trial has samples.
    """
    values = sorted(value for own in series for value in own)
    quartiles = {name: quantile(values, share) for name, share in (("q25", 0.25), ("median", 0.5), ("q75", 0.75))}
    return {"mean": fmean(values), "std": deviation(values), "min": values[0], **quartiles, "max": values[-1]}


def interval_of_trials(series: Sequence[Sequence[float]], batch: int = BATCH) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean of the trials' medians; None if there are too few samples.

    It is the wider of two intervals: from batches of all trials together, and from the trials' medians alone. Batches
    alone would not suffice, because a difference between trials affects all samples of a trial.

    Args:
        series: samples of each trial in the order in which they were taken; every trial has samples.
        batch: minimum samples of a batch.
    """
    medians, most = [median(values) for values in series], max(1, MOST_BATCHES // len(series))
    middles = [one for values in series for one in batch_middles(values, min(most, len(values) // batch), median)]
    if FEWEST_BATCHES <= len(middles) <= MOST_BATCHES:
        half: float | None = mean_half_width(middles)
    else:
        half = half_width([value for values in series for value in values], batch=batch)
    if half is None:
        return None
    if len(series) > 1:
        half = max(half, mean_half_width(medians))
    return fmean(medians) - half, fmean(medians) + half


def half_width(values: Sequence[float], middle: Middle = median, *, batch: int = BATCH) -> float | None:
    """Return half the 95 % interval of the middle of a series, from batch means; None if there are too few batches.

    Args:
        values: samples in the order in which they were taken; each may depend on its neighbours.
        middle: the statistic that the interval is for, such as the median.
        batch: minimum samples of a batch.
    """
    batches = min(MOST_BATCHES, len(values) // batch)
    return mean_half_width(batch_middles(values, batches, middle)) if batches >= FEWEST_BATCHES else None


def batch_middles(values: Sequence[float], batches: int, middle: Middle) -> list[float]:
    """Return the middle of each of `batches` consecutive batches."""
    bounds = [len(values) * index // batches for index in range(batches + 1)] if batches else []
    return [middle(values[start:end]) for start, end in pairwise(bounds)]


def mean_half_width(values: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of the mean of at least two independent values."""
    return student_quantile(LEVEL, len(values) - 1) * deviation(values) / sqrt(len(values) - 1)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation about the values' mean. `statistics.pstdev` would take milliseconds."""
    mean = fmean(values)
    return sqrt(fmean([(value - mean) ** 2 for value in values]))


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, linear between neighbours."""
    position = share * (len(ordered) - 1)
    below, above = ordered[int(position)], ordered[min(int(position) + 1, len(ordered) - 1)]
    return below + (above - below) * (position - int(position))


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest tenth of the values. With three or more values, at least one
    value is cut at each end.

    Unlike a median, it is not limited to the steps of a GPU's clock. It is also steadier if samples have two typical
    durations.
    """
    ordered = sorted(values)
    cut = max(len(ordered) // 10, int(len(ordered) >= 3))
    return fmean(ordered[cut : len(ordered) - cut])


@lru_cache(512)
def student_quantile(level: float, freedom: float) -> float:
    """Return half the width of the interval of a mean, in standard errors.

    With x = sqrt(freedom) tan(a), Student's density becomes a power of cos(a). The powers are summed over a.

    Args:
        level: share of intervals that hold the true value, such as 0.95.
        freedom: degrees of freedom: n - 1 for a mean of n values.
    """
    step = min(pi / 2, FURTHEST / sqrt(freedom)) / STEPS
    heights = [cos((at + 0.5) * step) ** (freedom - 1) for at in range(STEPS)]
    left = level * sum(heights)
    for at, height in enumerate(heights):
        if left <= height:
            return sqrt(freedom) * tan((at + left / height) * step)
        left -= height
    return FURTHEST
