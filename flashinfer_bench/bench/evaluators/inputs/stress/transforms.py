"""What a stress case makes of the elements that its support chooses: they are scaled, shifted, and so on.

Usual floats are normal and near one, usual bytes any byte, and usual bools true in half of the places. A byte stays a
byte. A transform returns new values of the same shape and dtype, or values that may be broadcast to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.inputs.stress.supports import FEW, LOUD, Field

QUIET_SHARE: Final = 1 / 400
"""Share of a square sum that most columns, or rows, have together beside the few that are loud. A format that takes
them for zeros, as eight bits for a row do, is off by half of what is allowed."""
QUIETEST: Final = 1 / 256
"""No row is scaled by less: squares of its values stay numbers."""
OUTWEIGHS: Final = 32
"""A row that outweighs the others is so many times as large as they are together; half of it will do."""
LEAST_PART: Final = 0.3
"""Large values of one size differ by this share of it at the most."""
LARGEST: Final = float(1 << 30)
ROOM: Final = 10.0
"""Usual values reach no further."""
DENSITIES: Final = (0.02, 0.98)
"""Shares of bools that are true in some rows or columns."""
LEAST_BOOLS: Final = 8
"""So many of a row are to be expected to be true, and false: without, a row may have no right answer."""
BYTE_BITS: Final = 3
"""By so many bits are small bytes shorter."""

Transform = Callable[[torch.Tensor, Field], torch.Tensor]
"""Gives what some elements of a field become."""


def scale(low: float, high: float) -> Transform:
    """Return what multiplies all elements by one factor between two bounds."""
    return lambda values, field: values * _draw(low, high, field)


def shift(low: float, high: float, *, sign: float = 0.0) -> Transform:
    """Return what adds one number between two bounds to all elements, of either sign where none is given."""
    return lambda values, field: values + (sign or field.side) * field.chance.between((low, high))


def cube(values: torch.Tensor, _field: Field) -> torch.Tensor:
    """Return the third power: of normal values, heavy tails."""
    return values.pow(3)


def zero(values: torch.Tensor, _field: Field) -> torch.Tensor:
    """Return zeros."""
    return torch.zeros_like(values)


def large(size: float | Callable[[Field], float], *, positive: float | None = None) -> Transform:
    """Return what replaces elements by values of 0.7 times a size up to all of it, as far as the dtype can tell.

    Args:
        size: a number, or gives one for a field.
        positive: in such a share of calls all are positive, in the others negative; None draws each one's sign.
    """

    def change(values: torch.Tensor, field: Field) -> torch.Tensor:
        top = size if isinstance(size, int | float) else size(field)
        drawn, many = torch.empty_like(values), field.chance.many
        if positive is None:
            drawn.uniform_(-LEAST_PART * top, LEAST_PART * top, generator=many)  # its side becomes the value's
            return drawn.add_(drawn.sgn(), alpha=(1 - LEAST_PART) * top)
        ends = ((1 - LEAST_PART) * top, top) if field.chance.is_so(positive) else (-top, (LEAST_PART - 1) * top)
        return drawn.uniform_(*ends, generator=many)

    return change


def quieten(axis: int, least: float = 0.0) -> Transform:
    """Return what scales most columns (axis 1) or rows (axis 0) so that QUIET_SHARE of a square sum is theirs.

    Args:
        axis: of the rows [rows, columns].
        least: no factor is smaller.
    """
    return lambda values, field: values * max(least, math.sqrt(QUIET_SHARE * LOUD / field.rows.shape[axis]))


def special(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Return an infinite number or NaN, as the reference looks for."""
    return torch.full_like(values, field.not_finite[field.chance.below(len(field.not_finite))])


def spike(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Return a number of 10 to 1,000, in one of three calls one beyond those of float16, of either sign."""
    bounds = (8e4, 3.2e5) if field.chance.is_so(1 / 3) else (10.0, 1e3)
    return torch.full_like(values, min(_draw(*bounds, field), field.largest) * field.chance.sign())


def row_size(field: Field) -> float:
    """Return how large elements are of a row that outweighs all others in a sum: of FEW columns, or of all."""
    rows, columns = field.rows.shape
    wanted = OUTWEIGHS * (rows // field.groups) * max(1.0, columns / FEW)
    return min(wanted, LARGEST, field.largest / ROOM)


def row_columns(field: Field) -> int:
    """Return of how many columns such a row has large elements; 0 where its dtype has no numbers that large."""
    rows, columns = field.rows.shape
    per_group, size = rows // field.groups, row_size(field)
    if size < OUTWEIGHS / 2 * per_group:
        return 0
    return min(columns, max(FEW, math.ceil(OUTWEIGHS * per_group * columns / size)))


def narrow(values: torch.Tensor, _field: Field) -> torch.Tensor:
    """Return bytes of an eighth of their size."""
    return values >> BYTE_BITS


def to_a_side(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Return bytes in one half of their range, which chance chooses."""
    upwards, low = field.chance.is_so(), values & 0x7F
    if values.dtype is torch.uint8:
        return low | 0x80 if upwards else low
    return low if upwards else low | -0x80


def to_an_end(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Return bytes near one end of their range: uint8 near zero, int8 near either."""
    if values.dtype is torch.uint8:
        return values >> 4
    low = (values >> 4) - 0x78
    return ~low if field.chance.is_so() else low


def cube_bytes(values: torch.Tensor, _field: Field) -> torch.Tensor:
    """Return the third power, scaled to the range."""
    largest = float(torch.iinfo(values.dtype).max)
    return (values.float() / largest).clamp_(-1, 1).pow_(3).mul_(largest).round_().to(values.dtype)


def true(share: float | None = None) -> Transform:
    """Return what draws bools anew: such a share is true, or nearly none or nearly all of them."""

    def change(values: torch.Tensor, field: Field) -> torch.Tensor:
        wanted = DENSITIES[int(field.chance.is_so())] if share is None else share
        return _draw_bools(values, torch.full((1,), wanted, device=values.device), field)

    return change


def true_by_rows(values: torch.Tensor, field: Field) -> torch.Tensor:
    """Return bools of which each row has a share of its own that is true."""
    shares = torch.empty((len(values), 1), device=values.device)
    return _draw_bools(values, shares.uniform_(*DENSITIES, generator=field.chance.many), field)


def _draw_bools(values: torch.Tensor, shares: torch.Tensor, field: Field) -> torch.Tensor:
    least = min(0.5, LEAST_BOOLS / field.values.shape[-1])
    drawn = torch.rand(values.shape, generator=field.chance.many, device=values.device)
    return drawn < shares.clamp(least, 1 - least)


def _draw(low: float, high: float, field: Field) -> float:
    """Return a number between two bounds, as likely in each factor of two."""
    return math.exp(field.chance.between((math.log(low), math.log(high))))
