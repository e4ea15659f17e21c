"""Compare an output with the expected one.

`rule` decides. Three measure, and find the same: `at_once` needs the fewest operations and transfers, `chunks` is
faster for large outputs on a CPU, and `fused`, one kernel, for large outputs on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.at_once import Worst, measure_at_once
from flashinfer_bench.bench.evaluators.compare.chunks import (
    CHUNK_ELEMENTS,
    bring_small,
    measure_chunks,
    read_element,
    score_elements,
)
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.compare.rule import Comparison, Element, Findings, Tolerance, explain_nonfinite

FUSED_FROM: Final = 1 << 24
"""Elements of an output on a GPU from which on the fused kernel is used. Smaller outputs take less than 3 ms in chunks,
and compiling the kernel takes a second."""
COUNTED_AT_ONCE: Final = 1 << 24
"""Elements that are looked at at once for shared zeros; it bounds the memory that this takes."""
E8M0: Final[torch.dtype | None] = getattr(torch, "float8_e8m0fnu", None)


def compare(
    expected: torch.Tensor,
    got: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: str = "output",
    chunk_elements: int | None = None,
) -> Comparison:
    """Compare an output with the expected one of the same shape and dtype.

    Args:
        expected: what the reference gave.
        got: what the solution gave; of a bool output it may be the bytes, and a byte other than 0 and 1 is wrong.
        tolerance: what decides.
        output: the output's name for messages.
        chunk_elements: where given, chunks of this many elements are compared, never all at once and never by the
            fused kernel; the result is the same.
    """
    left, right = bring_small(expected.contiguous().reshape(-1), got.contiguous().reshape(-1))
    if not left.numel():
        return Comparison(output, tolerance, 0, 0, 0, 0.0, 0.0, 0.0, None, None)
    found, worst = _measure(left, right, tolerance, chunk_elements)
    packed = is_packed(expected.dtype)
    is_exact = not (packed or expected.dtype.is_floating_point)
    if is_exact and found.mismatched:
        wanted, given = (_whole_number(side[found.worst_at]) for side in (left, right))
        worst = Worst(wanted, given, float(abs(given - wanted)))
    shape = (*expected.shape[:-1], expected.shape[-1] * 2) if packed else tuple(expected.shape)
    return Comparison(
        output=output,
        tolerance=tolerance,
        elements=left.numel() * (2 if packed else 1),
        mismatched=found.mismatched,
        nonfinite_mismatched=found.nonfinite_mismatched,
        max_abs_error=math.inf if found.nonfinite_mismatched else found.max_abs_error,
        max_rel_error=math.inf if found.nonfinite_mismatched else found.max_rel_error,
        max_expected=found.max_expected,
        worst=_describe(worst, _unravel(found.worst_at, shape)),
        unwritten_at=None if found.unwritten_at is None else _unravel(found.unwritten_at, shape),
        shared_zeros=_count_shared_zeros(left, right) if tolerance.ignores_shared_zeros and found.mismatched else 0,
        is_exact=is_exact,
    )


def _measure(
    left: torch.Tensor, right: torch.Tensor, tolerance: Tolerance, chunk_elements: int | None
) -> tuple[Findings, Worst]:
    if chunk_elements is not None:
        found = measure_chunks(left, right, tolerance, chunk_elements=chunk_elements)
    elif left.numel() >= FUSED_FROM:
        found = _measure_large(left, right, tolerance)
    elif left.device.type != "cpu" or left.numel() <= CHUNK_ELEMENTS["cpu"]:
        return measure_at_once(left, right, tolerance)
    else:
        found = measure_chunks(left, right, tolerance)
    return found, _read_worst(left, right, tolerance, at=found.worst_at)


def _measure_large(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> Findings:
    if expected.device.type == "cuda" and find_spec("triton") is not None:
        # Imported here, because importing Triton takes a third of a second and small outputs do not need it.
        from flashinfer_bench.bench.evaluators.compare.fused import is_usable, measure_fused

        if is_usable(expected.dtype, expected.device, tolerance):
            return measure_fused(expected, got, tolerance)
    return measure_chunks(expected, got, tolerance)


def _count_shared_zeros(left: torch.Tensor, right: torch.Tensor) -> int:
    """Count the elements that are zero on both sides or nan on both sides."""
    parts = [slice(start, start + COUNTED_AT_ONCE) for start in range(0, left.numel(), COUNTED_AT_ONCE)]
    return sum(_count_both(_readable(left[part]), _readable(right[part])) for part in parts)


def _count_both(left: torch.Tensor, right: torch.Tensor) -> int:
    is_zero, is_nan = (left == 0) & (right == 0), left.isnan() & right.isnan()
    return int((is_zero | is_nan).sum())


def _readable(flat: torch.Tensor) -> torch.Tensor:
    """Give values that can be compared with zero; of scales that are powers of two, the bytes: they have no zero."""
    if is_packed(flat.dtype):
        return unpack(flat)
    if flat.dtype == E8M0:
        return flat.view(torch.uint8)
    return flat.float() if flat.dtype.itemsize == 1 and flat.dtype.is_floating_point else flat


def _read_worst(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, *, at: int) -> Worst:
    chunk = read_element(expected, got, at)
    return Worst(float(chunk.expected), float(chunk.got), float(score_elements(chunk, tolerance).error))


def describe_nonfinite(expected: torch.Tensor, got: torch.Tensor) -> str | None:
    """Say where a float output is nan or infinite and a finite number was expected; None where that is nowhere."""
    left, right = expected.reshape(-1), got.reshape(-1)
    count, first, value = 0, 0, 0.0
    for start in range(0, left.numel(), COUNTED_AT_ONCE):
        wanted, given = (_readable(side[start : start + COUNTED_AT_ONCE]) for side in (left, right))
        strange = wanted.isfinite() & ~given.isfinite()
        found = int(strange.sum())
        if found and not count:
            at = int(strange.to(torch.uint8).argmax())
            first, value = start + at, float(given[at])
        count += found
    if not count:
        return None
    many = f"{count} of {left.numel()} elements are" if count > 1 else f"1 of {left.numel()} elements is"
    where = f"the first, at {list(_unravel(first, tuple(expected.shape)))}, is {value:g}"
    return f"{many} nan or infinite where a finite number is expected, {where}: {explain_nonfinite(value)}"


def _whole_number(value: torch.Tensor) -> int:
    return int((value.view(torch.uint8) if value.dtype == torch.bool else value).item())


def _describe(worst: Worst, index: tuple[int, ...]) -> Element:
    wanted, found, error = worst
    relative = error / abs(wanted) if wanted and math.isfinite(wanted) else math.inf
    return Element(index, wanted, found, error, relative if error else 0.0)


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed(list(_coordinates(at, shape))))


def _coordinates(at: int, shape: tuple[int, ...]) -> Iterator[int]:
    for size in reversed(shape):
        at, coordinate = divmod(at, size)
        yield coordinate
