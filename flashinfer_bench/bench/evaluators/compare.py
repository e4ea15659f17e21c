"""Compare an output with the expected one: measured in one pass where that is worth it, in chunks elsewhere.

The rule is in `comparison`, the arithmetic in `compare_chunks`; `compare_fused` is the same in one kernel.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare_chunks import measure_chunks, read_element, score_elements
from flashinfer_bench.bench.evaluators.comparison import Comparison, Element, Findings, Tolerance
from flashinfer_bench.bench.evaluators.packed import is_packed

FUSED_FROM: Final = 1 << 24
"""Elements of an output on a GPU from which the fused kernel is used: below that, chunks take less than 3 ms, and
compiling the kernel takes a second."""


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
        got: what the solution gave; for a bool it may be the raw bytes, and one that is neither 0 nor 1 is wrong.
        tolerance: what decides.
        output: name for messages.
        chunk_elements: elements compared at once, and in chunks in any case; does not change the result.
    """
    left, right = expected.contiguous().reshape(-1), got.contiguous().reshape(-1)
    if not left.numel():
        return Comparison(output, tolerance, 0, 0, 0, 0.0, 0.0, 0.0, None, None)
    if chunk_elements is None and left.numel() >= FUSED_FROM:
        found = _measure_large(left, right, tolerance)
    else:
        found = measure_chunks(left, right, tolerance, chunk_elements=chunk_elements)
    packed = is_packed(expected.dtype)
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
        worst=_describe_element(left, right, tolerance, at=found.worst_at, shape=shape),
        unwritten_at=None if found.unwritten_at is None else _unravel(found.unwritten_at, shape),
        is_exact=not (packed or expected.dtype.is_floating_point),
    )


def _measure_large(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance) -> Findings:
    if expected.device.type == "cuda" and find_spec("triton") is not None:
        # Importing Triton takes a third of a second, which small outputs do not pay.
        from flashinfer_bench.bench.evaluators.compare_fused import is_usable, measure_fused

        if is_usable(expected.dtype, expected.device, tolerance):
            return measure_fused(expected, got, tolerance)
    return measure_chunks(expected, got, tolerance)


def _describe_element(
    expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, *, at: int, shape: tuple[int, ...]
) -> Element:
    chunk = read_element(expected, got, at)
    error = float(score_elements(chunk, tolerance).error)
    wanted, found = float(chunk.expected), float(chunk.got)
    relative = error / abs(wanted) if wanted and math.isfinite(wanted) else math.inf
    return Element(_unravel(at, shape), wanted, found, error, relative if error else 0.0)


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(reversed(list(_coordinates(at, shape))))


def _coordinates(at: int, shape: tuple[int, ...]) -> Iterator[int]:
    for size in reversed(shape):
        at, coordinate = divmod(at, size)
        yield coordinate
