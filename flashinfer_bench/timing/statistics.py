"""Statistics of samples: order statistics, and an interval of their middle for samples that are dependent. Pure.

Consecutive samples share clocks, temperature and caches, so intervals come from batch means (Alexopoulos and Seila,
"Output Data Analysis", Handbook of Simulation, 1998, section 7.3): a series is cut into consecutive batches, and the
medians (or trimmed means) of batches are treated as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from math import atan, cos, exp, lgamma, pi, sqrt
from statistics import fmean, median
from typing import Final

from flashinfer_bench.timing.measurement import WALL

MOST_BATCHES: Final = 10
FEWEST_BATCHES: Final = 3
"""A series that gives fewer batches has no interval."""
BATCH: Final = 3
"""Least samples of a batch."""
LONG_SAMPLE_NS: Final = 10_000_000
"""A GPU sample of this length is a batch by itself: the pause before it outlasts what slowed the sample before."""
STEP_NS: Final = 32
"""Step of a GPU's clock: a time known to half a step is known well enough, and to one step never noisy."""
STUDENT_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantile of Student's t for 1 to 9 degrees of freedom. `student_quantile` would take milliseconds."""
STEPS: Final = 400
"""Even number of steps of Simpson's rule: quantiles are right to six digits."""
WIDEST: Final = 1e6

Middle = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Summary:
    """Order statistics of samples, in their unit."""

    count: int
    median: float
    mean: float
    std: float
    min: float
    max: float
    q25: float
    q75: float
    interval: tuple[float, float] | None
    """95 % interval of the middle; None if there are too few samples to tell."""


def count_together(spans_ns: Sequence[float], method: object) -> int:
    """Return the least samples of a batch, by the samples in nanoseconds and the name of their clock."""
    return 1 if method != WALL and spans_ns and min(spans_ns) >= LONG_SAMPLE_NS else BATCH


def summarise_trials(series: Sequence[Sequence[float]], batch: int = BATCH) -> Summary:
    """Return the statistics over trials, each counting the same, however many samples it has.

    The interval is that of the mean of the trials' medians: the wider of two, from batches of all trials together and
    from the trials' medians alone, since differences between trials are drawn once for each.

    Args:
        series: samples of each trial in the order in which they were taken; none is empty.
        batch: least samples of a batch.
    """
    means, medians = [fmean(values) for values in series], [median(values) for values in series]
    stds = [sqrt(fmean([value * value for value in centred(values)])) for values in series]
    mean, half = fmean(means), _half_width(series, batch)
    if half is not None and len(series) > 1:
        half = max(half, _student_half_width(medians))
    weighted = sorted((value, 1 / len(values) / len(series)) for values in series for value in values)
    return Summary(
        count=sum(map(len, series)),
        median=weighted_quantile(weighted, 0.5) if len(series) > 1 else medians[0],
        mean=mean,
        std=sqrt(fmean([std**2 + (own - mean) ** 2 for std, own in zip(stds, means, strict=True)])),
        min=weighted[0][0],
        max=weighted[-1][0],
        q25=weighted_quantile(weighted, 0.25) if len(series) > 1 else quantile([v for v, _ in weighted], 0.25),
        q75=weighted_quantile(weighted, 0.75) if len(series) > 1 else quantile([v for v, _ in weighted], 0.75),
        interval=None if half is None else (fmean(medians) - half, fmean(medians) + half),
    )


def _half_width(series: Sequence[Sequence[float]], batch: int) -> float | None:
    """Return half the interval's width from equally many batches of each trial, or of all samples as one series."""
    most = max(1, MOST_BATCHES // len(series))
    middles = [found for values in series for found in _batch_middles(values, min(most, len(values) // batch), median)]
    if FEWEST_BATCHES <= len(middles) <= MOST_BATCHES:
        return _student_half_width(middles)
    return half_width([value for values in series for value in values], batch=batch)


def half_width(values: Sequence[float], middle: Middle = median, *, batch: int = BATCH) -> float | None:
    """Return half the 95 % interval of a series' middle by batch means; None for too few batches.

    Args:
        values: in the order in which they were taken; they may depend on their neighbours.
        middle: the figure that the interval is for.
        batch: least samples of a batch.
    """
    batches = min(MOST_BATCHES, len(values) // batch)
    return _student_half_width(_batch_middles(values, batches, middle)) if batches >= FEWEST_BATCHES else None


def relative_half_width(values: Sequence[float], middle: Middle = median, *, batch: int = BATCH) -> float | None:
    """Return half the interval's width over the middle; None without an interval, or for a middle of 0."""
    half = half_width(values, middle, batch=batch)
    return None if half is None or middle(values) <= 0 else half / middle(values)


def _batch_middles(values: Sequence[float], batches: int, middle: Middle) -> list[float]:
    """Return the middle of each of this many consecutive batches."""
    bounds = [len(values) * index // batches for index in range(batches + 1)] if batches else []
    return [middle(values[start:end]) for start, end in pairwise(bounds)]


def _student_half_width(middles: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of the mean of independent values, at least two."""
    count = len(middles)
    variance = sum([value * value for value in centred(middles)]) / (count - 1)
    return STUDENT_975[min(count - 2, len(STUDENT_975) - 1)] * sqrt(variance / count)


def weighted_quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Return the quantile of sorted values with weights that add up to 1, linear between neighbours' middles."""
    ends = list(accumulate(weight for _, weight in weighted))
    places = [end - weight / 2 for end, (_, weight) in zip(ends, weighted, strict=True)]
    at = next((at for at, place in enumerate(places) if place >= share), None)
    if at is None or at == 0:
        return weighted[-1 if at is None else 0][0]
    below, value = weighted[at - 1][0], weighted[at][0]
    return below + (value - below) * (share - places[at - 1]) / (places[at] - places[at - 1])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    below, above = ordered[int(place)], ordered[min(int(place) + 1, len(ordered) - 1)]
    return below + (above - below) * (place - int(place))


def centred(values: Sequence[float]) -> list[float]:
    """Return the distances from the mean."""
    mean = fmean(values)
    return [value - mean for value in values]


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without a tenth of the values at either end, at least one of three or more.

    It is finer than the steps of a GPU's clock, and steadier than a median if samples have two typical durations.
    """
    ordered = sorted(values)
    cut = max(len(ordered) // 10, int(len(ordered) >= 3))
    return fmean(ordered[cut : len(ordered) - cut])


def student_share(value: float, freedom: float) -> float:
    """Return the share of Student's distribution below a value of 0 or more standard errors.

    With x = sqrt(freedom) tan(a) the density becomes a power of the cosine, which Simpson's rule adds up.
    """
    end = atan(value / sqrt(freedom))
    heights = [cos(end * index / STEPS) ** (freedom - 1) for index in range(STEPS + 1)]
    total = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return float(0.5 + scale * total * end / STEPS / 3)


@lru_cache(512)
def student_quantile(level: float, freedom: float) -> float:
    """Return how many standard errors an interval reaches to either side of a mean.

    Args:
        level: share of intervals that hold the true value, such as 0.95.
        freedom: degrees of freedom: n - 1 for a mean of n values.
    """
    low, high = 0.0, 1.0
    while student_share(high, freedom) < (1 + level) / 2 and high < WIDEST:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_share(middle, freedom) < (1 + level) / 2 else (low, middle)
    return (low + high) / 2
