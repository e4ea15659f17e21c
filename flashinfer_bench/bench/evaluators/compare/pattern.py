"""Says in a few words what a wrong output looks like: which rows or columns differ, or what was done to all values.

A pattern is a hint for whoever looks for the bug; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
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
SHIFTS: Final = (1, 2, 4, 8, 16, 32, 64, 128)
"""By so many places a shifted output is looked for along each axis: one, and the sizes of tiles."""
LEAST_FACTORS: Final = 4
"""Rows or columns that an output has at least, and elements in each, where a factor for each of them says anything."""


def find_failing(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements fail, as booleans of the output's shape. Packed values give two elements each."""
    left, right = _readable(expected), _readable(got)
    if not (expected.dtype.is_floating_point or is_packed(expected.dtype)):
        return left != right
    return ~_is_near(left, right, tolerance)


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
    if failing.float().mean() >= LEAST_FAILING:
        told = next(_describe_values(left, right, tolerance), None)
        if told is not None:
            return told
    return describe_places(failing)


def describe_places(failing: torch.Tensor) -> str | None:
    """Say at which places along each axis elements fail; None where they fail at all places of every axis."""
    diagonal = _describe_diagonal(failing)
    if diagonal is not None:
        return diagonal
    told = []
    for axis in range(failing.ndim):
        size = failing.shape[axis]
        others = [other for other in range(failing.ndim) if other != axis]
        hit = failing.any(dim=others) if others else failing
        places = hit.nonzero().flatten().tolist()
        if size > 1 and len(places) < size:
            told += _describe_axis(places, size, _name_axis(axis, failing.ndim))
    return f"only {' and '.join(told)}" if told else None


def _describe_axis(places: Sequence[int], size: int, noun: str) -> list[str]:
    """Return which places of an axis fail; nothing where they lie anywhere."""
    first, last = places[0], places[-1]
    if len(places) == 1:
        where = "the last" if first == size - 1 else "the first" if first == 0 else ""
        return [where + " " + noun.format("") if where else noun.format(f" {first}")]
    step = places[1] - first
    many = _plural(noun)
    if list(places) == list(range(first, last + 1)):
        which = f"the last {len(places)}" if last == size - 1 else f"the first {len(places)}" if first == 0 else ""
        return [which + " " + many.format("") if which else many.format(f" {first} to {last}")]
    if len(places) > 2 and list(places) == list(range(first, size, step)):
        return [f"every {_ordinal(step)} {noun.format('')}, from {first}"]
    blocks = _describe_blocks(places, size, many.format(""))
    if blocks is not None:
        return [blocks]
    if len(places) <= MOST_PLACES:
        return [many.format(f" {', '.join(map(str, places))}")]
    return [f"{len(places)} of {size} {many.format('')}, {first} to {last}"] if last - first < size // 2 else []


def _describe_blocks(places: Sequence[int], size: int, many: str) -> str | None:
    """Return which part of each block of an axis fails, as of each tile; None where it is not the same in each."""
    breaks = [place for place, after in pairwise(places) if after != place + 1]
    if not breaks:
        return None
    wide = breaks[0] - places[0] + 1
    period = next(after for place, after in pairwise(places) if after != place + 1) - places[0]
    start = places[0] % period
    if wide < 2 or list(places) != [place for place in range(size) if start <= place % period < start + wide]:
        return None
    which = "the first" if start == 0 else "the last" if start + wide == period else None
    part = f"{which} {wide}" if which else f"{many} {start} to {start + wide - 1}"
    return f"{part} of every {period} {many}" if which else f"{part} of every {period}"


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
    for words, side in sides.items():
        if not bool((failing & ~side).any()) and bool(failing[side].float().mean() >= LEAST_SHARE):
            return f"only {words}"
    return None


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
