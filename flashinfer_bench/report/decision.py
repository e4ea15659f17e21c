"""The rule for decisions on a ratio of times. This module also makes a ratio's interval from those of its times.

`compare`, `report diff`, `report history` and the pages use it. `assets/6_solution.js` has the same rule for two
solutions that a reader selects, and a test checks that both agree. Ratios are compared as logarithms, so a factor of 2
and a factor of 1/2 are equally far from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log
from typing import Final, Literal

Decision = Literal["faster", "slower", "same", "cannot tell yet"]
"""Decision on B against A, or on a new time against an old time."""
FASTER: Final[Decision] = "faster"
SLOWER: Final[Decision] = "slower"
SAME: Final[Decision] = "same"
UNKNOWN: Final[Decision] = "cannot tell yet"
THRESHOLD: Final = 0.02
"""Default smallest difference of interest, as a share. Times that differ less count as equal."""


def decide(log_mean: float, log_half: float | None, threshold: float = THRESHOLD) -> Decision:
    """Return the decision on a ratio.

    Args:
        log_mean: logarithm of the ratio.
        log_half: half of the ratio's interval, as a logarithm; None if there is no interval.
        threshold: the smallest difference of interest: 0.02 for 2 %.
    """
    if log_half is None:
        return UNKNOWN
    edge = log(1 + threshold)
    if abs(log_mean) + log_half <= edge:
        return SAME
    if log_half < abs(log_mean) and abs(log_mean) > edge:
        return SLOWER if log_mean > 0 else FASTER
    return UNKNOWN


def log_half_of(time: float, low: float, high: float) -> float | None:
    """Return half the interval of a time, as a logarithm: the larger of its two sides.

    None if the interval reaches 0, since a ratio then has no bound.
    """
    return max(log(high / time), log(time / low), 0.0) if time > 0 and low > 0 and high > 0 else None


def half_share(low: float, high: float) -> float:
    """Return half the width of an interval, as a share of its midpoint."""
    return (high - low) / (high + low or 1.0)


def join_halves(halves: Sequence[float | None]) -> float | None:
    """Return half the interval of a sum, given half the interval of each independent term. None if a term has no
    interval."""
    known = [half for half in halves if half is not None]
    return hypot(*known) if known and len(known) == len(halves) else None
