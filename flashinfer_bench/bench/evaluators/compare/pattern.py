"""Says in a few words what a wrong output looks like: what was done to all values, or at which places they differ.

A pattern is a hint for whoever looks for the bug; nothing is decided by it. Values are looked at if many elements fail:
a factor, an offset, a shift, another order. Else places are: along each axis a region, which is one stretch of places
or the same stretch of each period (a tile), or a few numbers; or a side of the diagonal. Most places of a region fail,
and hardly any others do, so that a wrong column counts though some of its elements are right by chance. A region with
gaps has several places that fail, and not most of all, so that places that fail at random have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import find_failing, read_values
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, find_beyond

MOST_ELEMENTS: Final = 1 << 24
"""No pattern is looked for in an output with more elements: it would take seconds."""
MOST_PLACES: Final = 1 << 22
"""Only a stretch without a gap is looked for along a longer axis."""
LEAST_SHARE: Final = 0.99
"""Share of the elements that fit a pattern of values, at least."""
LEAST_FAILING: Final = 0.25
"""Patterns of values are looked for if this share of the elements fails. Factors of single rows or columns count if
less than this share of them is 1."""
LEAST_INSIDE: Final = 0.8
"""Share of a region's places that fail, at least."""
MOST_ELSEWHERE: Final = 0.1
"""Share of all that fail that lies elsewhere, at most."""
MOST_OF_ALL: Final = 0.6
"""Share of all places that a region with gaps has, at most."""
LEAST_HITS: Final = 4
"""Places that fail in a region with gaps, at least."""
STRAY_SHARE: Final = 0.05
"""Elements of a place that are strays, at most, as a share of those that fail where most do."""
MOST_LISTED: Final = 8
"""More places than this, without a rule in them, are counted and not listed."""
TILES: Final = tuple(2**power for power in range(1, 13))
"""Periods that are always tried."""
MOST_GAPS: Final = 8
"""Distances between stretches that are tried as periods, the most common ones first."""
SHIFTS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""Places by which a shifted output is looked for along each axis: one, and the sizes of tiles."""
LEAST_FACTORS: Final = 4
"""Rows or columns of an output, and elements in each, for a factor for each of them to say anything."""
ONLY, MOSTLY = "only", "mostly"
"""Stands before places; the second one if some elements fail elsewhere."""


class Region(NamedTuple):
    """Places of an axis: one stretch of them, or the same stretch of each period."""

    start: int
    wide: int
    period: int | None = None

    def mark(self, size: int) -> torch.Tensor:
        """Return which places of an axis lie in the region."""
        places = torch.arange(size) % (self.period or size)
        return (places >= self.start) & (places < self.start + self.wide)

    def describe(self, size: int, noun: str) -> str:
        """Return the region in words; `noun` has a `{}` for the number."""
        many, start, end = _plural(noun), self.start, self.start + self.wide
        which = "the first" if start == 0 else "the last" if end == (self.period or size) else ""
        numbers = many.format(f" {start} to {end - 1}")
        if self.period is not None:
            if self.wide == 1:
                return f"every {_ordinal(self.period)} {noun.format('')}, from {start}"
            every = f"of every {self.period}"
            return f"{which} {self.wide} {every} {many.format('')}" if which else f"{numbers} {every}"
        if self.wide == 1:
            which = "the last" if end == size else which
            return f"{which} {noun.format('')}" if which else noun.format(f" {start}")
        return f"{which} {self.wide} {many.format('')}" if which else numbers


def describe_pattern(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Return what a wrong output looks like; None if no pattern is known, or nothing fails."""
    if not 1 < expected.numel() <= MOST_ELEMENTS or expected.shape != got.shape:
        return None
    failing = find_failing(expected, got, tolerance)
    if not failing.any():
        return None
    left, right = read_values(expected), read_values(got)
    is_exact = not (expected.dtype.is_floating_point or is_packed(expected.dtype))
    is_rounded = is_exact and bool((left == right)[failing].any())  # whole numbers that float64 lacks
    if failing.float().mean() >= LEAST_FAILING and not is_rounded:
        words = _describe_values(left, right, Tolerance(0.0, 0.0) if is_exact else tolerance)
        if words is not None:
            return words
    return describe_places(failing)


def describe_places(failing: torch.Tensor) -> str | None:
    """Say at which places along each axis elements fail; None if they fail at all places of every axis, or none."""
    if not failing.any():
        return None
    diagonal = _describe_diagonal(failing)
    if diagonal is not None:
        return diagonal
    told = [found for axis in range(failing.ndim) if (found := _describe_axis(failing, axis)) is not None]
    if not told:
        return None
    return f"{ONLY if all(is_all for _, is_all in told) else MOSTLY} {' and '.join(words for words, _ in told)}"


def find_region(hit: torch.Tensor) -> Region | None:
    """Return the region in which places of an axis fail; None if there is none. A stretch without a gap is one.

    Args:
        hit: which places fail, at least one and not all.
    """
    hit = hit.cpu()
    places = hit.nonzero().flatten()
    first, wide = int(places[0]), int(places[-1] - places[0]) + 1
    if len(places) == wide:
        return Region(first, wide)
    if len(hit) > MOST_PLACES:
        return None
    begins = places[torch.cat([torch.ones(1, dtype=torch.bool), places.diff() > 1])]
    gaps, counts = torch.unique(begins.diff(), return_counts=True)
    common = gaps[counts.argsort(descending=True, stable=True)][:MOST_GAPS].tolist()
    periods = [period for period in sorted({*common, *TILES}) if 1 < period <= len(hit) // 2]
    regions = [_find_stretch(hit), *(found for period in periods if (found := _fold(hit, period)) is not None)]
    fitting = [(fit, one) for one in regions if (fit := _fit(hit, one.mark(len(hit)))) is not None]
    return max(fitting, key=lambda pair: pair[0])[1] if fitting else None


def _find_stretch(hit: torch.Tensor) -> Region:
    """Return the stretch in which places that fail outnumber the others by the most."""
    sums = torch.cat([torch.zeros(1, dtype=torch.long), (hit.long() * 2 - 1).cumsum(0)])
    end = int((sums - sums.cummin(0).values).argmax())
    start = int(sums[: end + 1].argmin())
    return Region(start, end - start)


def _fold(hit: torch.Tensor, period: int) -> Region | None:
    """Return the one stretch of a period that mostly fails; None if there is none, or are several."""
    shares = hit[: len(hit) // period * period].reshape(-1, period).float().mean(dim=0)
    places = (shares > 0.5).nonzero().flatten()
    if not 0 < len(places) < period:
        return None
    first, wide = int(places[0]), int(places[-1] - places[0]) + 1
    return Region(first, wide, period) if wide == len(places) else None


def _fit(failing: torch.Tensor, inside: torch.Tensor) -> int | None:
    """Return minus the number of places for which a region is wrong; None if it does not hold."""
    fails, has, hits = int(failing.sum()), int(inside.sum()), int((failing & inside).sum())
    is_most = hits >= LEAST_INSIDE * has and fails - hits <= MOST_ELSEWHERE * fails
    return 2 * hits - has - fails if is_most and hits >= LEAST_HITS and has <= MOST_OF_ALL * inside.numel() else None


def _describe_axis(failing: torch.Tensor, axis: int) -> tuple[str, bool] | None:
    """Return which places of an axis fail, and whether no element fails elsewhere; None if they lie anywhere."""
    counts = failing.movedim(axis, 0).reshape(failing.shape[axis], -1).sum(dim=1)
    size, hit = len(counts), _find_hit(counts)
    if size == 1 or bool(hit.all()):
        return None
    noun = _name_axis(axis, failing.ndim)
    region = find_region(hit)
    if region is not None:
        return region.describe(size, noun), not bool(counts[~region.mark(size).to(hit.device)].any())
    many, places = _plural(noun), hit.nonzero().flatten().tolist()
    if len(places) <= MOST_LISTED:
        words = many.format(f" {', '.join(map(str, places))}")
    elif places[-1] - places[0] < size // 2:
        words = f"{len(places)} of {size} {many.format('')}, {places[0]} to {places[-1]}"
    else:
        return None
    return words, not bool(counts[~hit].any())


def _find_hit(counts: torch.Tensor) -> torch.Tensor:
    """Return at which places elements fail, by the count of each; strays among many at other places are left out."""
    ordered = counts.sort().values
    sums = ordered.cumsum(0)
    typical = ordered[int((sums * 2 < sums[-1]).sum())]
    hit = counts * 2 >= typical
    strays = counts[~hit].float()
    are_few = float(strays.sum()) <= MOST_ELSEWHERE * float(sums[-1])
    return hit if are_few and float(strays.mean()) <= STRAY_SHARE * float(counts[hit].float().mean()) else counts > 0


def _describe_diagonal(failing: torch.Tensor) -> str | None:
    """Say where a square output fails beside its diagonal; None if it fails on both sides of it, or hardly."""
    if failing.ndim != 2 or failing.shape[0] != failing.shape[1] or len(failing) < LEAST_FACTORS:
        return None
    ones = torch.ones_like(failing)
    sides = {
        "on the diagonal": ones.triu() & ones.tril(),
        "above the diagonal": ones.triu(1),
        "on and above the diagonal": ones.triu(),
        "below the diagonal": ones.tril(-1),
        "on and below the diagonal": ones.tril(),
    }
    fitting = [(fit, words) for words, side in sides.items() if (fit := _fit(failing, side)) is not None]
    if not fitting:
        return None
    words = max(fitting)[1]
    return f"{MOSTLY if bool((failing & ~sides[words]).any()) else ONLY} {words}"


def _describe_values(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Return what was done to the expected values, if one thing was done to nearly all of them."""
    if bool((right == right.flatten()[0]).all()):
        return f"all values are {right.flatten()[0].item():g}"
    for words, wanted, given in _candidates(left, right, tolerance):
        if _share_near(wanted, given, tolerance) >= LEAST_SHARE:
            return words
    return None


def _candidates(
    left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield what may have been done, what it would give, and what was given."""
    finite = left.isfinite() & right.isfinite()
    usable = finite & (left.abs() > left[finite].abs().mean() if bool(finite.any()) else finite)
    if bool(usable.any()):
        factor = float((right[usable] / left[usable]).median())
        offset = float((right[usable] - left[usable]).median())
        if factor:
            yield f"got is expected times {factor:.4g}", left * factor, right
        if offset:
            yield f"got is expected plus {offset:.4g}", left + offset, right
    if left.ndim >= 2 and min(left.shape[-2:]) > 1:
        yield "got is expected, transposed", left.transpose(-1, -2).reshape(left.shape), right
    for axis, size in enumerate(left.shape):
        noun = _name_axis(axis, left.ndim)
        for by in (sign * far for far in SHIFTS if far <= size // 2 and size > 2 for sign in (1, -1)):
            far = f"{'on' if by > 0 else 'back'} by {abs(by)} {_plural(noun).format('')}"
            far = f"to the {'next' if by > 0 else 'previous'} {noun.format('')}" if abs(by) == 1 else far
            kept, given = (side.narrow(axis, max(0, at), size - abs(by)) for side, at in ((left, -by), (right, by)))
            yield f"got is expected, shifted {far}", kept, given
    rows = [one.reshape(-1, one.shape[-1]) for one in (left, right)] if left.ndim >= 2 else []
    if rows and min(rows[0].shape) >= LEAST_FACTORS and bool(finite.all()):  # a norm or a weight is missing
        for dim, noun in ((1, "row"), (0, "column")):
            factors = (rows[0] * rows[1]).sum(dim, keepdim=True) / rows[0].square().sum(dim, keepdim=True)
            if _share_near(torch.ones_like(factors), factors, tolerance) < LEAST_FAILING:
                between = f"{float(factors.min()):.3g} to {float(factors.max()):.3g}"
                yield f"each {noun} is expected times a factor of its own, {between}", rows[0] * factors, rows[1]
    yield "got has the expected values in another order", left.flatten().sort().values, right.flatten().sort().values


def _share_near(wanted: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> float:
    return 1.0 - float(find_beyond(wanted, got, tolerance).float().mean())


def _name_axis(axis: int, count: int) -> str:
    """Return the word for a place along an axis; `{}` stands where its number goes, with a blank before it."""
    if count == 1:
        return "element{}"
    if axis == count - 1:
        return "column{}"
    return "row{}" if count == 2 else f"index{{}} of axis {axis}"


def _plural(noun: str) -> str:
    return noun.replace("index{}", "indices{}") if noun.startswith("index") else noun.replace("{}", "s{}")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
