"""The one rule that says what a ratio of times means, and how recorded intervals add up to that of a ratio. Pure.

`compare`, `report diff`, `report history` and the pages follow it; `assets/6_solution.js` has the same rule for two
solutions that a reader picks, and a test holds both together. Ratios are looked at as logarithms, so that twice as fast
and half as fast lie equally far from 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot, log
from typing import Final, Literal

Decision = Literal["faster", "slower", "same", "cannot tell yet"]
"""What B is beside A, or a new time beside an old one."""
FASTER: Final[Decision] = "faster"
SLOWER: Final[Decision] = "slower"
SAME: Final[Decision] = "same"
UNKNOWN: Final[Decision] = "cannot tell yet"
THRESHOLD: Final = 0.02
"""The smallest difference of interest, as a share, where nobody says another: below it, times count as the same."""


def decide(log_mean: float, log_half: float | None, threshold: float = THRESHOLD) -> Decision:
    """Say what a ratio means.

    Args:
        log_mean: its logarithm.
        log_half: half its interval, as a logarithm; None where it has none.
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
    """Return half the width of a time's interval as a logarithm: the larger of its two sides.

    None where the interval reaches to 0 and so tells nothing of a ratio.
    """
    return max(log(high / time), log(time / low), 0.0) if time > 0 and low > 0 and high > 0 else None


def join_halves(halves: Sequence[float | None]) -> float | None:
    """Return half the interval of a sum of logarithms, by those of its independent parts; None where one has none."""
    known = [half for half in halves if half is not None]
    return hypot(*known) if known and len(known) == len(halves) else None
