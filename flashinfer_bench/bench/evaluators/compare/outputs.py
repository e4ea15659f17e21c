"""Compares an output with the expected output in chunks, with torch. This works for every dtype on every device,
without converting a whole output at once.

Integers and booleans are compared bit by bit, float64 in float64, and all other floats in float32. A quick pass assumes
that all floats are finite and match. If this is untrue, a second pass examines all chunks closely. Each pass reads the
results of all chunks in one transfer. `tolerance.py` decides on the results.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.tolerance import (
    WINDOW,
    Comparison,
    Element,
    Tolerance,
    bounds_of,
    find_beyond,
    match_bits,
)

CHUNK_ELEMENTS: Final = {"cpu": 1 << 15, "cuda": 1 << 22}
"""Maximum elements that are compared at once, by device type. On a CPU torch uses one thread for chunks of up to this
size. On a GPU a chunk of this size takes less than 200 MB of extra memory. Each index in a chunk is exact in
float32."""
ZERO: Final = 2.0**-127
"""Largest magnitude that counts as zero: the smallest value of float8_e8m0fnu, which has no zero."""


class _Figures(NamedTuple):
    """Results for a chunk, as tensors or floats. Results of the quick pass are valid only if all elements are finite
    and match."""

    error: Any
    """Largest absolute error."""
    relative: Any
    """Largest relative error."""
    largest: Any
    """Largest finite magnitude that was expected."""
    score: Any
    """Largest error in multiples of its bound."""
    index: Any
    """Index of the element with the largest `score`."""
    expected: Any
    """The expected value of that element."""
    got: Any
    failed: Any = 0.0
    nonfinite: Any = 0.0
    """Elements that fail because the expected or the actual value is not finite."""
    unwritten: Any = -1.0
    """Index of a window that seems unwritten; -1 if there is none."""
    shared: Any = 0.0
    """Elements that are zero in both outputs, or nan in both outputs."""


def compare(
    expected: torch.Tensor,
    got: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: str = "output",
) -> Comparison:
    """Compare an output with the expected output, which has the same shape and dtype.

    Args:
        expected: the reference's output.
        got: the solution's output. A bool output may be given as its bytes; a byte other than 0 and 1 is wrong.
        tolerance: the limits for errors.
        output: the output's name for messages.
    """
    if not expected.numel():
        return Comparison(output, tolerance)
    left, right = expected.contiguous().reshape(-1), got.contiguous().reshape(-1)
    is_exact, width = is_whole(expected), 2 if is_packed(expected.dtype) else 1
    size = CHUNK_ELEMENTS.get(left.device.type, CHUNK_ELEMENTS["cpu"]) // width
    size = max(WINDOW, size // WINDOW * WINDOW)
    chunks = list(zip(left.split(size), right.split(size), strict=True))  # type: ignore[no-untyped-call] # torch's own
    found = [] if is_exact else _bring([_check_quickly(*chunk, tolerance) for chunk in chunks])
    if is_exact or not all(math.isfinite(one.error + one.largest) and one.score <= 1 for one in found):
        found = _bring([_check_closely(*chunk, tolerance) for chunk in chunks])
    number, worst = max(enumerate(found), key=lambda pair: pair[1].score)
    at = number * size * width + int(worst.index)
    wanted, given = worst.expected, worst.got
    if is_exact:  # a float cannot hold every integer
        wanted, given = (int(_bytes_of_bool(side[at]).item()) for side in (left, right))
    off = float(abs(given - wanted))
    off = off if off == off else math.inf if worst.score > 1 else 0.0
    unwritten = next(
        (at * size * width + int(one.unwritten) for at, one in enumerate(found) if one.unwritten >= 0), None
    )
    shape = (*expected.shape[:-1], expected.shape[-1] * width) if width > 1 else tuple(expected.shape)
    nonfinite = sum(one.nonfinite for one in found)
    return Comparison(
        output=output,
        tolerance=tolerance,
        elements=expected.numel() * width,
        mismatched=int(sum(one.failed for one in found)),
        nonfinite_mismatched=int(nonfinite),
        max_abs_error=math.inf if nonfinite else max(off if is_exact else 0.0, *(one.error for one in found)),
        max_rel_error=math.inf if nonfinite else max(one.relative for one in found),
        max_expected=max(one.largest for one in found),
        worst=Element(_unravel(at, shape), wanted, given, off),
        unwritten_at=None if unwritten is None else _unravel(unwritten, shape),
        shared_zeros=int(sum(one.shared for one in found)),
        is_exact=is_exact,
    )


def find_failing(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return which elements fail, as booleans of the output's shape. A packed value counts as two elements."""
    if is_whole(expected):
        return ~match_bits(expected, got)
    return find_beyond(read_values(expected), read_values(got), tolerance)


def read_values(values: torch.Tensor) -> torch.Tensor:
    """Return values in the dtype for comparisons: float32 for floats of at most 32 bits, else float64."""
    if is_packed(values.dtype):
        return unpack(values.contiguous().reshape(-1)).reshape(*values.shape[:-1], values.shape[-1] * 2)
    if values.dtype == torch.float64 or not values.dtype.is_floating_point:
        return _bytes_of_bool(values).double()
    return values.float()


def is_whole(values: torch.Tensor) -> bool:
    """Return whether an output has whole numbers or bools, which have no tolerance."""
    return not (values.dtype.is_floating_point or values.dtype.is_complex or is_packed(values.dtype))


def _bring(found: list[torch.Tensor]) -> list[_Figures]:
    """Read the results of all chunks in one transfer."""
    return [_Figures(*line) for line in torch.stack(found).tolist()]


def _check_quickly(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return the largest errors of a chunk of floats, and the index of the worst element."""
    expected, got = read_values(left), read_values(right)
    error, magnitude = (got - expected).abs_(), expected.abs()
    worst, at = (error / bounds_of(magnitude, tolerance)).max(dim=0)
    relative = (error / magnitude).nan_to_num_(nan=0.0, posinf=0.0).max()
    return torch.stack(
        [error.max(), relative, magnitude.max(), worst, at.to(error.dtype), expected.take(at), got.take(at)]
    )


def _check_closely(left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Return the results for a chunk: counts, largest errors, and the index of the worst element."""
    expected, got = read_values(left), read_values(right)
    failed, finite = find_failing(left, right, tolerance), expected.isfinite()
    # The difference has no meaning if a value is nan or infinite.
    error, magnitude = (got - expected).abs_(), torch.where(finite, expected.abs(), 0.0)
    error = torch.where(error.isnan(), torch.where(failed, math.inf, 0.0), error)
    if is_whole(left):
        score = torch.where(failed, error.clamp(min=2.0), 0.0)
    else:
        scaled = (error / bounds_of(magnitude, tolerance)).clamp(max=torch.finfo(error.dtype).max)
        score = torch.where(finite & ~error.isinf(), scaled, error)  # only nan and infinity are infinitely wrong
    both = (expected.isnan() & got.isnan()) | ((expected.abs() <= ZERO) & (got.abs() <= ZERO))
    worst, at = score.max(dim=0)
    figures = _Figures(
        error=error.max(),
        relative=(error / magnitude).nan_to_num_(nan=0.0, posinf=0.0).max(),
        largest=magnitude.max(),
        score=worst,
        index=at,
        expected=expected.take(at),
        got=got.take(at),
        failed=failed.sum(),
        nonfinite=(failed & ~(finite & got.isfinite())).sum(),
        unwritten=_first_unwritten(got, failed) if tolerance.by_ratio else torch.full_like(at, -1),
        shared=both.sum() if tolerance.ignores_shared_zeros else torch.zeros_like(at),
    )
    return torch.stack([one.to(error.dtype) for one in figures])


def _first_unwritten(got: torch.Tensor, failed: torch.Tensor) -> torch.Tensor:
    """Return the index of the first window that seems unwritten; -1 if there is none."""
    whole = got.numel() // WINDOW * WINDOW
    if whole == 0:
        return torch.full((), -1, device=got.device)
    values, wrong = got[:whole].view(-1, WINDOW), failed[:whole].view(-1, WINDOW)
    suspicious = (values == values[:, :1]).all(dim=1) & (wrong.sum(dim=1) * 2 >= WINDOW)
    return torch.where(suspicious.any(), suspicious.to(torch.uint8).argmax() * WINDOW, -1)


def _bytes_of_bool(values: torch.Tensor) -> torch.Tensor:
    """Return booleans as their bytes, and other values unchanged. As a boolean, every byte except 0 would be true."""
    return values.view(torch.uint8) if values.dtype == torch.bool else values


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, np.unravel_index(at, shape)))  # torch's function would import sympy first
