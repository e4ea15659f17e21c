"""How large the error of an output is beside the output itself, by row and in all. It measures; `norm_rule` decides.

A row is what lies along the last dimension. Shorter rows than `LEAST_ROW` are taken together with their neighbours
along the dimensions before, since a few numbers may all be near zero by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.chunks import CHUNK_ELEMENTS, bring_small
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack

LEAST_ROW: Final = 16
"""Elements of a row, at least; an output with fewer elements has no rows, and is not judged by norms."""
FLOOR: Final = 0.1
"""A row whose norm is below this share of the usual row's is held against this share of it: what is left of a sum that
cancels out has the errors of what was summed up."""
NO_VALUE_SCALES: Final = frozenset({getattr(torch, "float8_e8m0fnu", None)})
"""Dtypes whose neighbouring values differ by a factor of two: one step of one element is the size of a row."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of an output's rows, in float64: on the output's device, those of a small output on the CPU."""

    error: torch.Tensor
    """[rows]: of what was given less what was expected; infinite where only what was given is not finite."""
    expected: torch.Tensor
    """[rows]: of what was expected."""

    @property
    def row_shares(self) -> torch.Tensor:
        """[rows]: the error's norm, as a share of the expected row's, or of `FLOOR` of the usual row's."""
        floor = FLOOR * self.expected.mean().sqrt()
        return self.error.sqrt() / torch.maximum(self.expected.sqrt(), floor)

    def share(self, left_out: torch.Tensor | None = None) -> float:
        """Return the norm of the whole error as a share of the whole output's, without some rows [rows]."""
        error, expected = self.error, self.expected
        if left_out is not None:
            error, expected = error[~left_out], expected[~left_out]
        total = float(expected.sum())
        return float((error.sum() / total).sqrt()) if total else 0.0

    @property
    def says_something(self) -> bool:
        """Whether anything else than zeros was expected."""
        return bool(self.expected.sum() > 0)


def measure_norms(expected: torch.Tensor, got: torch.Tensor) -> Norms | None:
    """Return the norms of an output's rows; None for an output that norms say nothing of."""
    if not expected.dtype.is_floating_point or expected.dtype in NO_VALUE_SCALES:
        return None
    columns = row_length(expected)
    if columns is None:
        return None
    expected, got = bring_small(expected, got)
    norms = _measure(expected, got, columns, masks=False)
    # Where the reference is not finite, the comparison of elements has seen to it that both are alike.
    return norms if bool(norms.expected.isfinite().all()) else _measure(expected, got, columns, masks=True)


def row_length(expected: torch.Tensor) -> int | None:
    """Return the stored elements of a row; None for an output that is too small."""
    least = LEAST_ROW // 2 if is_packed(expected.dtype) else LEAST_ROW
    length = 1
    for size in reversed(expected.shape):
        length *= size
        if length >= least:
            return length
    return None


def _measure(expected: torch.Tensor, got: torch.Tensor, columns: int, *, masks: bool) -> Norms:
    left, right = expected.reshape(-1, columns), got.reshape(-1, columns)
    most = CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    step, width = max(1, most // columns), min(columns, most)
    sums = torch.zeros((2, len(left)), dtype=torch.float64, device=expected.device)
    for start in range(0, len(left), step):
        rows = slice(start, start + step)
        for first in range(0, columns, width):
            piece = slice(first, first + width)
            wanted, found = _values(left[rows, piece]), _values(right[rows, piece])
            error = found - wanted
            if masks:
                finite = wanted.isfinite()
                wanted, error = torch.where(finite, wanted, 0.0), torch.where(finite, error, 0.0)
            for target, values in zip(sums, (error, wanted), strict=True):
                target[rows] += torch.linalg.vector_norm(values, dim=1, dtype=torch.float64).square_()
    return Norms(sums[0].nan_to_num_(nan=torch.inf, posinf=torch.inf), sums[1])


def _values(piece: torch.Tensor) -> torch.Tensor:
    if is_packed(piece.dtype):
        return unpack(piece.reshape(-1)).reshape(len(piece), -1)
    return piece if piece.dtype == torch.float64 else piece.float()
