"""Whether calls pass for sure: one look at all of them, one transfer, no findings.

Of calls that were timed nobody records how far off they are. So they are looked at together first; only if a call may
not pass is each judged by itself. What passes here passes there: elements are held against the same bound, and norms
against a little less than their limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, bounds_of
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.integrity.norms import (
    FLOOR,
    has_norms,
    row_length,
)

NORM_MARGIN: Final = 0.99
"""Share of the limit that norms may come to here: sums of floats differ with the order of their terms."""
TOGETHER: Final = {"cpu": 1 << 15, "cuda": 1 << 23}
"""Elements of calls that are looked at together, by device: less than 400 MB on a GPU, one thread's work on a CPU."""
MOST_ELEMENTS: Final = {"cpu": 1 << 22, "cuda": 1 << 25}
"""Elements of the largest output that is looked at, by device: it takes its memory several times over."""


def surely_pass(calls: Sequence[JudgedCall], rule: NormRule, tolerance: Tolerance | None = None) -> list[bool] | None:
    """Tell whether every call surely passes.

    Args:
        calls: what they gave, and what was expected.
        rule: of norms.
        tolerance: of elements. None: norms alone are judged, also those of outputs too small for rows.

    Returns:
        None says nothing. A list says that all pass: for each whether a float that is not zero was expected of it.
    """
    if tolerance is not None and (tolerance.by_ratio or tolerance.max_absolute_error < math.inf):
        return None
    conditions: list[torch.Tensor] = []
    sizes: list[torch.Tensor] = []
    for pairs in zip(*(zip(call.expected, call.got, strict=True) for call in calls), strict=True):
        first = pairs[0][0]
        device, count = first.device.type, first.numel()
        if is_packed(first.dtype) or count > MOST_ELEMENTS[device]:
            return None
        most = max(1, TOGETHER[device] // max(count, 1))
        squares: list[torch.Tensor] = []
        for start in range(0, len(pairs) if count else 0, most):
            found = _look(pairs[start : start + most], rule, tolerance)
            conditions += found.conditions
            squares += found.sizes
        if squares:
            sizes.append(torch.cat(squares))
    if not conditions:
        return [False] * len(calls)
    size = torch.stack(sizes).sum(dim=0) if sizes else conditions[0].new_zeros(len(calls))
    told = torch.cat((torch.stack(conditions).double(), size.double())).tolist()
    passed, found_sizes = told[: len(conditions)], told[len(conditions) :]
    return [one > 0 for one in found_sizes] if all(passed) else None


class _Look(NamedTuple):
    """What was found of one output of some calls."""

    conditions: list[torch.Tensor]
    """They hold if it passes."""
    sizes: list[torch.Tensor]
    """Its squared norm for each call, if it has norms."""


def _look(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]],
    rule: NormRule,
    tolerance: Tolerance | None,
) -> _Look:
    first = pairs[0][0]
    expected, got = (_stack(side) for side in zip(*pairs, strict=True))
    if not first.dtype.is_floating_point:
        return _Look([] if tolerance is None else [(expected == got).all()], [])
    work = torch.float64 if first.dtype == torch.float64 else torch.float32
    wanted = expected.view(first.dtype).to(work)
    error = (got.view(first.dtype).to(work) - wanted).abs_()
    conditions: list[torch.Tensor] = []
    if tolerance is not None:
        conditions.append((error <= bounds_of(wanted.abs(), tolerance)).all())
    columns = row_length(first) or (first.numel() if tolerance is None else None)
    if columns is None or not has_norms(first.dtype) or not rule.is_on:
        return _Look(conditions, [])
    norms = [
        torch.linalg.vector_norm(
            one.view(len(pairs), -1, columns),
            dim=2,
            dtype=torch.float64,
        )
        for one in (error, wanted)
    ]
    squares = torch.stack(norms).square_()
    totals = squares.sum(dim=2, keepdim=True)
    least = totals[1] * (FLOOR**2 / squares.shape[2])
    # A call as a whole is one more row: `least`, a share of the whole, changes nothing there.
    errors, sizes = torch.cat((squares, totals), dim=2)
    bounds = torch.maximum(sizes, least).mul_((rule.limit * NORM_MARGIN) ** 2)
    is_right = (errors <= bounds) & bounds.isfinite()
    return _Look([*conditions, is_right.all()], [totals[1, :, 0]])


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape and dtype as rows: [tensors, elements], or bytes of narrow ones and whole numbers."""
    if tensors[0].dtype in MULTIPLIED:
        return torch.stack(list(tensors)).view(len(tensors), -1)
    return torch.stack([one.contiguous().view(-1).view(torch.uint8) for one in tensors])
