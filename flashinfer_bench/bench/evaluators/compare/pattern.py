"""Says in a few words what a wrong output looks like: what was done to all values, or at which places they differ.

A pattern is a hint for the author of a solution; nothing is decided by it. If many elements fail, one change of all
values is looked for: a factor, an offset, a shift, another order. Else the places are described along each axis, as a
region (one stretch of places, or the same stretch of each period) or as a few numbers; or as a side of the diagonal.
Most places of a region fail, and hardly any others do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import find_failing, is_whole, read_values
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, find_beyond

MOST_ELEMENTS: Final = 1 << 24
"""No pattern is looked for in an output with more elements: it would take seconds."""
LEAST_SHARE: Final = 0.99
"""Share of the elements that fit a pattern of values, at least."""
LEAST_FAILING: Final = 0.25
"""Patterns of values are looked for if this share of the elements fails."""
MOST_WRONG: Final = 0.2
"""Places of an axis for which a region is wrong, at most, as a share of those that fail."""
MOST_ELSEWHERE: Final = 0.1
"""A place counts if more than this share of the elements fail that fail at the worst place. A side of the diagonal has
all that fails but this share."""
MOST_OF_PERIOD: Final = 0.6
"""Share of each period that fails, at most."""
LEAST_HITS: Final = 4
"""Places that fail in a region with gaps, at least."""
MOST_LISTED: Final = 8
"""More places than this, without a rule in them, are not listed."""
SHIFTS: Final = tuple(2**power for power in range(8))
"""Places by which a shifted output is looked for along each axis: one, and the sizes of tiles."""
TILES: Final = tuple(2**power for power in range(1, 13))
"""Periods that are tried, besides the most common distance between stretches."""


def describe_pattern(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Return what a wrong output looks like; None if no pattern is known, or nothing fails."""
    if not 1 < expected.numel() <= MOST_ELEMENTS or expected.shape != got.shape:
        return None
    failing = find_failing(expected, got, tolerance)
    if not failing.any():
        return None
    left, right = read_values(expected), read_values(got)
    is_rounded = is_whole(expected) and bool((left == right)[failing].any())  # whole numbers that float64 lacks
    if failing.float().mean() >= LEAST_FAILING and not is_rounded:
        if bool((right == right.flatten()[0]).all()):
            return f"all values are {right.flatten()[0].item():g}"
        limits = Tolerance(0.0, 0.0) if is_whole(expected) else tolerance
        for words, wanted, given in _candidates(left, right):
            if float(find_beyond(wanted, given, limits).float().mean()) <= 1 - LEAST_SHARE:
                return words
    return describe_places(failing)


def describe_places(failing: torch.Tensor) -> str | None:
    """Say at which places along each axis elements fail; None if they fail at all places of every axis, or none."""
    if not failing.any():
        return None
    found = _describe_diagonal(failing)
    found += [] if found else [one for axis in range(failing.ndim) if (one := _describe_axis(failing, axis))]
    how = "only" if all(is_all for _, is_all in found) else "mostly"
    return f"{how} {' and '.join(words for words, _ in found)}" if found else None


Places = tuple[str, bool]
"""Places in words, and whether no element fails elsewhere."""


def _describe_diagonal(failing: torch.Tensor) -> list[Places]:
    if failing.ndim != 2 or failing.shape[0] != failing.shape[1] or len(failing) < LEAST_HITS:
        return []
    count = int(failing.sum())
    for words, side in (
        ("on", failing.diagonal().diag_embed()),
        ("above", failing.triu(1)),
        ("below", failing.tril(-1)),
    ):
        # Half of a side's places fail, at least: few places at random are no side.
        places = len(failing) * (1 if words == "on" else (len(failing) - 1) / 2)
        if int(side.sum()) >= max(count * (1 - MOST_ELSEWHERE), places / 2):
            return [(f"{words} the diagonal", int(side.sum()) == count)]
    return []


def _describe_axis(failing: torch.Tensor, axis: int) -> Places | None:
    """Return which places of an axis fail; None if they lie anywhere."""
    counts = failing.movedim(axis, 0).reshape(failing.shape[axis], -1).sum(dim=1).cpu()
    size, noun = len(counts), _name_axis(axis, failing.ndim)
    hit = counts > counts.max() * MOST_ELSEWHERE
    if bool(hit.all()):
        return None
    places, many = hit.nonzero().flatten(), _plural(noun)
    period, inside = _find_period(hit, places)
    if period:
        first, wide, marked = inside[0], len(inside), torch.isin(torch.arange(size) % period, torch.tensor(inside))
        which = "the first" if first == 0 else "the last" if inside[-1] == period - 1 else ""
        every = f" of every {period}" if period < size else ""
        if wide == 1 and every:
            words = f"every {_ordinal(period)} {noun.format('')}, from {first}"
        elif wide == 1:
            words = f"{which} {noun.format('')}" if which else noun.format(f" {first}")
        else:
            words = (
                f"{which} {wide}{every} {many.format('')}" if which else many.format(f" {first} to {inside[-1]}{every}")
            )
        return words, not bool(counts[~marked].any())
    if len(places) > MOST_LISTED or bool(counts[~hit].any()):
        return None
    return many.format(f" {', '.join(map(str, places.tolist()))}"), True


def _find_period(hit: torch.Tensor, places: torch.Tensor) -> tuple[int, list[int]]:
    """Return a period, and the stretch of each period that fails; the whole axis is one. A period of 0: none fits."""
    size, found, least = len(hit), (0, [0]), MOST_WRONG * len(places) + 0.5
    gaps = places[torch.cat([torch.ones(1, dtype=torch.bool), places.diff() > 1])].diff()
    for period in (size, *TILES, *gaps.sort().values[len(gaps) // 2 :].tolist()[:1]):
        if period != size and (not 1 < period <= size // 2 or len(places) < LEAST_HITS):
            continue
        shares = hit[: size // period * period].view(-1, period).float().mean(dim=0)
        inside = (shares > 0.5).nonzero().flatten()
        most = period - 1 if period == size else period * MOST_OF_PERIOD
        if 0 < len(inside) <= most and int(inside[-1] - inside[0]) + 1 == len(inside):
            wrong = int((hit != torch.isin(torch.arange(size) % period, inside)).sum())
            if wrong < least:
                found, least = (period, inside.tolist()), wrong
    return found


def _candidates(left: torch.Tensor, right: torch.Tensor) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
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
    yield "got has the expected values in another order", left.flatten().sort().values, right.flatten().sort().values


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
