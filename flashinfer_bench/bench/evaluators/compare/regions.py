"""Finds the region of an axis in which an output fails: one stretch of places, or the same stretch of each tile.

Most places of a region fail, and hardly any others do. So a wrong column still counts where some of its elements are
right by chance. Places that fail at random have no region: it would have to be there by chance.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, lgamma, log, log2
from typing import Final, NamedTuple

import torch

LEAST_INSIDE: Final = 0.8
"""Of the places of a region at least so many fail, as a share."""
MOST_ELSEWHERE: Final = 0.1
"""Of all that fail at most so many lie elsewhere, as a share."""
LEAST_EVIDENCE: Final = 10.0
"""A region is told where it saves so many bits over a list of what fails. Places at random have one by less than one
chance in 2 to this power."""
MOST_OBSERVATIONS: Final = 2
"""Elements that fail at one place count as so many independent ones at most: they may have one cause."""
TILES: Final = tuple(2**power for power in range(1, 13))
"""Periods that are always tried: sizes of tiles."""
MOST_GAPS: Final = 8
"""Of the distances between stretches so many are tried as periods, the most common ones first."""
LEAST_REPEATS: Final = 2
"""A period is looked for where an axis has it at least so many times."""


MOST_SIZE: Final = 1 << 22
"""Of a longer axis only a stretch without a gap is told: more would take seconds."""
MOST_FOLDED: Final = 1 << 17
"""A period is looked for in so many places from the beginning of an axis, and then held against all of them."""


class FailingRegion(NamedTuple):
    """Places of an axis: one stretch of them, or the same stretch of each period."""

    start: int
    wide: int
    period: int | None = None
    """None: there is one stretch."""

    def mark(self, size: int) -> torch.Tensor:
        """Return which places of an axis lie in the region."""
        places = torch.arange(size)
        within = places if self.period is None else places % self.period
        return (within >= self.start) & (within < self.start + self.wide)

    def cost(self, size: int) -> float:
        """Return how many bits say which region it is: the fewest at an end of a tile whose size is a power of two."""
        if self.period is None:
            return 2 * log2(size)
        is_tile = self.period in TILES
        is_at_end = self.start == 0 or self.start + self.wide == self.period
        cost = 1 + log2(self.period) * (1 if is_tile else 2)
        cost += 2 if is_at_end else 1 + log2(self.period)
        return cost + (1 if self.wide == 1 else 1 + log2(self.period))


def find_region(hit: torch.Tensor, observations: int = 1) -> FailingRegion | None:
    """Return the region in which places of an axis fail; None where there is none. A stretch without a gap is one.

    Args:
        hit: which places fail, at least one and not all.
        observations: so many elements fail at each of them.
    """
    hit = hit.cpu()
    places = hit.nonzero().flatten()
    first, wide = int(places[0]), int(places[-1] - places[0]) + 1
    if len(places) == wide:
        return FailingRegion(first, wide)
    if len(hit) > MOST_SIZE:
        return None
    times = min(observations, MOST_OBSERVATIONS)
    head = hit[:MOST_FOLDED]
    folded = _choose([_fold(head, period) for period in _list_periods(head)], head, times)
    return _choose([_find_stretch(hit), folded], hit, times)


def _choose(regions: Iterable[FailingRegion | None], hit: torch.Tensor, times: int) -> FailingRegion | None:
    """Return the region with the most evidence; None where no one has enough."""
    size = len(hit)
    weighed = {one: weigh(hit, one.mark(size), one.cost(size), times) for one in regions if one is not None}
    best = max(weighed, key=weighed.__getitem__, default=None)
    return best if best is not None and weighed[best] >= LEAST_EVIDENCE else None


def weigh(failing: torch.Tensor, inside: torch.Tensor, cost: float, times: int = 1) -> float:
    """Return how many bits a region saves over a list of all that fails: minus infinity where it does not hold.

    Args:
        failing: what fails.
        inside: the region.
        cost: the bits that say which region it is.
        times: each counts so often.
    """
    total, fails = failing.numel(), int(failing.sum())
    has, hits = int(inside.sum()), int((failing & inside).sum())
    if not 0 < has < total or hits < LEAST_INSIDE * has or fails - hits > MOST_ELSEWHERE * fails:
        return -inf
    total, fails, has, hits = (number * times for number in (total, fails, has, hits))
    exceptions = _log2_choices(has, hits) + _log2_choices(total - has, fails - hits) + log2(fails + 1)
    return _log2_choices(total, fails) - exceptions - cost


def _find_stretch(hit: torch.Tensor) -> FailingRegion:
    """Return the stretch in which those that fail outnumber the others by the most."""
    sums = torch.cat([torch.zeros(1, dtype=torch.long), (hit.long() * 2 - 1).cumsum(0)])
    gains = sums - sums.cummin(0).values
    end = int(gains.argmax())
    start = int(sums[: end + 1].argmin())
    return FailingRegion(start, end - start)


def _list_periods(hit: torch.Tensor) -> list[int]:
    """Return the periods that may be there; none where nothing fails at these places."""
    places = hit.nonzero().flatten()
    if not len(places):
        return []
    begins = places[torch.cat([torch.ones(1, dtype=torch.bool), places.diff() > 1])]
    gaps, counts = torch.unique(begins.diff(), return_counts=True)
    common = gaps[counts.argsort(descending=True, stable=True)][:MOST_GAPS].tolist()
    return [period for period in sorted({*common, *TILES}) if period > 1 and period * LEAST_REPEATS <= len(hit)]


def _fold(hit: torch.Tensor, period: int) -> FailingRegion | None:
    """Return the one stretch of a period that mostly fails; None where there is none, or are several."""
    shares = hit[: len(hit) // period * period].reshape(-1, period).float().mean(dim=0)
    places = (shares > 0.5).nonzero().flatten()
    if not len(places) or len(places) == period:
        return None
    first, wide = int(places[0]), int(places[-1] - places[0]) + 1
    return FailingRegion(first, wide, period) if wide == len(places) else None


def _log2_choices(total: int, chosen: int) -> float:
    """Return the bits that tell which of all are chosen."""
    return (lgamma(total + 1) - lgamma(chosen + 1) - lgamma(total - chosen + 1)) / log(2)
