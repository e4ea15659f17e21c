"""Where a stress case changes an input: a support chooses places among its rows.

The rows of an input are its elements as [rows, columns]: the last axis, and all others together. A support returns an
index of that view, or bools that may be broadcast to its shape. Nothing here waits for a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.stress.chance import Chance

LEAST_LENGTH: Final = 4
"""A shorter axis has no part."""
FEW: Final = 8
"""Large values of a row. Of fewer, the rounding of a single one would move the whole row."""
LOUD: Final = 15
"""Columns, and rows, that keep their scale where all others are smaller still. A look at a part sees some of them."""
ROWS_PER_CHOSEN: Final = 64
"""Of so many rows, or groups of rows, one is chosen: a look at a part of them seldom sees it."""
STEPS: Final = (1, 32, 32)
"""Distances of the places of a stretch. A look at every second, fourth or eighth column sees all of them, or none."""
STRETCHES: Final = 3
"""Lengths of a stretch: the least, the greatest, and one between them."""
OPEN_STEPS: Final = 80
"""Gates that are moved in the last steps only are moved in so many. Before them they let something in."""


@dataclass(frozen=True)
class Field:
    """An input that is changed.

    Args:
        values: of any shape, contiguous.
        chance: of this input and call.
        of_columns: the same for all inputs that have the same last axis.
        of_rows: the same for all inputs that have the same other axes.
        groups: so many groups of rows follow one another, of each of which one number of an output is made.
        part: the number of the part that differs, where one does: `choose_part`.
        not_finite: values that the reference looks for: infinite ones, NaN.
    """

    values: torch.Tensor
    chance: Chance
    of_columns: Chance
    of_rows: Chance
    groups: int = 1
    part: int = 0
    not_finite: tuple[float, ...] = (math.inf, -math.inf, math.nan)

    @property
    def rows(self) -> torch.Tensor:
        """Return the values as [rows, columns]."""
        return self.values.view(-1, self.values.shape[-1])

    @property
    def side(self) -> float:
        """Return 1 or -1: to which side this input is shifted in this call."""
        return 1.0 if self.chance.seed % 2 else -1.0

    @property
    def largest(self) -> float:
        """Return the largest number of the dtype."""
        return torch.finfo(self.values.dtype).max


Support = Callable[[Field], Any]
"""Gives an index of a field's rows, or bools; None where it has no such places."""


def choose_part(length: int, number: int) -> slice:
    """Return the places of a part of an axis: every second one of a half.

    A look at one half, or at every second place, sees none of them in one of two calls.

    Args:
        length: of the axis.
        number: of the part, 0 to 3. Of parts 0 and 1, as of 2 and 3, each half and each second place has one.
    """
    half = number % 2
    turn = half ^ number // 2 % 2
    begin, end = math.ceil(half * length / 2), math.ceil((half + 1) * length / 2)
    return slice(begin + (begin + turn) % 2, end, 2)


def everything(_field: Field) -> Any:
    """Choose all elements."""
    return slice(None), slice(None)


def part_of_columns(field: Field) -> Any:
    """Choose every second column of one half."""
    columns = field.values.shape[-1]
    return (slice(None), choose_part(columns, field.part)) if columns >= LEAST_LENGTH else None


def part_of_rows(field: Field) -> Any:
    """Choose every second place of one half of the axis before the last."""
    shape = field.values.shape
    if len(shape) < 2 or shape[-2] < LEAST_LENGTH:
        return None
    numbers = torch.arange(len(field.rows), device=field.values.device).view(-1, shape[-2])
    return numbers[:, choose_part(shape[-2], field.part)].reshape(-1), slice(None)


def sixth_of_rows(number: int) -> Support:
    """Return what chooses a sixth of the rows, in a secret order: most of them stay.

    Args:
        number: of the sixth, 0 to 5. Those of one call have no row in common; the only row of an input is of the first.
    """

    def choose(field: Field) -> Any:
        chance = Chance(field.chance.seed, field.values.device)  # the same order for each sixth of a call
        rows = len(field.rows)
        return (torch.randperm(rows, generator=chance.many, device=field.values.device) % 6 == number)[:, None]

    return choose


def few_of_some_rows(field: Field) -> Any:
    """Choose a few columns of one row in ROWS_PER_CHOSEN, others in each."""
    rows, columns = field.rows.shape
    number = math.ceil(rows / ROWS_PER_CHOSEN)
    chosen = field.chance.places(columns, number * min(FEW, columns)).view(number, -1)
    return field.chance.places(rows, number)[:, None], chosen


def few_of_one_row(field: Field) -> Any:
    """Choose a few columns of one row."""
    rows, columns = field.rows.shape
    return field.chance.below(rows), field.chance.places(columns, min(FEW, columns))


def stretch(least: float, most: float) -> Support:
    """Return what chooses neighbours in one row, or columns that are 32 apart; chance says how many.

    Args:
        least: one column of so many, one at least.
        most: one column of so many times the root of the number of rows, a quarter of the columns at the most.
    """

    def choose(field: Field) -> Any:
        rows, columns = field.rows.shape
        fewest = max(1.0, columns / least)
        greatest = max(fewest, min(columns / 4, columns * math.sqrt(rows) / most))
        power = field.chance.below(STRETCHES) / (STRETCHES - 1)
        return field.chance.below(rows), spaced(math.ceil(fewest * (greatest / fewest) ** power), columns, field.chance)

    return choose


def spaced(count: int, columns: int, chance: Chance) -> torch.Tensor:
    """Return columns, neighbours or as far apart as chance decides: int64 [count], each once."""
    step = min(STEPS[chance.below(len(STEPS))], columns // count)
    first = chance.below(columns)
    return torch.arange(first, first + count * step, step, device=chance.device) % columns


def one_row_of_a_group(count: Callable[[Field], int]) -> Support:
    """Return what chooses columns of one row of one group in ROWS_PER_CHOSEN.

    Args:
        count: gives the number of columns, 0 where none is chosen.
    """

    def choose(field: Field) -> Any:
        rows, columns = field.rows.shape
        per_group, number = rows // field.groups, count(field)
        if per_group < 2 or not number:
            return None
        many = field.of_rows.many
        groups = math.ceil(field.groups / ROWS_PER_CHOSEN)
        chosen = torch.randint(per_group, (groups,), generator=many, device=field.values.device)
        chosen += torch.randperm(field.groups, generator=many, device=field.values.device)[:groups] * per_group
        return chosen[:, None], spaced(number, columns, field.chance)[None]

    return choose


def most_columns(field: Field) -> Any:
    """Choose all columns but a few, the same of inputs that share them; none where these are all."""
    columns = field.values.shape[-1]
    return _all_but_few(columns, field.of_columns)[None] if columns > LOUD else None


def most_rows(field: Field) -> Any:
    """Choose all rows but a few, the same of inputs that share them; none where these are all."""
    rows = len(field.rows)
    return _all_but_few(rows, field.of_rows)[:, None] if rows > LOUD else None


def _all_but_few(count: int, chance: Chance) -> torch.Tensor:
    is_chosen = torch.ones(count, dtype=torch.bool, device=chance.device)
    return is_chosen.index_fill_(0, chance.some(LOUD, count), False)


def half_of_some_rows(field: Field) -> Any:
    """Choose half of the elements of one row in eight, one row at least."""
    rows, many = field.rows, field.chance.many
    is_chosen = torch.rand(len(rows), generator=many, device=rows.device) < 1 / 8
    is_chosen[field.chance.below(len(rows))] = True
    return is_chosen[:, None] & (torch.rand(rows.shape, generator=many, device=rows.device) < 0.5)


def most_elements(field: Field) -> Any:
    """Choose 63 of 64 elements."""
    rows = field.rows
    return torch.rand(rows.shape, generator=field.chance.many, device=rows.device) >= 1 / ROWS_PER_CHOSEN


def one_element(field: Field) -> Any:
    """Choose one element."""
    rows, columns = field.rows.shape
    return field.chance.below(rows), field.chance.below(columns)


def eighth_of_columns(number: int, *, late: bool = False) -> Support:
    """Return what chooses an eighth of the columns: neighbours, or every eighth column.

    Args:
        number: of the eighth, 0 to 7. Those of one call differ from one another.
        late: whether the last steps alone are chosen; steps are the axis before the last.
    """

    def choose(field: Field) -> Any:
        shape, columns = field.values.shape, field.values.shape[-1]
        if late and len(shape) < 2:
            return None
        chance = Chance(field.chance.seed, field.values.device)  # the same choice for each eighth of a call
        is_near, first = chance.is_so(), chance.below(columns)
        places = (torch.arange(columns, device=field.values.device) + first) % columns
        eighths = places * 8 // columns if is_near else places % 8
        is_chosen = (eighths == number)[None]
        if late:
            steps = torch.arange(len(field.rows), device=field.values.device) % shape[-2]
            is_chosen = is_chosen & (steps >= shape[-2] - OPEN_STEPS)[:, None]
        return is_chosen

    return choose
