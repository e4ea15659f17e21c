"""Rows of a call that are judged if a reference leaves the range of its numbers on inputs of a stress case.

A row in which the reference is not finite is left out whole: if a sum overflows, what is divided by it is zero, and a
better solution has other numbers there. So is a row in which only the solution is not finite: a narrower format
overflows sooner, and a shortcut that fits numbers of the usual size gives none that are infinite.

An output that overflows in some rows is left out whole: what grows that fast is moved by any rounding, and rows that
are nearly infinite outweigh all others. Infinities and nans that usual inputs give, too, such as scores that a mask
leaves out, are meant: the rest of such a row is judged (`norms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import read_values
from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.integrity.norms import has_norms, row_length

Outputs = Sequence[torch.Tensor]
ODD_KINDS = (torch.isposinf, torch.isneginf, torch.isnan)


@dataclass(frozen=True)
class FiniteRows:
    """Which rows of each output are judged."""

    kept: tuple[torch.Tensor | None, ...]
    """Of each output bool [rows]; None if all of it is judged."""

    def take(self, outputs: Outputs) -> list[torch.Tensor]:
        """Return outputs without the other rows."""
        pairs = zip(outputs, self.kept, strict=True)
        return [value if kept is None else value.reshape(len(kept), -1)[kept] for value, kept in pairs]

    def of_call(self, call: JudgedCall) -> JudgedCall:
        """Return a call with these rows only."""
        return JudgedCall(call.inputs, self.take(call.got), self.take(call.expected))

    def of_context(self, context: JudgeContext) -> JudgeContext:
        """Return a context whose reference gives these rows only."""
        return replace(context, reference=lambda inputs: self.take(context.reference(inputs)))


def find_finite_rows(call: JudgedCall, usual: Sequence[Outputs]) -> FiniteRows | None:
    """Return which rows of a call are judged; None if nothing is infinite or nan that is not so on usual inputs.

    Args:
        call: on inputs of a stress case.
        usual: what the reference gives for usual inputs, call by call.
    """
    kept: list[torch.Tensor | None] = []
    is_odd = False
    for expected, got, others in zip(call.expected, call.got, zip(*usual, strict=True), strict=True):
        if not has_norms(expected) or is_packed(expected.dtype):
            kept.append(None)
            continue
        wanted, given = (
            read_values(side).reshape(-1, row_length(expected) or side.numel()) for side in (expected, got)
        )
        kinds = [kind for kind in ODD_KINDS if any(bool(kind(read_values(one)).any()) for one in others)]
        meant = torch.stack([torch.zeros_like(wanted, dtype=torch.bool), *(kind(wanted) for kind in kinds)]).any(dim=0)
        odd = ~(wanted.isfinite() | meant)
        is_odd |= bool(odd.any())
        rows = ((wanted.isfinite() & given.isfinite()) | meant).all(dim=1)
        rows &= ~(odd & wanted.isinf()).any()
        kept.append(None if bool(rows.all()) else rows)
    return FiniteRows(tuple(kept)) if is_odd else None
