"""Says in a few words what a wrong output looks like: which rows or columns differ, or what was done to all values.

A pattern is a hint for whoever looks for the bug; nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

MOST_ELEMENTS: Final = 1 << 24
"""No pattern is looked for in an output with more elements: it would take seconds."""
LEAST_SHARE: Final = 0.99
"""A pattern of values holds where so many of the elements fit it."""
LEAST_FAILING: Final = 0.25
"""A pattern of values is looked for where so many of the elements fail. Fewer are told by where they are."""
FACTOR_DIGITS: Final = 4
MOST_PLACES: Final = 8
"""More places than this, without a rule in them, are counted and not listed."""


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
        return [f"{where} {noun}" if where else f"{noun} {first}"]
    step = places[1] - first
    if list(places) == list(range(first, last + 1)):
        which = f"the last {len(places)}" if last == size - 1 else f"the first {len(places)}" if first == 0 else ""
        return [f"{which} {_plural(noun)}" if which else f"{_plural(noun)} {first} to {last}"]
    if len(places) > 2 and list(places) == list(range(first, size, step)):
        return [f"every {_ordinal(step)} {noun}, from {first}"]
    if len(places) <= MOST_PLACES:
        return [f"{_plural(noun)} {', '.join(map(str, places))}"]
    return [f"{len(places)} of {size} {_plural(noun)}, {first} to {last}"] if last - first < size // 2 else []


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
    for axis, size in enumerate(left.shape):
        for by in (1, -1):
            if size > 2:
                kept, moved = left.narrow(axis, max(0, -by), size - 1), right.narrow(axis, max(0, by), size - 1)
                if _fits(kept, moved, tolerance):
                    where = f"{'next' if by > 0 else 'previous'} {_name_axis(axis, left.ndim)}"
                    yield f"got is expected, shifted to the {where}"
    if _fits(left.flatten().sort().values, right.flatten().sort().values, tolerance):
        yield "got has the expected values in another order"


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
    if axis == count - 1 and count > 1:
        return "column"
    return "row" if axis == count - 2 and count == 2 else "element" if count == 1 else f"index of axis {axis}"


def _plural(noun: str) -> str:
    return noun.replace("index", "indices") if noun.startswith("index") else f"{noun}s"


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
