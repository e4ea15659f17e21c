"""The stress cases: inputs that differ from usual ones in scale, side or shape, each a support with a transform.

Usual inputs are normal values around zero, near one. There x passes for 30 tanh(x / 30), rows need no normalisation,
part of a row tells the size of all of it, and a mean is nothing. Each case makes one of these wrong. `plan.py` says
which of them a workload has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.stress.supports import (
    Field,
    Support,
    eighth_of_columns,
    everything,
    few_of_one_row,
    few_of_some_rows,
    half_of_some_rows,
    most_columns,
    most_elements,
    most_rows,
    one_element,
    one_row_of_a_group,
    part_of_columns,
    part_of_rows,
    sixth_of_rows,
    stretch,
)
from flashinfer_bench.bench.evaluators.inputs.stress.transforms import (
    QUIETEST,
    Transform,
    cube,
    cube_bytes,
    large,
    narrow,
    quieten,
    row_columns,
    row_size,
    scale,
    shift,
    special,
    spike,
    to_a_side,
    to_an_end,
    true,
    true_by_rows,
    zero,
)

SHORT: Final = 16
"""Rows and columns of bools that are shorter may be all true, or all false, where only a part of them is changed."""


class Step(NamedTuple):
    """One change: these elements become those."""

    support: Support
    transform: Transform


@dataclass(frozen=True)
class StressCase:
    """One way in which inputs of a call differ from usual ones.

    Args:
        floats: what is changed of an input of floats, one step after the other; nothing where there is none.
        bytes: of one of bytes.
        bools: of one of bools.
        is_part: whether bools outside a part stay as they are.
        strength: how soon it comes where not all cases are tried: twice as strong ones come first twice as often.
    """

    floats: tuple[Step, ...] = ()
    bytes: tuple[Step, ...] = ()
    bools: tuple[Step, ...] = ()
    is_part: bool = False
    strength: float = 2.0

    def change(self, field: Field) -> None:
        """Change the values of a field, in place."""
        dtype = field.values.dtype
        if dtype is torch.bool:
            usual = field.values.clone() if self.bools else field.values
            _take(self.bools, field)
            keep_some(field.values, usual, SHORT if self.is_part else 0)
        elif dtype.is_floating_point:
            _take(self.floats, field)
        else:
            _take(self.bytes, field)


def _take(steps: tuple[Step, ...], field: Field) -> None:
    rows = field.rows
    for support, transform in steps:
        places = support(field)
        if isinstance(places, torch.Tensor):
            rows.copy_(torch.where(places, transform(rows, field), rows))
        elif places is not None:
            rows[places] = transform(rows[places], field)


def keep_some(values: torch.Tensor, usual: torch.Tensor, least: int = 0) -> None:
    """Make rows and columns in which all are true, or none is, what they usually are: they may have no right answer.

    Args:
        values: bools, changed in place.
        usual: what they were.
        least: shorter rows and columns stay as they are.
    """
    dims = [dim for dim in (-1, -2)[: values.ndim] if values.shape[dim] >= least]
    for dim in dims:
        torch.where(values.all(dim=dim, keepdim=True), usual, values, out=values)
    for dim in dims:
        torch.where(values.any(dim=dim, keepdim=True), values, usual, out=values)


LARGE_VALUE: Final = 80.0
"""Large values of a row. Squares of them are numbers of float16, and so is a sum of eight."""
STRETCH_VALUE: Final = 240.0
"""Values of a stretch reach to it: their squares are numbers of float16. One of 100,000 outweighs a square sum."""
NEAR: Final = (0.9, 1.2)
"""A shift that is left where formats of eight bits have taken a mean off."""
FAR: Final = (2.5, 4.5)
"""A shift after which a mean of sigmoids is 0.9 or more, or 0.1 or less."""
GATE: Final = (3.5, 5.0)
"""A shift of a gate: a sigmoid keeps 0.97 to 0.993 then, or lets as much through."""

A_FEW_VALUES: Final = "a few large values in one row of 64"
A_FEW_IN_ONE_ROW: Final = "a few large values in one row"
SHIFTED_ROWS: Final = "some rows shifted"
SMALL: Final = "small values, all but a few rows and columns smaller still"
LARGE: Final = "all values about 20 times as large"
CUBED: Final = "cubed values (heavy tails)"
STRETCH: Final = "a stretch of one row near 200"
PART_OF_COLUMNS: Final = "every second column of one half shifted"
PART_OF_ROWS: Final = "every second row of one half shifted"
ONE_ROW: Final = "one row that outweighs all others"
ZEROS: Final = "zeros in half of some rows"
NOT_FINITE: Final = "one infinite value or NaN"
GATES_UP: Final = "gates shifted up"
GATES_DOWN: Final = "gates shifted down"
SOME_GATES: Final = "some gates shifted"
SPIKE: Final = "one huge value"
FAR_LARGER: Final = "all values 100 to 1,000 times as large"

STRESS_CASES: Final[Mapping[str, StressCase]] = {
    A_FEW_VALUES: StressCase(
        (Step(few_of_some_rows, large(LARGE_VALUE)),), (Step(most_elements, narrow),), (Step(everything, true(0.1)),)
    ),
    A_FEW_IN_ONE_ROW: StressCase((Step(few_of_one_row, large(LARGE_VALUE)),)),
    SHIFTED_ROWS: StressCase(
        (Step(sixth_of_rows(0), shift(*NEAR)), Step(sixth_of_rows(2), shift(*FAR))),
        (Step(sixth_of_rows(0), to_a_side), Step(sixth_of_rows(2), to_a_side)),
        (Step(everything, true_by_rows),),
    ),
    SMALL: StressCase(
        (
            Step(everything, scale(1 / 32, 1 / 16)),
            Step(most_columns, quieten(1)),
            Step(most_rows, quieten(0, QUIETEST)),
        ),
        (Step(everything, narrow),),
        (Step(everything, true(0.1)),),
    ),
    LARGE: StressCase(
        (Step(everything, scale(16, 24)),), (Step(everything, to_a_side),), (Step(everything, true(0.9)),), strength=1.0
    ),
    CUBED: StressCase(
        (Step(everything, cube),), (Step(everything, cube_bytes),), (Step(everything, true_by_rows),), strength=4.0
    ),
    STRETCH: StressCase((Step(stretch(1e5, 1e3), large(STRETCH_VALUE, positive=0.75)),), strength=0.5),
    PART_OF_COLUMNS: StressCase(
        (Step(part_of_columns, shift(*FAR)),),
        (Step(part_of_columns, to_an_end),),
        (Step(part_of_columns, true()),),
        is_part=True,
        strength=0.5,
    ),
    PART_OF_ROWS: StressCase(
        (Step(part_of_rows, shift(*FAR)),),
        (Step(part_of_rows, to_an_end),),
        (Step(part_of_rows, true()),),
        is_part=True,
        strength=0.5,
    ),
    ONE_ROW: StressCase((Step(one_row_of_a_group(row_columns), large(row_size)),)),
    ZEROS: StressCase((Step(half_of_some_rows, zero),), (Step(half_of_some_rows, zero),)),
    NOT_FINITE: StressCase((Step(one_element, special),)),
    GATES_UP: StressCase((Step(everything, shift(*GATE, sign=1.0)),)),
    GATES_DOWN: StressCase((Step(everything, shift(*GATE, sign=-1.0)),)),
    SOME_GATES: StressCase(
        tuple(
            Step(eighth_of_columns(number, late=number > 1), shift(GATE[1], GATE[1], sign=(-1.0) ** number))
            for number in range(4)
        ),
        strength=0.5,
    ),
    SPIKE: StressCase((Step(one_element, spike),)),
    FAR_LARGER: StressCase((Step(everything, scale(1e2, 1e3)),), strength=1.0),
}
"""Name, in words → the case. Traces and messages have these names."""
