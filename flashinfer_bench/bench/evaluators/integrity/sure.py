"""Whether calls pass for sure: one look at all of them, one transfer, no findings.

Of calls that were timed nobody records how far off they are. So they are looked at together first; only if a call may
not pass is each judged by itself. What passes here passes there: elements are held against the same bound, and norms
against a little less than their limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, bounds_of
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NormRule
from flashinfer_bench.bench.evaluators.integrity.norms import FLOOR, has_norms, row_length

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
    counts = {len(side) for call in calls for side in (call.got, call.expected)}
    if len(counts) > 1 or (tolerance is not None and tolerance.by_ratio):
        return None
    conditions: list[torch.Tensor] = []
    sizes: list[torch.Tensor] = []
    for number in range(max(counts, default=0)):
        pairs = [(call.expected[number], call.got[number]) for call in calls]
        first = pairs[0][0]
        device = first.device.type
        if is_packed(first.dtype) or first.numel() > MOST_ELEMENTS[device]:
            return None
        if any((one.shape, one.dtype) != (first.shape, first.dtype) for pair in pairs for one in pair):
            return None
        most = max(1, TOGETHER[device] // max(first.numel(), 1))
        parts = [pairs[start : start + most] for start in range(0, len(pairs), most) if first.numel()]
        looks = [_look(part, rule, tolerance) for part in parts]
        conditions += [condition for found, _ in looks for condition in found]
        if any(size is not None for _, size in looks):
            sizes.append(torch.cat([size for _, size in looks if size is not None]))
    if not conditions:
        return [False] * len(calls)
    size = torch.stack(sizes).sum(dim=0) if sizes else conditions[0].new_zeros(len(calls))
    found = torch.cat((torch.stack(conditions).double(), size.double())).tolist()
    return [one > 0 for one in found[len(conditions) :]] if all(found[: len(conditions)]) else None


def _look(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], rule: NormRule, tolerance: Tolerance | None
) -> tuple[list[torch.Tensor], torch.Tensor | None]:
    """Return conditions that hold if one output of some calls passes, and its squared norms [calls], if it has any."""
    first = pairs[0][0]
    expected, got = (_stack(side) for side in zip(*pairs, strict=True))
    if not first.dtype.is_floating_point:
        return [] if tolerance is None else [(expected == got).all()], None
    work = torch.float64 if first.dtype == torch.float64 else torch.float32
    wanted = expected.view(first.dtype).to(work)
    error = (got.view(first.dtype).to(work) - wanted).abs_()
    conditions: list[torch.Tensor] = []
    if tolerance is not None:
        most_error = min(tolerance.max_absolute_error, torch.finfo(work).max)
        conditions.append((error <= bounds_of(wanted.abs(), tolerance, most_error)).all())
    columns = row_length(first) or (first.numel() if tolerance is None else None)
    if columns is None or not has_norms(first.dtype) or not rule.is_on:
        return conditions, None
    rows = (one.view(len(pairs), -1, columns) for one in (error, wanted))
    squares = torch.stack([torch.linalg.vector_norm(one, dim=2, dtype=torch.float64) for one in rows]).square_()
    totals = squares.sum(dim=2, keepdim=True)
    # A call as a whole is one more row: its least size, a share of the whole, changes nothing there.
    errors, sizes = torch.cat((squares, totals), dim=2)
    bounds = torch.maximum(sizes, totals[1] * (FLOOR**2 / squares.shape[2])).mul_((rule.limit * NORM_MARGIN) ** 2)
    return [*conditions, ((errors <= bounds) & bounds.isfinite()).all()], totals[1, :, 0]


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return tensors of one shape and dtype as rows: [tensors, elements], or bytes of narrow ones and whole numbers."""
    if tensors[0].dtype in MULTIPLIED:
        return torch.stack(list(tensors)).view(len(tensors), -1)
    return torch.stack([one.contiguous().view(-1).view(torch.uint8) for one in tensors])
