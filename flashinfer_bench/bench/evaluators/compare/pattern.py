"""Says in a few words what a wrong output looks like: which rows or columns differ, or what was done to all values.

A pattern is a hint for whoever looks for the bug; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import match_bits
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.regions import (
    LEAST_EVIDENCE,
    MOST_ELSEWHERE,
    FailingRegion,
    find_region,
    weigh,
)
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

MOST_ELEMENTS: Final = 1 << 24
"""No pattern is looked for in an output with more elements: it would take seconds."""
LEAST_SHARE: Final = 0.99
"""A pattern of values holds where so many of the elements fit it."""
LEAST_FAILING: Final = 0.25
"""A pattern of values is looked for where so many of the elements fail. Fewer are told by where they are. Factors of
single rows or columns count where fewer than this share of them are 1."""
FACTOR_DIGITS: Final = 4
MOST_PLACES: Final = 8
"""More places than this, without a rule in them, are counted and not listed."""
STRAY_SHARE: Final = 0.05
"""Strays are so many elements of a place at most, as a share of those that fail where most do."""
ONLY: Final = "only"
MOSTLY: Final = "mostly"
"""Stands before a pattern where some elements fail elsewhere."""
SHIFTS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""By so many places a shifted output is looked for along each axis: one, and the sizes of tiles."""
LEAST_FACTORS: Final = 4
"""Rows or columns that an output has at least, and elements in each, where a factor for each of them says anything."""


class ToldPlaces(NamedTuple):
    """Where along one axis elements fail."""

    words: str
    is_all: bool
    """No element fails elsewhere."""


def find_failing(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements fail, as booleans of the output's shape. Packed values give two elements each."""
    if not (expected.dtype.is_floating_point or is_packed(expected.dtype)):
        return ~match_bits(expected, got)
    return ~_is_near(_readable(expected), _readable(got), tolerance)


def describe_pattern(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> str | None:
    """Return what a wrong output looks like; None where no pattern is known, or nothing fails."""
    if not 1 < expected.numel() <= MOST_ELEMENTS or expected.shape != got.shape:
        return None
    failing = find_failing(expected, got, tolerance)
    if not failing.any():
        return None
    if not (expected.dtype.is_floating_point or is_packed(expected.dtype)):
        tolerance = Tolerance(0.0, 0.0)
    left, right = _readable(expected), _readable(got)
    is_rounded = tolerance.rtol == 0.0 and bool((left == right)[failing].any())  # whole numbers that float64 lacks
    if failing.float().mean() >= LEAST_FAILING and not is_rounded:
        told = next(_describe_values(left, right, tolerance), None)
        if told is not None:
            return told
    return describe_places(failing)


def describe_places(failing: torch.Tensor) -> str | None:
    """Say at which places along each axis elements fail; None where they fail at all places of every axis, or none."""
    if not failing.any():
        return None
    diagonal = _describe_diagonal(failing)
    if diagonal is not None:
        return diagonal
    told = [found for axis in range(failing.ndim) if (found := _describe_axis(failing, axis)) is not None]
    if not told:
        return None
    return f"{ONLY if all(one.is_all for one in told) else MOSTLY} {' and '.join(one.words for one in told)}"


def _describe_axis(failing: torch.Tensor, axis: int) -> ToldPlaces | None:
    """Return which places of an axis fail; None where they lie anywhere."""
    size = failing.shape[axis]
    others = [other for other in range(failing.ndim) if other != axis]
    counts = failing.flatten().byte() if failing.numel() == size else failing.sum(dim=others)
    hit = counts > 0 if failing.numel() == size else _find_hit(counts)
    if size == 1 or bool(hit.all()):
        return None
    noun = _name_axis(axis, failing.ndim)
    region = find_region(hit, observations=int(counts[hit].min()))
    if region is not None:
        inside = region.mark(size).to(hit.device)
        return ToldPlaces(_describe_region(region, size, noun), not bool(counts[~inside].any()))
    words = _list_places(hit.nonzero().flatten(), size, noun)
    return None if words is None else ToldPlaces(words, not bool(counts[~hit].any()))


def _find_hit(counts: torch.Tensor) -> torch.Tensor:
    """Return at which places elements fail. A few are left out where they are strays among many at other places.

    Args:
        counts: of each place, how many elements fail.
    """
    total = int(counts.sum())
    elements = counts.bincount() * torch.arange(int(counts.max()) + 1, device=counts.device)
    typical = int((elements.cumsum(0) * 2 < total).sum())
    hit = counts * 2 >= typical
    strays = counts[~hit].float()
    are_few = float(strays.sum()) <= MOST_ELSEWHERE * total
    return hit if are_few and float(strays.mean()) <= STRAY_SHARE * float(counts[hit].float().mean()) else counts > 0


def _describe_region(region: FailingRegion, size: int, noun: str) -> str:
    """Say a region in words."""
    many, start, wide, period = _plural(noun), region.start, region.wide, region.period
    if period is None:
        which = "the last" if start + wide == size else "the first" if start == 0 else ""
        if wide == 1:
            return f"{which} {noun.format('')}" if which else noun.format(f" {start}")
        return f"{which} {wide} {many.format('')}" if which else many.format(f" {start} to {start + wide - 1}")
    if wide == 1:
        return f"every {_ordinal(period)} {noun.format('')}, from {start}"
    which = "the first" if start == 0 else "the last" if start + wide == period else ""
    part = f"{which} {wide}" if which else f"{many.format('')} {start} to {start + wide - 1}"
    return f"{part} of every {period} {many.format('')}" if which else f"{part} of every {period}"


def _list_places(places: torch.Tensor, size: int, noun: str) -> str | None:
    """Return the numbers of a few places, or where many of them lie; None where they lie anywhere."""
    many, first, last = _plural(noun), int(places[0]), int(places[-1])
    if len(places) <= MOST_PLACES:
        return many.format(f" {', '.join(map(str, places.tolist()))}")
    return f"{len(places)} of {size} {many.format('')}, {first} to {last}" if last - first < size // 2 else None


def _describe_diagonal(failing: torch.Tensor) -> str | None:
    """Say where a square output fails beside its diagonal; None where it fails on both sides of it, or hardly."""
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
    fitting = {words: weigh(failing, side, float(len(sides))) for words, side in sides.items()}
    words = max(fitting, key=fitting.__getitem__)
    if fitting[words] < LEAST_EVIDENCE:
        return None
    return f"{MOSTLY if bool((failing & ~sides[words]).any()) else ONLY} {words}"


def _describe_values(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> Iterator[str]:
    """Yield what was done to the expected values, where one thing was done to all of them."""
    finite = left.isfinite() & right.isfinite()
    if bool((right == right.flatten()[0]).all()):
        yield f"all values are {right.flatten()[0].item():g}"
    usable = finite & (left.abs() > left[finite].abs().mean() if bool(finite.any()) else finite)
    if bool(usable.any()):
        factor = float((right[usable] / left[usable]).median())
        if factor and _fits(left * factor, right, tolerance):
            yield f"got is expected times {factor:.{FACTOR_DIGITS}g}"
        offset = float((right[usable] - left[usable]).median())
        if offset and _fits(left + offset, right, tolerance):
            yield f"got is expected plus {offset:.{FACTOR_DIGITS}g}"
    if left.ndim >= 2:
        turned = left.transpose(-1, -2)
        if left.shape[-1] > 1 and left.shape[-2] > 1 and _fits(turned.reshape(left.shape), right, tolerance):
            yield "got is expected, transposed"
    yield from _describe_shifts(left, right, tolerance)
    yield from _describe_factors(left, right, tolerance)
    if _fits(left.flatten().sort().values, right.flatten().sort().values, tolerance):
        yield "got has the expected values in another order"


def _describe_shifts(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> Iterator[str]:
    """Yield by how many places along which axis the output is shifted."""
    for axis, size in enumerate(left.shape):
        noun = _name_axis(axis, left.ndim)
        for by in (sign * far for far in SHIFTS if far <= size // 2 and size > 2 for sign in (1, -1)):
            kept = left.narrow(axis, max(0, -by), size - abs(by))
            if _fits(kept, right.narrow(axis, max(0, by), size - abs(by)), tolerance):
                one = f"to the {'next' if by > 0 else 'previous'} {noun.format('')}"
                far = f"{'on' if by > 0 else 'back'} by {abs(by)} {_plural(noun).format('')}"
                yield f"got is expected, shifted {one if abs(by) == 1 else far}"


def _describe_factors(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> Iterator[str]:
    """Yield whether each row, or each column, has a factor of its own: a norm or a weight is missing."""
    if left.ndim < 2 or not bool((left.isfinite() & right.isfinite()).all()):
        return
    rows = [one.reshape(-1, one.shape[-1]) for one in (left, right)]
    if min(rows[0].shape) < LEAST_FACTORS:
        return
    for dim, noun in ((1, "row"), (0, "column")):
        factors = (rows[0] * rows[1]).sum(dim, keepdim=True) / (rows[0] * rows[0]).sum(dim, keepdim=True)
        are_ones = _is_near(torch.ones_like(factors), factors, tolerance).float().mean()
        if are_ones < LEAST_FAILING and _fits(rows[0] * factors, rows[1], tolerance):
            low, high = float(factors.min()), float(factors.max())
            yield f"each {noun} is expected times a factor of its own, {low:.3g} to {high:.3g}"


def _fits(wanted: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> bool:
    return bool(_is_near(wanted, got, tolerance).float().mean() >= LEAST_SHARE)


def _is_near(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    same = (left == right) | (left.isnan() & right.isnan())
    error = (right - left).abs()
    if tolerance.is_sum:
        near = error <= tolerance.atol + tolerance.rtol * left.abs()
    else:
        near = (error <= tolerance.atol) | (error <= tolerance.rtol * left.abs())
    return same | (near & left.isfinite() & right.isfinite())


def _readable(values: torch.Tensor) -> torch.Tensor:
    if is_packed(values.dtype):
        return unpack(values.contiguous().reshape(-1)).reshape(*values.shape[:-1], values.shape[-1] * 2).float()
    if values.dtype == torch.float64 or not values.dtype.is_floating_point:
        return values.double()
    return values.float()


def _name_axis(axis: int, count: int) -> str:
    """Return the word for a place along an axis; `{}` stands where its number goes, with a blank before it."""
    if axis == count - 1 and count > 1:
        return "column{}"
    if axis == count - 2 and count == 2:
        return "row{}"
    return "element{}" if count == 1 else f"index{{}} of axis {axis}"


def _plural(noun: str) -> str:
    return noun.replace("index{}", "indices{}") if noun.startswith("index") else noun.replace("{}", "s{}")


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
