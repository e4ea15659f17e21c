"""Whether calls pass for sure: one look at all of them, one transfer, no findings.

Of calls that were timed nobody records how far off they are. So they are looked at together first; only where a call
may not pass is each judged for itself. What passes here passes there: elements are held against the same bound, and
norms against a little less than their limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, bounds_of
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
NORMS_TOGETHER: Final = 1 << 20
"""Norms of rows of several calls are looked at together; once there are so many, they are looked at and not kept."""
STACKED: Final = frozenset(
    {torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16}
)
"""Dtypes that torch stacks on every device, bit by bit; others are stacked as bytes."""

Pair = tuple[torch.Tensor, torch.Tensor]
"""What was expected, and what a call gave."""


def surely_pass(calls: Sequence[JudgedCall], tolerance: Tolerance, rule: NormRule) -> bool:
    """Tell whether every call surely passes; False says nothing.

    Args:
        calls: what calls gave, and what was expected.
        tolerance: of elements; one by ratio is not looked at.
        rule: of norms.
    """
    if tolerance.by_ratio:
        return False
    pairs: list[Pair] = []
    for call in calls:
        if len(call.got) != len(call.expected):
            return False
        pairs += zip(call.expected, call.got, strict=True)
    for expected, got in pairs:
        if expected.shape != got.shape or expected.dtype != got.dtype or is_packed(expected.dtype):
            return False
        if expected.numel() > MOST_ELEMENTS[expected.device.type]:
            return False
    found = [condition for alike in _group(pairs) for condition in _look(alike, tolerance, rule)]
    return not found or bool(torch.stack(found).all())


def norms_surely_pass(calls: Sequence[JudgedCall], rule: NormRule) -> list[bool] | None:
    """Tell whether the norms of every call surely pass, those of small outputs, too.

    Args:
        calls: what calls gave, and what was expected; each has outputs of the same shapes and dtypes.
        rule: of norms.

    Returns:
        None says nothing. A list says that all pass: for each whether anything else than zeros was expected of it.
    """
    conditions: list[torch.Tensor] = []
    sizes: list[torch.Tensor] = []
    for outputs in zip(*(zip(call.expected, call.got, strict=True) for call in calls), strict=True):
        first = outputs[0][0]
        if (
            is_packed(first.dtype)
            or first.dtype in NO_VALUE_SCALES
            or any((one.shape, one.dtype) != (first.shape, first.dtype) for pair in outputs for one in pair)
        ):
            return None
        if not first.dtype.is_floating_point or not first.numel():
            continue
        if first.numel() > MOST_ELEMENTS[first.device.type]:
            return None
        columns = row_length(first) or first.numel()
        differences = (_subtract(*stacks) for stacks in _stacks(outputs))
        norms = torch.cat([_norms(error, wanted, columns) for wanted, error in differences], dim=1)
        conditions += [norms.isfinite().all(), _norms_pass([norms], rule)]
        sizes.append(norms[1].sum(dim=1))
    if not conditions:
        return [False] * len(calls)
    found = torch.cat((torch.stack(conditions).double(), *sizes)).view(-1).tolist()
    if not all(found[: len(conditions)]):
        return None
    per_output = [found[at : at + len(calls)] for at in range(len(conditions), len(found), len(calls))]
    return [any(size > 0 for size in of_call) for of_call in zip(*per_output, strict=True)]


def _group(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Put pairs of one shape and dtype together; those without elements are left out."""
    groups: dict[tuple[torch.dtype, torch.Size], list[Pair]] = {}
    for pair in pairs:
        if pair[0].numel():
            groups.setdefault((pair[0].dtype, pair[0].shape), []).append(pair)
    return list(groups.values())


def _look(alike: Sequence[Pair], tolerance: Tolerance, rule: NormRule) -> Iterator[torch.Tensor]:
    """Give conditions that hold where outputs of one shape and dtype pass."""
    first = alike[0][0]
    columns = row_length(first) if rule.is_on and first.dtype not in NO_VALUE_SCALES else None
    norms: list[torch.Tensor] = []
    for expected, got in _stacks(alike):
        if not first.dtype.is_floating_point:
            yield (_bytes(expected) == _bytes(got)).all()
            continue
        wanted, error = _subtract(expected, got)
        yield (error <= _bounds(wanted, tolerance)).all()
        if columns is None:
            continue
        norms.append(_norms(error, wanted, columns))
        if sum(one.numel() for one in norms) >= NORMS_TOGETHER:
            yield _norms_pass(norms, rule)
            norms = []
    if norms:
        yield _norms_pass(norms, rule)


def _stacks(alike: Sequence[Pair]) -> Iterator[Pair]:
    """Give pairs of one shape and dtype as stacks of what was expected and what calls gave, as many as may be."""
    most = max(1, TOGETHER[alike[0][0].device.type] // alike[0][0].numel())
    for start in range(0, len(alike), most):
        expected, got = zip(*alike[start : start + most], strict=True)
        yield _stack(expected), _stack(got)


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape and dtype as one, whose first axis counts them."""
    first = tensors[0]
    if first.dtype in STACKED:
        return torch.stack(list(tensors)) if len(tensors) > 1 else first.unsqueeze(0)
    flat = tensors if first.dtype.itemsize == 1 else [one.contiguous().reshape(-1) for one in tensors]
    rows = torch.stack([one.view(torch.uint8) for one in flat])
    return rows.view(first.dtype).reshape(len(tensors), *first.shape)


def _bytes(stacked: torch.Tensor) -> torch.Tensor:
    return stacked.contiguous().view(torch.uint8)


def _subtract(expected: torch.Tensor, got: torch.Tensor) -> Pair:
    """Return what was expected, in the type in which it is compared, and how far off each element is."""
    work = torch.float64 if expected.dtype == torch.float64 else torch.float32
    wanted = expected.to(work)
    error = got.to(work).sub_(wanted) if got.dtype != work else got - wanted
    return wanted, error.abs_()


def _bounds(wanted: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    most_error = min(tolerance.max_absolute_error, torch.finfo(wanted.dtype).max)
    return bounds_of(wanted.abs(), tolerance, most_error)


def _norms(error: torch.Tensor, wanted: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the norms [2, calls, rows] of the errors and of what was expected."""
    rows = (len(error), -1, columns)
    return torch.stack(
        [torch.linalg.vector_norm(one.reshape(rows), dim=2, dtype=torch.float64) for one in (error, wanted)]
    )


def _norms_pass(norms: Sequence[torch.Tensor], rule: NormRule) -> torch.Tensor:
    """Tell whether the errors of each row, and of each call as a whole, are a small share of what was expected."""
    squares = (norms[0] if len(norms) == 1 else torch.cat(list(norms), dim=1)).square()
    totals = squares.sum(dim=2, keepdim=True)
    least = totals[1] * (FLOOR**2 / squares.shape[2])
    # A call as a whole is one more row: `least`, a share of the whole, changes nothing there.
    sides = torch.cat((squares, totals), dim=2)
    return (sides[0] <= torch.maximum(sides[1], least).mul_((rule.limit * NORM_MARGIN) ** 2)).all()
