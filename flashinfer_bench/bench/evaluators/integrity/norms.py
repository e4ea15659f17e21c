"""How large the error of an output is beside the output itself, by row and in all. It measures; `norm_rule` decides.

A row is what lies along the last dimension. Shorter rows than `LEAST_ROW` are taken together with their neighbours
along the dimensions before, since a few numbers may all be near zero by chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import CHUNK_ELEMENTS, bring_small
from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack

LEAST_ROW: Final = 16
"""Elements of a row, at least. An output with fewer elements is small: its norms are judged on stress inputs
only, where all of it is one row."""
FLOOR: Final = 0.1
"""A row whose norm is below this share of the usual row's is held against this share of it: what is left of a sum that
cancels out has the errors of what was summed up."""
NO_VALUE_SCALES: Final = frozenset({getattr(torch, "float8_e8m0fnu", None)})
"""Dtypes whose neighbouring values differ by a factor of two: one step of one element is the size of a row."""
BROUGHT_ROWS: Final = 1 << 13
"""The norms of no more rows than this are brought to the CPU, in one transfer. There a sum takes less than a launch."""


class Figures(NamedTuple):
    """What is asked of all rows together."""

    error: float
    """Sum of the squared norms."""
    expected: float
    """Sum of the squared norms."""
    worst_row: float
    """Largest share of a row; 0.0 where there is no row."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of an output's rows, in float64: on the CPU, those of many rows on the output's device."""

    error: torch.Tensor
    """[rows]: of what was given less what was expected; infinite where only what was given is not finite."""
    expected: torch.Tensor
    """[rows]: of what was expected."""
    is_small: bool = False
    """Whether the output has fewer elements than a row, and so is the only row."""

    @cached_property
    def row_shares(self) -> torch.Tensor:
        """[rows]: the error's norm, as a share of the expected row's, or of `FLOOR` of the usual row's."""
        return self._shares(self.expected)

    def shares_beside(self, left_out: torch.Tensor) -> torch.Tensor:
        """Return `row_shares` [rows] where the usual row is one of those that are not left out [rows]."""
        left = self.expected[~left_out]
        return self._shares(left if len(left) else self.expected)

    def _shares(self, usual: torch.Tensor) -> torch.Tensor:
        floor = FLOOR * usual.mean().sqrt()
        return self.error.sqrt() / torch.maximum(self.expected.sqrt(), floor)

    @cached_property
    def figures(self) -> Figures:
        """What is asked of all rows together, in one transfer."""
        sums = (self.error.sum(), self.expected.sum())
        worst_row = self.row_shares.max() if len(self.error) else sums[0]
        return Figures(*torch.stack((*sums, worst_row)).tolist())

    def share(self, left_out: torch.Tensor | None = None) -> float:
        """Return the norm of the whole error as a share of the whole output's, without some rows [rows]."""
        error, expected = self.figures.error, self.figures.expected
        if left_out is not None:
            error, expected = float(self.error[~left_out].sum()), float(self.expected[~left_out].sum())
        return math.sqrt(error / expected) if expected else 0.0

    @property
    def says_something(self) -> bool:
        """Whether anything else than zeros was expected."""
        return self.figures.expected > 0


def measure_norms(expected: torch.Tensor, got: torch.Tensor, *, takes_small: bool = False) -> Norms | None:
    """Return the norms of an output's rows; None for an output that norms say nothing of.

    Args:
        expected: what the reference gave.
        got: what is held against it.
        takes_small: whether an output that is smaller than a row is taken as one; else norms say nothing of it.
    """
    if not _has_norms(expected):
        return None
    columns = row_length(expected)
    is_small = columns is None
    if columns is None:
        if not takes_small or not expected.numel():
            return None
        columns = expected.numel()
    expected, got = bring_small(expected, got)
    norms = _measure(expected, got, columns, masks=False)
    # Where the reference is not finite, the comparison of elements has seen to it that both are alike.
    norms = norms if math.isfinite(norms.figures.expected) else _measure(expected, got, columns, masks=True)
    return replace(norms, is_small=True) if is_small else norms


def says_something(expected: torch.Tensor) -> bool:
    """Tell whether norms say something of an output, be it small: a float one with a number that is not zero."""
    if not _has_norms(expected):
        return False
    if is_packed(expected.dtype):
        return bool(unpack(expected.reshape(-1)).any())
    value = expected.float() if expected.dtype.itemsize == 1 else expected
    return bool((value.isfinite() & (value != 0)).any())


def _has_norms(expected: torch.Tensor) -> bool:
    return expected.dtype.is_floating_point and expected.dtype not in NO_VALUE_SCALES


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
    most = CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    step = max(1, most // columns)
    left, right = expected.reshape(-1, columns), got.reshape(-1, columns)
    parts = [slice(start, start + step) for start in range(0, len(left) or 1, step)]
    squares = [_square(left[rows], right[rows], most, masks=masks) for rows in parts]
    sums = squares[0] if len(squares) == 1 else torch.cat(squares, dim=1)
    sums = sums.cpu() if sums.shape[1] <= BROUGHT_ROWS else sums
    return Norms(sums[0].nan_to_num_(nan=torch.inf, posinf=torch.inf), sums[1])


def _square(expected: torch.Tensor, got: torch.Tensor, most: int, *, masks: bool) -> torch.Tensor:
    """Return the squared norms [2, rows] of the error and of what was expected; a row longer than `most` in pieces."""
    columns = expected.shape[1]
    if columns > most:
        pieces = [slice(first, first + most) for first in range(0, columns, most)]
        squares = [_square(expected[:, piece], got[:, piece], most, masks=masks) for piece in pieces]
        return torch.stack(squares).sum(dim=0)
    wanted = _values(expected)
    error = _values(got) - wanted
    if masks:
        finite = wanted.isfinite()
        wanted, error = torch.where(finite, wanted, 0.0), torch.where(finite, error, 0.0)
    norms = [torch.linalg.vector_norm(values, dim=1, dtype=torch.float64) for values in (error, wanted)]
    return torch.stack(norms).square_()


def _values(piece: torch.Tensor) -> torch.Tensor:
    if is_packed(piece.dtype):
        return unpack(piece.reshape(-1)).reshape(len(piece), 2 * piece.shape[1])
    return piece if piece.dtype == torch.float64 else piece.float()
