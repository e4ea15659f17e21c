"""Measures the error of an output relative to the expected output, for each row and in total. `norm_rule` judges it.

A row lies along the last dimension. Rows shorter than `LEAST_ROW` are joined with their neighbours along the preceding
dimensions, since a few numbers may all be near zero by chance. Elements whose expected value is not finite are skipped,
because the comparison of elements (`compare.outputs`) checks them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.compare.outputs import CHUNK_ELEMENTS, read_values
from flashinfer_bench.bench.evaluators.compare.packed import is_packed

LEAST_ROW: Final = 16
"""Minimum elements of a row. An output with fewer elements than this is a single row, whose norms are judged on stress
inputs only."""
FLOOR: Final = 0.1
"""A row's error is divided by at least this share of the usual row's norm (the root mean square over the rows). A row
of cancelled sums is small, but has the rounding errors of the large terms."""
NO_VALUE_SCALES: Final = frozenset({getattr(torch, "float8_e8m0fnu", None)})
"""Dtypes to which norms do not apply, because neighbouring values differ by a factor of two. An error of one step in
one element may be as large as the whole row."""
BROUGHT_ROWS: Final = 1 << 13
"""Maximum number of rows whose norms are moved to the CPU. With at most this many rows, an operation on the CPU takes
less time than a kernel launch."""


@dataclass(frozen=True)
class Norms:
    """Squared norms of an output's rows, in float64. The norms are on the CPU, or on the output's device if there are
    more than BROUGHT_ROWS rows."""

    error: torch.Tensor
    """[rows]: norms of the difference between actual and expected output; infinite if only the actual output is not
    finite."""
    expected: torch.Tensor
    """[rows]: norms of the expected output."""
    is_small: bool = False
    """Whether the output has fewer than LEAST_ROW elements, and so is a single row."""

    def shares(self, left_out: torch.Tensor | None = None) -> torch.Tensor:
        """Return each row's norm of the error [rows], divided by the norm of the expected row. The divisor is at least
        `FLOOR` times the usual row's norm.

        Args:
            left_out: bool [rows]: rows that do not count for the usual row's norm.
        """
        usual = self.expected if left_out is None or bool(left_out.all()) else self.expected[~left_out]
        return self.error.sqrt() / torch.maximum(self.expected.sqrt(), FLOOR * usual.mean().sqrt())

    @cached_property
    def figures(self) -> tuple[float, float, float]:
        """Squared norms of the whole error and of the whole expected output, and the worst row's share. One transfer
        reads all three."""
        error, expected, worst = torch.stack((self.error.sum(), self.expected.sum(), self.shares().max())).tolist()
        return error, expected, worst

    def share(self, left_out: torch.Tensor | None = None) -> float:
        """Return the norm of the error, divided by the norm of the expected output, both without the rows `left_out`
        [rows]."""
        error, expected, _ = self.figures
        if left_out is not None:
            error, expected = (float(side[~left_out].sum()) for side in (self.error, self.expected))
        return math.sqrt(error / expected) if expected else 0.0

    @property
    def says_something(self) -> bool:
        """Whether any expected value is not zero."""
        return self.figures[1] > 0


def row_length(expected: torch.Tensor) -> int | None:
    """Return the number of stored elements of a row; None if the output has too few elements for a row."""
    least = LEAST_ROW // 2 if is_packed(expected.dtype) else LEAST_ROW
    length = 1
    for size in reversed(expected.shape):
        length *= size
        if length >= least:
            return length
    return None


def has_norms(expected: torch.Tensor) -> bool:
    """Return whether norms apply to outputs of this dtype and size."""
    return expected.dtype.is_floating_point and expected.dtype not in NO_VALUE_SCALES and expected.numel() > 0


def measure_norms(expected: torch.Tensor, got: torch.Tensor) -> Norms | None:
    """Return the norms of an output's rows; None if norms do not apply to the output."""
    if not has_norms(expected):
        return None
    columns = row_length(expected)
    sides = [one.reshape(-1, columns or expected.numel()) for one in (expected, got)]
    squares = _square(*sides, masks=False)
    if not math.isfinite(float(squares[1].sum())):
        squares = _square(*sides, masks=True)
    return Norms(squares[0].nan_to_num_(nan=torch.inf, posinf=torch.inf), squares[1], is_small=columns is None)


def says_something(expected: torch.Tensor) -> bool:
    """Return whether norms apply to an output: a float output with a finite, nonzero number."""
    norms = measure_norms(expected, expected)
    return norms is not None and norms.says_something


def _square(expected: torch.Tensor, got: torch.Tensor, *, masks: bool) -> torch.Tensor:
    """Return the squared norms [2, rows] of the error and of the expected output; a long row is measured in pieces.

    Args:
        expected: [rows, columns].
        got: [rows, columns].
        masks: whether elements whose expected value is not finite are skipped.
    """
    most = CHUNK_ELEMENTS.get(expected.device.type, CHUNK_ELEMENTS["cpu"])
    count, columns = expected.shape
    result = []
    for row in range(0, count, step := max(1, most // columns)):
        squares = []
        for column in range(0, columns, most):
            piece = slice(row, row + step), slice(column, column + most)
            wanted = read_values(expected[piece])
            error = read_values(got[piece]) - wanted
            if masks:
                error, wanted = (torch.where(wanted.isfinite(), one, 0.0) for one in (error, wanted))
            norms = [torch.linalg.vector_norm(one, dim=1, dtype=torch.float64) for one in (error, wanted)]
            squares.append(torch.stack(norms).square_())
        result.append(squares[0] if len(squares) == 1 else torch.stack(squares).sum(dim=0))
    together = result[0] if len(result) == 1 else torch.cat(result, dim=1)
    return together.cpu() if count <= BROUGHT_ROWS else together
