"""What readings say: order statistics, and an interval of their middle for readings that are not independent. Pure.

Consecutive readings share clocks, temperature and caches, so the interval comes from batch means (C. Alexopoulos and
A. F. Seila, "Output Data Analysis", Handbook of Simulation, 1998, section 7.3): the series is cut into consecutive
batches, each gives a median (or a trimmed mean), and what the batches give is treated as independent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import atan, cos, exp, lgamma, pi, sqrt
from statistics import fmean, median
from typing import Final

MOST_BATCHES: Final = 10
"""A series is cut into at most this many batches."""
FEWEST_BATCHES: Final = 3
"""A series that gives fewer batches than this has no interval."""
BATCH: Final = 3
"""A batch holds at least this many readings."""
LONG_READING_NS: Final = 10_000_000
"""A reading of such a length on a GPU is a batch by itself: the rest before it is longer than the call, so what slowed
one reading down hardly reaches the next. Nine readings of a reference of 24 ms took 0.4 s, and told no more than three
(0.1 to 0.2 % apart). On a CPU nothing rests, and what disturbs one reading disturbs the next."""
WALL: Final = "wall"
"""The name of the clock of a CPU."""
STUDENT_975: Final = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5 % quantile of Student's t for 1 to 9 degrees of freedom. For more of them the last one is taken, which is a
little too large. A table, because `student_quantile` takes milliseconds."""
STEPS: Final = 400
"""Even number of steps of Simpson's rule. With it a quantile is right to six digits, from one degree of freedom on."""
WIDEST: Final = 1e6
"""No quantile that is looked for is above this."""


@dataclass(frozen=True)
class Summary:
    """Order statistics of a series, in the unit of its values."""

    count: int
    median: float
    mean: float
    std: float
    minimum: float
    maximum: float
    q25: float
    q75: float
    interval: tuple[float, float] | None
    """95 % interval of the median; None where there are too few readings to tell."""

    @property
    def spread(self) -> float:
        """The interquartile range over the median; 0 where the median is 0."""
        return (self.q75 - self.q25) / self.median if self.median else 0.0


def count_together(spans_ns: Sequence[float], method: object) -> int:
    """Return how many readings a batch holds at least.

    Args:
        spans_ns: the readings, in nanoseconds.
        method: the name of their clock.
    """
    return 1 if method != WALL and spans_ns and min(spans_ns) >= LONG_READING_NS else BATCH


def summarise_series(values: Sequence[float], batch: int = BATCH) -> Summary:
    """Return the statistics of a series in the order in which it was taken.

    Args:
        values: the readings.
        batch: as many of them at least make a batch.

    Raises:
        ValueError: the series is empty.
    """
    if not values:
        raise ValueError("no readings to summarise")
    ordered = sorted(values)
    return Summary(
        count=len(values),
        median=median(ordered),
        mean=fmean(ordered),
        std=sqrt(max(0.0, fmean([value * value for value in centred(ordered)]))),
        minimum=ordered[0],
        maximum=ordered[-1],
        q25=quantile(ordered, 0.25),
        q75=quantile(ordered, 0.75),
        interval=median_interval(values, batch=batch),
    )


def summarise_trials(series: Sequence[Sequence[float]], batch: int = BATCH) -> Summary:
    """Return the statistics over trials, each counting the same, however many readings it has.

    The interval is that of the mean of the trials' medians. It is computed in two ways, and the wider one counts: from
    batches of all trials together, and from the trials' medians alone. The second way counts because what differs
    between trials was drawn only once for each of them.

    Args:
        series: the readings of each trial in the order in which they were taken; none is empty.
        batch: as many readings at least make a batch.
    """
    trials = [summarise_series(values, batch) for values in series]
    if len(trials) == 1:
        return trials[0]
    mean, middle = (fmean(found) for found in zip(*[(trial.mean, trial.median) for trial in trials], strict=True))
    pooled = _half_width(series, batch)
    half = None if pooled is None else max(pooled, _student_half_width([trial.median for trial in trials]))
    weighted = sorted((value, 1 / len(values) / len(series)) for values in series for value in values)
    return Summary(
        count=sum(trial.count for trial in trials),
        median=_weighted_quantile(weighted, 0.5),
        mean=mean,
        std=sqrt(fmean([trial.std**2 + (trial.mean - mean) ** 2 for trial in trials])),
        minimum=weighted[0][0],
        maximum=weighted[-1][0],
        q25=_weighted_quantile(weighted, 0.25),
        q75=_weighted_quantile(weighted, 0.75),
        interval=None if half is None else (middle - half, middle + half),
    )


def _half_width(series: Sequence[Sequence[float]], batch: int) -> float | None:
    """Return half the interval's width, from equally many batches of each trial.

    Where that makes too few batches, all readings are taken as one series.
    """
    most = max(1, MOST_BATCHES // len(series))
    middles = [found for values in series for found in _batch_middles(values, min(most, len(values) // batch), median)]
    if FEWEST_BATCHES <= len(middles) <= MOST_BATCHES:
        return _student_half_width(middles)
    pooled = median_interval([value for values in series for value in values], batch=batch)
    return None if pooled is None else (pooled[1] - pooled[0]) / 2


def _student_half_width(middles: Sequence[float]) -> float:
    """Return half the width of Student's 95 % interval of the mean of independent values, at least two."""
    count = len(middles)
    variance = sum([value * value for value in centred(middles)]) / (count - 1)
    return STUDENT_975[min(count - 2, len(STUDENT_975) - 1)] * sqrt(variance / count)


def _weighted_quantile(weighted: Sequence[tuple[float, float]], share: float) -> float:
    """Return the quantile of sorted values with weights that add up to 1, linear between neighbours' middles."""
    below, at = weighted[0][0], 0.0
    reached = 0.0
    for value, weight in weighted:
        place = reached + weight / 2
        if place >= share:
            part = (share - at) / (place - at) if place > at else 1.0
            return below + (value - below) * part
        below, at, reached = value, place, reached + weight
    return below


def centred(values: Sequence[float]) -> list[float]:
    """Return the distances from the mean."""
    mean = fmean(values)
    return [value - mean for value in values]


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean without a tenth of the values at either end, at least one where there are three or more.

    It is finer than the steps of the GPU's clock. It is also steadier than a median where readings have two typical
    durations: a call of a microsecond that misses the caches has two, 20 % apart, and the median may be either.
    """
    ordered = sorted(values)
    cut = max(len(ordered) // 10, int(len(ordered) >= 3))
    return fmean(ordered[cut : len(ordered) - cut])


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


Middle = Callable[[Sequence[float]], float]


def median_interval(
    values: Sequence[float], middle: Middle = median, *, batch: int = BATCH
) -> tuple[float, float] | None:
    """Return a 95 % interval of the median by batch means, or None for fewer than three batches.

    Args:
        values: readings in the order in which they were taken; they may depend on their neighbours.
        middle: the figure that the interval is for, where that is not the median.
        batch: as many readings at least make a batch.
    """
    batches = min(MOST_BATCHES, len(values) // batch)
    if batches < FEWEST_BATCHES:
        return None
    middles = _batch_middles(values, batches, middle)
    half = _student_half_width(middles)
    centre = middle(values)
    return centre - half, centre + half


def _batch_middles(values: Sequence[float], batches: int, middle: Middle) -> list[float]:
    """Cut a series into this many consecutive batches, and return the middle of each."""
    bounds = [len(values) * index // batches for index in range(batches + 1)] if batches else []
    return [middle(values[start:end]) for start, end in pairwise(bounds)]


def relative_half_width(values: Sequence[float], middle: Middle = median, *, batch: int = BATCH) -> float | None:
    """Return half the interval's width over the median (or another middle), or None where there is no interval."""
    interval = median_interval(values, middle, batch=batch)
    centre = middle(values) if values else 0.0
    if interval is None or centre <= 0:
        return None
    return (interval[1] - interval[0]) / 2 / centre


def student_share(value: float, freedom: float) -> float:
    """Return the share of the distribution below a value that is not negative.

    With x = sqrt(freedom) tan(a), the density becomes a power of the cosine, which Simpson's rule adds up.

    Args:
        value: how many standard errors from the middle.
        freedom: degrees of freedom; any positive number.
    """
    end = atan(value / sqrt(freedom))
    step = end / STEPS
    heights = [cos(step * index) ** (freedom - 1) for index in range(STEPS + 1)]
    total = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    scale = exp(lgamma((freedom + 1) / 2) - lgamma(freedom / 2)) / sqrt(pi)
    return float(0.5 + scale * total * step / 3)


@lru_cache(512)
def student_quantile(level: float, freedom: float) -> float:
    """Return how many standard errors an interval reaches to either side of a mean.

    Args:
        level: the share of intervals that hold the true value, such as 0.95.
        freedom: degrees of freedom: of a mean of n values n - 1.
    """
    low, high = 0.0, 1.0
    while student_share(high, freedom) < (1 + level) / 2 and high < WIDEST:
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        if student_share(middle, freedom) < (1 + level) / 2:
            low = middle
        else:
            high = middle
    return (low + high) / 2
