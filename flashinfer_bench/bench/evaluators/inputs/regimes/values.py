"""How the values of an input are changed for each regime: usual ones become others, in place.

`choose.py` says which inputs are changed, and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch

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
OFFSETS: Final = ("near", "none", "far", "none", "none", "none")
"""How rows are moved, by turns in a secret order. Most of them stay: who looks at one to tell whether rows are moved
finds one that is not in two of three calls."""
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

    of_last_axis: torch.Generator
    """Chooses places along the last axis: the same for all inputs that have the same."""
    of_other_axes: torch.Generator
    """The same along all others together: it chooses rows."""
    groups: int = 1
    """So many groups of rows follow one another, of each of which one number of an output is made."""
    not_finite: frozenset[str] = frozenset()
    """Keys of NOT_FINITE: what the reference looks for."""
    side: float = 1.0
    """To which side a gate is moved: 1 or -1; of the regime's other call it is the other one."""


Change = Callable[[torch.Tensor, torch.Generator, Shared], object]
"""Changes an input, given a generator of its own, and what it shares with others."""


def _uniform(bounds: tuple[float, float], generator: torch.Generator) -> float:
    share = float(torch.rand((), generator=generator, device=generator.device))
    return bounds[0] + (bounds[1] - bounds[0]) * share


def _make_few_large(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    size = min(math.sqrt(LARGE_SHARE * columns / LEAST_LARGE), LARGEST_VALUE)
    count = min(columns, math.ceil(LARGE_SHARE * columns / size**2))
    chosen = torch.randint(
        len(rows), (math.ceil(len(rows) / ROWS_PER_LARGE),), generator=generator, device=values.device
    )
    _put_large(rows, chosen, _choose_columns(rows, chosen, count, generator), size, generator)


def _make_fewest_large(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    count = min(columns, max(LEAST_LARGE, math.ceil(FEWEST_SHARE * columns / FEWEST_VALUE**2)))
    chosen = torch.randint(len(rows), (1,), generator=generator, device=values.device)
    _put_large(rows, chosen, _choose_columns(rows, chosen, count, generator), FEWEST_VALUE, generator)


def _choose_columns(rows: torch.Tensor, chosen: torch.Tensor, count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(rows.shape[1], (len(chosen), count), generator=generator, device=rows.device)


def _put_large(
    rows: torch.Tensor, chosen: torch.Tensor, columns: torch.Tensor, size: float, generator: torch.Generator
) -> None:
    """Put values of about a size, of any sign, in some columns of some rows: of each row, or of all the same."""
    shape = (len(chosen), columns.shape[1])
    large = torch.rand(shape, generator=generator, device=rows.device).mul_(0.3).add_(0.7).mul_(size)
    signs = torch.randint(2, shape, generator=generator, device=rows.device).mul_(2).sub_(1)
    rows[chosen[:, None], columns] = (large * signs).to(rows.dtype)


def _make_smaller(values: torch.Tensor, generator: torch.Generator, shared: Shared) -> None:
    values.mul_(_uniform(SMALLER, generator))
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    rows.mul_(_leave_few_loud(columns, 0.0, shared.of_last_axis).to(values.dtype))
    rows.mul_(_leave_few_loud(len(rows), QUIETEST_ROW, shared.of_other_axes).to(values.dtype)[:, None])


def _make_one_row(values: torch.Tensor, generator: torch.Generator, shared: Shared) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    count = len(rows) // shared.groups
    if count < 2:
        return
    groups = math.ceil(shared.groups / GROUPS_PER_ROW)
    places = torch.randint(count, (groups,), generator=shared.of_other_axes, device=values.device)
    places += torch.randperm(shared.groups, generator=shared.of_other_axes, device=values.device)[:groups] * count
    largest = min(LARGEST_ROW_FACTOR, torch.finfo(values.dtype).max / ROOM)
    size = ROW_FACTOR * count * max(1.0, columns / LEAST_LARGE)
    if size <= largest:
        number = min(columns, LEAST_LARGE)
        _put_large(rows, places, choose_places(number, columns, generator)[None], size, generator)
    elif largest >= LEAST_ROW_FACTOR * count:
        rows[places] *= min(ROW_FACTOR * count, largest)


def _leave_few_loud(count: int, quietest: float, generator: torch.Generator) -> torch.Tensor:
    """Return factors of so many columns or rows: ones for a few of them."""
    if count <= LOUD:
        return torch.ones(count, device=generator.device)
    quiet = max(math.sqrt(QUIET_SHARE * LOUD / count), quietest)
    factors = torch.full((count,), quiet, device=generator.device)
    if count > MANY:  # hardly any comes twice, and a permutation would take as much memory as an input
        places = torch.randint(count, (LOUD,), generator=generator, device=generator.device)
    else:
        places = torch.randperm(count, generator=generator, device=generator.device)[:LOUD]
    factors[places] = 1
    return factors


def _make_offset(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    rows = values.view(-1, values.shape[-1])
    sign = _sign(generator)
    sizes = {"near": _uniform(NEAR_OFFSET, generator), "far": _uniform(FAR_OFFSET, generator), "none": 0.0}
    offsets = [sizes[one] * sign for one in OFFSETS]
    if len(rows) > MANY:
        which = torch.randint(len(offsets), (len(rows),), generator=generator, device=values.device)
    else:
        order = torch.randperm(len(rows), generator=generator, device=values.device)
        which = order % len(offsets)
    rows.add_(torch.tensor(offsets, dtype=values.dtype, device=values.device)[which, None])


def _move_part(axis: int) -> Change:
    def change(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
        part = find_part(values, axis, generator)
        if part is not None:
            values.add_(part.to(values.dtype) * (_uniform(FAR_OFFSET, generator) * _sign(generator)))

    return change


def _make_far(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    values.mul_(10 ** _uniform(FAR, generator))


def _make_spike(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    powers = HUGE_SPIKE if _uniform((0.0, 1.0), generator) < HUGE_SHARE else SPIKE
    size = min(10 ** _uniform(powers, generator), torch.finfo(values.dtype).max) * _sign(generator)
    _put_somewhere(values, size, generator)


def _make_nonfinite(values: torch.Tensor, generator: torch.Generator, shared: Shared) -> None:
    what = [number for kind in sorted(shared.not_finite or NOT_FINITE) for number in NOT_FINITE[kind]]
    _put_somewhere(values, what[int(_uniform((0.0, 0.999), generator) * len(what))], generator)


def _make_zeros(values: torch.Tensor, generator: torch.Generator, _shared: Shared) -> None:
    rows = values.view(-1, values.shape[-1])
    rows.masked_fill_(choose_zeros(rows, generator), 0.0)


def _make_gates(values: torch.Tensor, generator: torch.Generator, shared: Shared) -> None:
    values.add_(shared.side * _uniform(GATE_OFFSET, generator))


def _put_somewhere(values: torch.Tensor, number: float, generator: torch.Generator) -> None:
    """Put a number in a place that chance chooses."""
    flat = values.view(-1)
    flat[torch.randint(len(flat), (), generator=generator, device=values.device)] = number


def _sign(generator: torch.Generator) -> float:
    return float(torch.randint(2, (), generator=generator, device=generator.device)) * 2 - 1


REGIMES: Final[Mapping[str, Change]] = {
    "few_large": _make_few_large,
    "fewest_large": _make_fewest_large,
    "offset": _make_offset,
    "larger": lambda values, generator, _: values.mul_(_uniform(LARGER, generator)),
    "smaller": _make_smaller,
    "heavy_tails": lambda values, *_: values.pow_(3),
    "one_row": _make_one_row,
    "spike": _make_spike,
    STRETCH: lambda values, generator, _: put_stretch(values, generator),
    **{name: _move_part(axis) for name, axis in AXES.items()},
    "far": _make_far,
    "nonfinite": _make_nonfinite,
    "zeros": _make_zeros,
    "gates": _make_gates,
    "other_gates": _make_gates,
    FEW_GATES: lambda values, generator, _: move_few_gates(values, generator),
}
"""Name → changes usual values in place."""
