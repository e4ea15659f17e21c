"""How large the error of an output is beside the output itself, by row and in all. It measures; `norm_rule` decides.

A row is what lies along the last dimension. Shorter rows than `LEAST_ROW` are taken together with their neighbours
along the dimensions before, since a few numbers may all be near zero by chance. Elements that the reference expects not
to be finite are left out: the comparison of elements has seen to it that both sides are alike there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import (
    CHUNK_ELEMENTS,
    bring_small,
)
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack

LEAST_ROW: Final = 16
"""Elements of a row, at least. An output with fewer is one row, whose norms are judged on stress inputs only."""
FLOOR: Final = 0.1
"""A row below this share of the usual row is held against this share of it: what is left of a sum that cancels out has
the errors of its terms."""
NO_VALUE_SCALES: Final = frozenset({getattr(torch, "float8_e8m0fnu", None)})
"""Dtypes whose neighbouring values differ by a factor of two: one step of one element is the size of a row."""
BROUGHT_ROWS: Final = 1 << 13
"""Norms of at most this many rows are brought to the CPU, where a sum takes less than a launch."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of an output's rows, in float64."""

    error: torch.Tensor
    """[rows]: of what was given less what was expected; infinite if only what was given is not finite."""
    expected: torch.Tensor
    """[rows]: of what was expected."""
    is_small: bool = False
    """Whether the output has fewer elements than a row, and so is the only row."""

    @cached_property
    def row_shares(self) -> torch.Tensor:
        """[rows]: the error's norm, as a share of the expected row's, or of `FLOOR` of the usual row's."""
        return self.shares_beside(torch.zeros_like(self.error, dtype=torch.bool))

    def shares_beside(self, left_out: torch.Tensor) -> torch.Tensor:
        """Return `row_shares` [rows] if the usual row is one of those that are not left out [rows]."""
        is_usual = ~left_out | left_out.all()
        floor = FLOOR * (torch.where(is_usual, self.expected, 0).sum() / is_usual.sum()).sqrt()
        return self.error.sqrt() / torch.maximum(self.expected.sqrt(), floor)

    @cached_property
    def figures(self) -> tuple[float, float, float]:
        """Squared norms of the error and of what was expected in all, and the worst row's share; one transfer."""
        sums = (self.error.sum(), self.expected.sum())
        error, expected, worst = torch.stack((*sums, self.row_shares.max() if len(self.error) else sums[0])).tolist()
        return error, expected, worst

    def share(self, left_out: torch.Tensor | None = None) -> float:
        """Return the norm of the whole error as a share of the whole output's, without some rows [rows]."""
        error, expected, _ = self.figures
        if left_out is not None:
            error, expected = (
                float(self.error[~left_out].sum()),
                float(self.expected[~left_out].sum()),
            )
        return math.sqrt(error / expected) if expected else 0.0

    @property
    def says_something(self) -> bool:
        """Whether anything else than zeros was expected."""
        return self.figures[1] > 0


def has_norms(dtype: torch.dtype) -> bool:
    """Tell whether norms say something of outputs of a dtype."""
    return dtype.is_floating_point and dtype not in NO_VALUE_SCALES


def row_length(expected: torch.Tensor) -> int | None:
    """Return the stored elements of a row; None for an output that is too small."""
    least = LEAST_ROW // 2 if is_packed(expected.dtype) else LEAST_ROW
    length = 1
    for size in reversed(expected.shape):
        length *= size
        if length >= least:
            return length
    return None


def measure_norms(expected: torch.Tensor, got: torch.Tensor) -> Norms | None:
    """Return the norms of an output's rows; None for an output that norms say nothing of."""
    columns = row_length(expected)
    if not has_norms(expected.dtype) or (columns is None and not expected.numel()):
        return None
    most = CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    sides = [one.reshape(-1, columns or expected.numel()) for one in bring_small(expected, got)]
    step = max(1, most // sides[0].shape[1])
    parts = zip(*(torch.split(one, step) for one in sides), strict=True)
    squares = torch.cat([_square(wanted, found, most) for wanted, found in parts], dim=1)
    squares = squares.cpu() if squares.shape[1] <= BROUGHT_ROWS else squares
    return Norms(
        squares[0].nan_to_num_(nan=torch.inf, posinf=torch.inf),
        squares[1],
        is_small=columns is None,
    )


def says_something(expected: torch.Tensor) -> bool:
    """Tell whether norms say something of an output: a float one with a finite number that is not zero."""
    norms = measure_norms(expected, expected)
    return norms is not None and norms.says_something


def _square(expected: torch.Tensor, got: torch.Tensor, most: int) -> torch.Tensor:
    """Return the squared norms [2, rows] of the error and of what was expected; a row longer than `most` in pieces."""
    if expected.shape[1] > most:
        pieces = zip(
            torch.split(expected, most, dim=1),
            torch.split(got, most, dim=1),
            strict=True,
        )
        return torch.stack([_square(wanted, found, most) for wanted, found in pieces]).sum(dim=0)
    wanted, error = _values(expected), _values(got)
    error = error - wanted
    is_finite = wanted.isfinite()
    kept = [torch.where(is_finite, values, 0.0) for values in (error, wanted)]
    return torch.stack([torch.linalg.vector_norm(one, dim=1, dtype=torch.float64) for one in kept]).square_()


def _values(piece: torch.Tensor) -> torch.Tensor:
    if is_packed(piece.dtype):
        return unpack(piece.reshape(-1)).reshape(len(piece), 2 * piece.shape[1])
    return piece if piece.dtype == torch.float64 else piece.float()
