"""Whether calls pass for sure: one look at all of them, one transfer, no findings.

Of calls that were timed nobody records how far off they are. So they are looked at together first; only where a call
may not pass is each judged for itself. What passes here passes there: elements are held against the same bound, and
norms against a little less than their limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import CHUNK_ELEMENTS, bounds_of
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.integrity.norms import FLOOR, NO_VALUE_SCALES, row_length

NORM_MARGIN: Final = 0.99
"""Share of the limit that norms may come to here: sums of floats differ with the order of what is summed up."""


def surely_pass(calls: Sequence[JudgedCall], tolerance: Tolerance, rule: NormRule) -> bool:
    """Tell whether every call surely passes; False says nothing.

    Args:
        calls: what calls gave, and what was expected.
        tolerance: of elements; one by ratio is not looked at.
        rule: of norms.
    """
    if tolerance.by_ratio:
        return False
    found: list[torch.Tensor] = []
    for call in calls:
        if len(call.got) != len(call.expected):
            return False
        for expected, got in zip(call.expected, call.got, strict=True):
            if expected.shape != got.shape or expected.dtype != got.dtype or is_packed(expected.dtype):
                return False
            if expected.numel() > CHUNK_ELEMENTS["cuda"]:
                return False
            if expected.numel():
                found += _look(expected, got, tolerance, rule)
    return not found or bool(torch.stack(found).all())


def _look(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, rule: NormRule) -> Iterator[torch.Tensor]:
    """Give conditions that hold where an output passes."""
    if not expected.dtype.is_floating_point:
        sides = [one.contiguous().reshape(-1).view(torch.uint8) for one in (expected, got)]
        yield (sides[0] == sides[1]).all()
        return
    work = torch.float64 if expected.dtype == torch.float64 else torch.float32
    wanted, limits = expected.to(work), torch.finfo(work)
    error = got.to(work).sub_(wanted) if got.dtype != work else got - wanted
    most_error = min(tolerance.max_absolute_error, limits.max)
    yield (error.abs() <= bounds_of(wanted.abs(), tolerance, most_error)).all()
    columns = row_length(expected)
    if not rule.is_on or columns is None or expected.dtype in NO_VALUE_SCALES:
        return
    norms = [torch.linalg.vector_norm(one.reshape(-1, columns), dim=1, dtype=torch.float64) for one in (error, wanted)]
    most = rule.limit * NORM_MARGIN
    squares = norms[1].square()
    yield (norms[0] <= most * torch.maximum(norms[1], FLOOR * squares.mean().sqrt())).all()
    yield norms[0].square().sum() <= most**2 * squares.sum()
