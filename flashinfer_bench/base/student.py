"""Student's t distribution: how wide an interval of a mean has to be, by the number of values. Pure."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

STEPS: Final = 400
"""Even number of steps of Simpson's rule. With it a quantile is right to six digits, from one degree of freedom on."""
WIDEST: Final = 1e6
"""No quantile that is looked for is above this."""


def student_share(value: float, freedom: float) -> float:
    """Return the share of the distribution below a value that is not negative.

    With x = sqrt(freedom) tan(a), the density becomes a power of the cosine, which Simpson's rule adds up.

    Args:
        value: how many standard errors from the middle.
        freedom: degrees of freedom; any positive number.
    """
    end = math.atan(value / math.sqrt(freedom))
    step = end / STEPS
    heights = [math.cos(step * index) ** (freedom - 1) for index in range(STEPS + 1)]
    total = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
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
