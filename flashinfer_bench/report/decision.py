"""The rule for decisions on a ratio of times. This module also computes the interval of a ratio from the intervals of
the times.

`compare`, `report diff`, `report history` and the pages use the rule. `assets/6_solution.js` applies the rule to two
solutions that a reader selects. A test checks that Python and JavaScript agree. Ratios are compared as logarithms, so a
factor of 2 and a factor of 1/2 are equally far from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log
from typing import Final, Literal

Decision = Literal["faster", "slower", "same", "cannot tell yet"]
"""Decision on a time compared with the time of A, or with an old time."""
FASTER: Final[Decision] = "faster"
SLOWER: Final[Decision] = "slower"
SAME: Final[Decision] = "same"
UNKNOWN: Final[Decision] = "cannot tell yet"
THRESHOLD: Final = 0.02
"""Default of the smallest difference of interest, as a share. Times with smaller differences count as equal."""


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
    """Return half the interval of a time, as a logarithm. The longer side of the interval counts.

    Return None if the interval reaches 0, since a ratio then has no bound.
    """
    return max(log(high / time), log(time / low), 0.0) if time > 0 and low > 0 and high > 0 else None


def half_share(low: float, high: float) -> float:
    """Return half the width of an interval, divided by the midpoint."""
    return (high - low) / (high + low or 1.0)


def join_halves(halves: Sequence[float | None]) -> float | None:
    """Return half the interval of a sum, from half the intervals of its independent terms. Return None if a term has no
    interval."""
    known = [half for half in halves if half is not None]
    return hypot(*known) if known and len(known) == len(halves) else None
