"""How the values of an input are changed for each regime: usual ones become others, in place.

`choose.py` says which inputs are changed, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.regimes.narrow import choose_zeros
from flashinfer_bench.bench.evaluators.inputs.regimes.parts import (
    AXES,
    FEW_GATES,
    STRETCH,
    choose_places,
    find_part,
    move_few_gates,
    put_stretch,
)

LARGER: Final = (16.0, 24.0)
"""Factors of the regime `larger`. At 16 the identity is off by 0.27 of the norm of 30 tanh(x / 30), at 1 by 0.001."""
SMALLER: Final = (1 / 32, 1 / 16)
LOUD: Final = 15
"""In the regime `smaller` so many columns and rows keep these values, and others are smaller still. Who looks at a part
sees some of them, so is far off: also where a function caps large values, and where every second element is looked at,
or one row of a hundred, which tells of usual values what all of them do."""
QUIET_SHARE: Final = 1 / 400
"""The other columns together have this share of the square sum of a row: formats that take them for zeros, as eight
bits for a row do, are off by a twentieth, half of what is allowed. So have the other rows, beside the loud ones."""
QUIETEST_ROW: Final = 1 / 256
"""No row is multiplied by less: squares of its values should still be numbers. Of more than 2,400 rows the quiet ones
have a larger share, a seventh of 150,000."""
MANY: Final = 1 << 16
"""Of more columns or rows places are drawn one by one."""
ROW_FACTOR: Final = 32
GROUPS_PER_ROW: Final = 64
LEAST_ROW_FACTOR: Final = 16
"""In the regime `one_row` a few values of one row are so large that they are most of a sum over all rows: so many times
the number of rows, and of columns for each of these values. So it is also where each row's part is near a constant, as
the logarithm of a sum is; and formats that take all others for zeros are off by a thirtieth. Who looks at some columns
of all rows does not see them; nor would he if each of many groups had such a row, so one of GROUPS_PER_ROW has. Where
numbers that large are none of the input's, the whole row is multiplied by so many times the number of rows; half of it
will do, or none is."""
LARGEST_ROW_FACTOR: Final = float(1 << 30)
ROOM: Final = 10.0
"""Usual values reach no further; times the factor they are numbers still."""
LARGEST_VALUE: Final = 100.0
"""Of the few large values: its square is still a number of float16."""
LARGE_SHARE: Final = 2.0
"""The few large values of a row hold about as much of its square sum as this many rows: whoever leaves them out of the
statistics of a row, or counts them twice, is off by half."""
ROWS_PER_LARGE: Final = 64
"""One row of so many has them, and one at least: who looks at a part of all rows seldom sees one."""
LEAST_LARGE: Final = 8
"""Large values of a row, at least: with fewer, the rounding of one of them would move the whole row."""
FEWEST_VALUE: Final = 80.0
FEWEST_SHARE: Final = 0.05
"""In the regime `fewest_large` one row alone has large values, of about the first of these, which together hold the
second of its square sum, or are LEAST_LARGE: what caps values, or saturates, or stands for a function near zero, is off
there. Who looks at a sixteenth of each row sees none of eight in three of five calls. Its exponential is a number."""
NEAR_OFFSET: Final = (0.9, 1.2)
"""In the regime `offset` a sixth of the rows is moved to one side by so much, also an input's only row. Roundings to
fp8 leave more than nine tenths of what is left of these when their mean is taken off, so it is judged."""
FAR_OFFSET: Final = (2.5, 4.5)
"""Another sixth is moved by so much, to the same side. A mean of sigmoids is 0.9 or more then, or 0.1 or less; that
over all rows is off by a sixth."""
TURNS: Final = 6
NEAR_TURN: Final = 0
FAR_TURN: Final = 2
"""Rows are moved by turns in a secret order: of so many one near, one far. Most of them stay: who looks at one to tell
whether rows are moved finds one that is not in two of three calls."""
FAR: Final = (2.0, 3.0)
"""Powers of ten: the regime `far` multiplies by as much."""
SPIKE: Final = (1.0, 3.0)
"""Powers of ten: the regime `spike` has one element of such a size, of any sign. Who has looked at half of an input has
not seen it in half of the calls."""
HUGE_SPIKE: Final = (4.9, 5.5)
"""In one of three such calls it is as large as that, or as its dtype has: so large are no numbers of float16."""
HUGE_SHARE: Final = 1 / 3
NOT_FINITE: Final = {"infinite": (torch.inf, -torch.inf), "nan": (torch.nan,)}
"""What the regime `nonfinite` puts in a place of an input: one of these in each call."""
GATE_OFFSET: Final = (3.5, 5.0)
"""In the regimes `gates` and `other_gates` a gate is moved to one side by so much, and to the other one. A sigmoid is
0.97 to 0.993 then: what is kept by it step by step is there after a hundred steps. Of what it lets through then,
sigmoids of a GPU's own `tanh`, which are off by 0.00025, miss no more than a twenty-fifth."""


class Shared(NamedTuple):
    """What a regime has to know beside the values of an input."""

    of_last_axis: Chance
    """Chooses places along the last axis: the same for all inputs that have the same."""
    of_other_axes: Chance
    """The same along all others together: it chooses rows."""
    groups: int = 1
    """So many groups of rows follow one another, of each of which one number of an output is made."""
    not_finite: frozenset[str] = frozenset()
    """Keys of NOT_FINITE: what the reference looks for."""
    side: float = 1.0
    """To which side a gate is moved: 1 or -1; of the regime's other call it is the other one."""


Change = Callable[[torch.Tensor, Chance, Shared], object]
"""Changes an input, given a chance of its own, and what it shares with others."""


def _make_few_large(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    size = min(math.sqrt(LARGE_SHARE * columns / LEAST_LARGE), LARGEST_VALUE)
    count = min(columns, math.ceil(LARGE_SHARE * columns / size**2))
    number = math.ceil(len(rows) / ROWS_PER_LARGE)
    chosen = torch.randint(len(rows), (number,), generator=chance.many, device=values.device)
    places = torch.randint(columns, (number, count), generator=chance.many, device=values.device)
    _put_large(rows, chosen, places, size, chance)


def _make_fewest_large(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    count = min(columns, max(LEAST_LARGE, math.ceil(FEWEST_SHARE * columns / FEWEST_VALUE**2)))
    places = torch.randint(columns, (count,), generator=chance.many, device=values.device)
    rows[chance.below(len(rows))].index_copy_(0, places, _draw_large((count,), FEWEST_VALUE, chance).to(values.dtype))


def _put_large(rows: torch.Tensor, chosen: torch.Tensor, columns: torch.Tensor, size: float, chance: Chance) -> None:
    """Put large values in some columns of some rows: of each row, or of all the same."""
    large = _draw_large((len(chosen), columns.shape[1]), size, chance)
    rows[chosen[:, None], columns] = large.to(rows.dtype)


def _draw_large(shape: tuple[int, ...], size: float, chance: Chance) -> torch.Tensor:
    """Return values of 0.7 times a size up to all of it, of any sign."""
    drawn = torch.empty(shape, device=chance.device).uniform_(-1.0, 1.0, generator=chance.many)
    return drawn.sgn().mul_(0.7 * size).add_(drawn, alpha=0.3 * size)


def _make_smaller(values: torch.Tensor, chance: Chance, shared: Shared) -> None:
    columns, smaller = values.shape[-1], chance.between(SMALLER)
    rows = values.view(-1, columns)
    of_columns = _leave_few_loud(columns, 0.0, shared.of_last_axis, values.dtype)
    of_rows = _leave_few_loud(len(rows), QUIETEST_ROW, shared.of_other_axes, values.dtype)
    rows.mul_(smaller if of_columns is None else of_columns.mul_(smaller))
    if of_rows is not None:
        rows.mul_(of_rows[:, None])


def _make_one_row(values: torch.Tensor, chance: Chance, shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    count = len(rows) // shared.groups
    if count < 2:
        return
    groups = math.ceil(shared.groups / GROUPS_PER_ROW)
    of_rows = shared.of_other_axes.many
    places = torch.randint(count, (groups,), generator=of_rows, device=values.device)
    places += torch.randperm(shared.groups, generator=of_rows, device=values.device)[:groups] * count
    largest = min(LARGEST_ROW_FACTOR, torch.finfo(values.dtype).max / ROOM)
    size = ROW_FACTOR * count * max(1.0, columns / LEAST_LARGE)
    if size <= largest:
        number = min(columns, LEAST_LARGE)
        _put_large(rows, places, choose_places(number, columns, chance)[None], size, chance)
    elif largest >= LEAST_ROW_FACTOR * count:
        rows[places] *= min(ROW_FACTOR * count, largest)


def _leave_few_loud(count: int, quietest: float, chance: Chance, dtype: torch.dtype) -> torch.Tensor | None:
    """Return factors of so many columns or rows, ones for a few of them; None where these are all."""
    if count <= LOUD:
        return None
    quiet = max(math.sqrt(QUIET_SHARE * LOUD / count), quietest)
    factors = torch.full((count,), quiet, dtype=dtype, device=chance.device)
    return factors.index_fill_(0, chance.some(LOUD, count), 1.0)


def _make_offset(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    rows = values.view(-1, values.shape[-1])
    sign, near, far = chance.sign(), chance.between(NEAR_OFFSET), chance.between(FAR_OFFSET)
    if len(rows) == 1:
        rows.add_(sign * near)
        return
    if len(rows) > MANY:
        turns = torch.randint(TURNS, (len(rows), 1), generator=chance.many, device=values.device)
    else:
        turns = torch.randperm(len(rows), generator=chance.many, device=values.device)[:, None] % TURNS
    rows.add_((turns == NEAR_TURN).to(values.dtype), alpha=sign * near)
    rows.add_((turns == FAR_TURN).to(values.dtype), alpha=sign * far)


def _move_part(axis: int) -> Change:
    def change(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
        part = find_part(values, axis, chance)
        if part is not None:
            part.add_(chance.between(FAR_OFFSET) * chance.sign())

    return change


def _make_far(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    values.mul_(10 ** chance.between(FAR))


def _make_spike(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    powers = HUGE_SPIKE if chance.is_so(HUGE_SHARE) else SPIKE
    size = min(10 ** chance.between(powers), torch.finfo(values.dtype).max) * chance.sign()
    _put_somewhere(values, size, chance)


def _make_nonfinite(values: torch.Tensor, chance: Chance, shared: Shared) -> None:
    what = [number for kind in sorted(shared.not_finite or NOT_FINITE) for number in NOT_FINITE[kind]]
    _put_somewhere(values, what[chance.below(len(what))], chance)


def _make_zeros(values: torch.Tensor, chance: Chance, _shared: Shared) -> None:
    rows = values.view(-1, values.shape[-1])
    rows.masked_fill_(choose_zeros(rows, chance), 0.0)


def _make_gates(values: torch.Tensor, chance: Chance, shared: Shared) -> None:
    values.add_(shared.side * chance.between(GATE_OFFSET))


def _put_somewhere(values: torch.Tensor, number: float, chance: Chance) -> None:
    """Put a number in a place that chance chooses."""
    flat = values.view(-1)
    flat[chance.below(len(flat))] = number


REGIMES: Final[Mapping[str, Change]] = {
    "few_large": _make_few_large,
    "fewest_large": _make_fewest_large,
    "offset": _make_offset,
    "larger": lambda values, chance, _: values.mul_(chance.between(LARGER)),
    "smaller": _make_smaller,
    "heavy_tails": lambda values, *_: values.pow_(3),
    "one_row": _make_one_row,
    "spike": _make_spike,
    STRETCH: lambda values, chance, _: put_stretch(values, chance),
    **{name: _move_part(axis) for name, axis in AXES.items()},
    "far": _make_far,
    "nonfinite": _make_nonfinite,
    "zeros": _make_zeros,
    "gates": _make_gates,
    "other_gates": _make_gates,
    FEW_GATES: lambda values, chance, _: move_few_gates(values, chance),
}
"""Name → changes usual values in place."""
