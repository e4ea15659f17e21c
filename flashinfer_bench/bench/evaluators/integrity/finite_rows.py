"""Rows of a call that are judged if a reference leaves the range of its numbers on inputs of a stress case.

A row in which the reference is not finite is left out whole: if a sum overflows, what is divided by it is zero, and a
better solution has other numbers there. So is a row in which only the solution is not finite: a narrower format
overflows sooner, and a shortcut that fits numbers of the usual size gives none that are infinite.

An output that overflows in some rows is left out whole: what grows that fast is moved by any rounding, and rows that
are nearly infinite outweigh all others. Infinities that usual inputs give, too, such as scores that a mask leaves out,
are meant: the rest of such a row is judged (`norms`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.integrity.norms import has_norms, row_length

Outputs = Sequence[torch.Tensor]


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
    """Return which rows of a call are judged; None if no more of it is infinite or nan than on usual inputs.

    Args:
        call: on inputs of a stress case.
        usual: what the reference gives for usual inputs, call by call.
    """
    count = count_nonfinite(call.expected)
    if not count or count <= max(map(count_nonfinite, usual)):
        return None
    return FiniteRows(tuple(map(_find_kept, call.expected, call.got, zip(*usual, strict=True))))


def count_nonfinite(outputs: Outputs) -> int:
    """Count the elements of float outputs that are nan or infinite, with one wait for the device."""
    floats = [output.float() for output in outputs if output.dtype.is_floating_point and not is_packed(output.dtype)]
    counts = [(value - value).count_nonzero() for value in floats]  # of a finite number nothing is left
    return int(torch.stack(counts).sum()) if counts else 0


def _find_kept(expected: torch.Tensor, got: torch.Tensor, usual: Outputs) -> torch.Tensor | None:
    if not has_norms(expected.dtype) or is_packed(expected.dtype) or not expected.numel():
        return None
    wanted = expected.float().reshape(-1, row_length(expected) or expected.numel())
    meant = torch.zeros_like(wanted, dtype=torch.bool)
    for infinite in (torch.inf, -torch.inf):
        if any(bool((value.float() == infinite).any()) for value in usual):
            meant |= wanted == infinite
    if bool((wanted.isinf() & ~meant).any()):
        return torch.zeros(len(wanted), dtype=torch.bool, device=wanted.device)
    is_finite = wanted.isfinite() & got.float().view_as(wanted).isfinite()
    kept = (is_finite | meant).all(dim=1)
    return None if bool(kept.all()) else kept
