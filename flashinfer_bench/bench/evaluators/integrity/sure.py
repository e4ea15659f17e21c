"""Whether calls pass for sure: one look at all of them, one transfer, no findings.

Of calls that were timed nobody records how far off they are. So they are looked at together first; only where a call
may not pass is each judged for itself. What passes here passes there: elements are held against the same bound, and
norms against a little less than their limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import bounds_of
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.integrity.norms import FLOOR, NO_VALUE_SCALES, row_length

NORM_MARGIN: Final = 0.99
"""Share of the limit that norms may come to here: sums of floats differ with the order of what is summed up."""
TOGETHER: Final = {"cpu": 1 << 15, "cuda": 1 << 23}
"""Elements of calls that are looked at together, by the kind of device. On a GPU so many take less than 400 MB; on a
CPU one thread looks at so many."""
MOST_ELEMENTS: Final = {"cpu": 1 << 22, "cuda": 1 << 25}
"""A larger output is not looked at, by the kind of device: it would take too much memory at once."""


def surely_pass(calls: Sequence[JudgedCall], tolerance: Tolerance, rule: NormRule) -> bool:
    """Tell whether every call surely passes; False says nothing.

    Args:
        calls: what calls gave, and what was expected.
        tolerance: of elements; one by ratio is not looked at.
        rule: of norms.
    """
    if tolerance.by_ratio:
        return False
    pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
    for call in calls:
        if len(call.got) != len(call.expected):
            return False
        pairs += zip(call.expected, call.got, strict=True)
    for expected, got in pairs:
        if expected.shape != got.shape or expected.dtype != got.dtype or is_packed(expected.dtype):
            return False
        if expected.numel() > MOST_ELEMENTS[expected.device.type]:
            return False
    found: list[torch.Tensor] = []
    for together in _alike([(expected, got) for expected, got in pairs if expected.numel()]):
        expected, got = (_stack(side) for side in zip(*together, strict=True))
        found += _look(expected, got, tolerance, rule)
    return not found or bool(torch.stack(found).all())


def _alike(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> Iterator[Sequence[tuple[torch.Tensor, torch.Tensor]]]:
    """Give pairs of one shape and dtype, as many at a time as are looked at together."""

    def kind(pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[str, tuple[int, ...]]:
        return str(pair[0].dtype), tuple(pair[0].shape)

    for _, group in groupby(sorted(pairs, key=kind), key=kind):
        alike = list(group)
        first = alike[0][0]
        most = max(1, TOGETHER[first.device.type] // first.numel())
        yield from (alike[start : start + most] for start in range(0, len(alike), most))


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape and dtype as one; as bytes, since torch stacks not every dtype on every device."""
    first = tensors[0]
    rows = torch.stack([one.contiguous().reshape(-1).view(torch.uint8) for one in tensors])
    return rows.view(first.dtype).reshape(len(tensors), *first.shape)


def _look(expected: torch.Tensor, got: torch.Tensor, tolerance: Tolerance, rule: NormRule) -> Iterator[torch.Tensor]:
    """Give conditions that hold where an output of some calls passes; the first axis counts the calls."""
    if not expected.dtype.is_floating_point:
        sides = [one.contiguous().reshape(-1).view(torch.uint8) for one in (expected, got)]
        yield (sides[0] == sides[1]).all()
        return
    work = torch.float64 if expected.dtype == torch.float64 else torch.float32
    wanted, limits = expected.to(work), torch.finfo(work)
    error = got.to(work).sub_(wanted) if got.dtype != work else got - wanted
    most_error = min(tolerance.max_absolute_error, limits.max)
    yield (error.abs() <= bounds_of(wanted.abs(), tolerance, most_error)).all()
    columns = row_length(expected[0])
    if not rule.is_on or columns is None or expected.dtype in NO_VALUE_SCALES:
        return
    rows = (len(expected), -1, columns)
    norms = [torch.linalg.vector_norm(one.reshape(rows), dim=2, dtype=torch.float64) for one in (error, wanted)]
    most = rule.limit * NORM_MARGIN
    squares = norms[1].square()
    least = FLOOR * squares.mean(dim=1, keepdim=True).sqrt()
    yield (norms[0] <= most * torch.maximum(norms[1], least)).all()
    yield (norms[0].square().sum(dim=1) <= most**2 * squares.sum(dim=1)).all()
