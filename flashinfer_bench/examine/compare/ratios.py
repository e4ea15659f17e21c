"""From pairs of times to a decision: how many times as long B takes as A, and how sure that is. Pure.

A block is one worker that times one side. A pair is a block of each side, one right after the other. The logarithm of
its ratio (B over A) counts as one value, and pairs are taken as independent, since each block has a worker of its own.
The interval of the mean is Student's: mean ± t · s / √n (NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.2),
turned back into a ratio. The mean over workloads has the sum of their variances, with degrees of freedom by
B. L. Welch, "The generalization of Student's problem when several different population variances are involved",
Biometrika 34, 1947.

Whoever looks again and again until an interval leaves out 1 finds a difference where there is none. So pairs are looked
at in a few fixed places only, each time with an interval of `LOOK_LEVELS`: a look spends a part of the 5 % that may be
wrong (K. K. G. Lan and D. L. DeMets, "Discrete sequential boundaries for clinical trials", Biometrika 70, 1983). The
interval that stands when the series ends then holds the true ratio in about 95 of 100 series or more, by simulation
(`benchmarks/bench_compare_decisions.py --simulate`, docs/compare.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, exp, log, sqrt
from statistics import fmean, variance
from typing import Final

from flashinfer_bench.report.decision import Decision, decide, join_halves
from flashinfer_bench.timing.statistics import student_quantile

LOOKS: Final = (4, 6, 9, 13, 19, 28, 42, 63, 94)
"""Numbers of pairs at which a series is looked at. Each is half as large again as the one before: more looks would make
each interval wider."""
LOOK_LEVELS: Final = (0.984, 0.990, 0.992, 0.993, 0.994, 0.994, 0.994, 0.994, 0.994)
"""Share of the intervals of each look that hold the true ratio. With these all looks together hold it in about 95 of
100 series, also where all of them are made; the first look, which mostly decides on a GPU, has the narrowest."""
LEAST_ERROR: Final = 1e-12
"""A standard error that stands for 0, by which nothing could be divided."""
MOST_MORE: Final = 10_000
"""More pairs than this are not named as a number."""


@dataclass(frozen=True)
class Ratio:
    """The latency of B over that of A, as a logarithm with its uncertainty."""

    log_mean: float
    log_half: float | None
    """Half the width of the interval; None if it is unknown, as of one pair."""
    error: float = 0.0
    """Standard error of the logarithm."""
    freedom: float = 0.0
    """Degrees of freedom of that error."""
    pairs: int = 0
    """Pairs of blocks; 0 for recorded traces."""

    @property
    def ratio(self) -> float:
        """B over A: 1.03 if B takes 3 % longer."""
        return exp(self.log_mean)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the ratio."""
        if self.log_half is None:
            return None
        return exp(self.log_mean - self.log_half), exp(self.log_mean + self.log_half)

    def decide(self, threshold: float) -> Decision:
        """Say what B is beside A, by the rule of all reports."""
        return decide(self.log_mean, self.log_half, threshold)

    def pairs_needed(self, threshold: float) -> int | None:
        """Return about how many more pairs would decide; None if no number can be named.

        The interval has to become so narrow that it fits between the ratio and the nearer edge: inside the threshold
        for "same", or away from 1 for a difference.
        """
        if self.pairs < 2 or self.log_half is None:
            return LOOKS[0] - self.pairs if self.pairs < LOOKS[0] else None
        edge = log(1 + threshold)
        place = abs(self.log_mean)
        room = edge - place if place <= edge else place
        deviation = self.error * sqrt(self.pairs)
        if room <= 0 or deviation <= 0:
            return None
        wanted = ceil((student_quantile(LOOK_LEVELS[-1], max(self.freedom, 8.0)) * deviation / room) ** 2)
        more = max(1, wanted - self.pairs)
        return more if more <= MOST_MORE else None


def level_at(pairs: int) -> float:
    """Return the share of intervals that hold the true ratio, of the look that a series has come to or goes towards."""
    return next((level for look, level in zip(LOOKS, LOOK_LEVELS, strict=True) if pairs <= look), LOOK_LEVELS[-1])


def ratio_of_pairs(logs: Sequence[float], level: float | None = None) -> Ratio:
    """Return the ratio that pairs of blocks tell.

    Args:
        logs: of each pair the logarithm of B over A; at least one.
        level: share of such intervals that hold the true ratio; None for that of the look.
    """
    count = len(logs)
    if count < 2:
        return Ratio(fmean(logs), None, pairs=count)
    error = sqrt(variance(logs) / count)
    return Ratio(fmean(logs), student_quantile(level or level_at(count), count - 1) * error, error, count - 1, count)


def join_ratios(ratios: Sequence[Ratio]) -> Ratio:
    """Return the geometric mean of the ratios of several workloads, whose blocks are independent.

    Args:
        ratios: at least one. The level is that of the one with the most pairs; recorded ones, without pairs, have
            halves of 95 % intervals, which add up as squares.
    """
    if len(ratios) == 1:
        return ratios[0]
    most = max(one.pairs for one in ratios)
    count = len(ratios)
    mean = fmean(one.log_mean for one in ratios)
    pairs = sum(one.pairs for one in ratios)
    if not most:
        half = join_halves([one.log_half for one in ratios])
        return Ratio(mean, None if half is None else half / count)
    if any(one.log_half is None for one in ratios):
        return Ratio(mean, None, pairs=pairs)
    parts = [max(one.error, LEAST_ERROR) ** 2 / count**2 for one in ratios]
    total = sum(parts)
    freedom = total**2 / sum(part**2 / one.freedom for part, one in zip(parts, ratios, strict=True))
    return Ratio(mean, student_quantile(level_at(most), freedom) * sqrt(total), sqrt(total), freedom, pairs)
