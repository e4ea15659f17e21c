"""Inputs of which a secret part differs: who looks at some of the elements may see nothing of it.

Where all elements differ, a look at a hundredth of them tells it. Here most stay as they are. Which part it is, chance
decides in each call: every second column of one half, every second row of one half, or a few elements of one row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.chance import Chance

STRETCH: Final = "stretch"
FEW_GATES: Final = "few_gates"
PART_OF_COLUMNS: Final = "part_of_columns"
PART_OF_ROWS: Final = "part_of_rows"
AXES: Final[Mapping[str, int]] = {PART_OF_COLUMNS: -1, PART_OF_ROWS: -2}
"""Regime → of which axis a part differs."""
LEAST_LENGTH: Final = 4
"""A shorter axis has no part."""
STRETCH_VALUE: Final = 200.0
"""In the regime `stretch` some elements of one row are about as large, of one sign: squares of them are numbers of
float16, and so are those of the regime `larger`, whose largest elements are half as large."""
PER_SQUARES: Final = 100_000.0
"""One of them for so many elements of a row outweighs these where squares are summed up."""
PER_SUM: Final = 1_000.0
"""One of them for so many elements of a row, times the root of the number of rows, is a fifth of an output of sums of
these rows."""
UPWARDS: Final = 0.75
"""In so many of these calls they are positive: of negative ones a softplus leaves nothing."""
AMOUNTS: Final = 3
"""There are as many as outweigh a row's squares, or its sum, or so many between these."""
STEPS: Final = (1, 32, 32)
"""So far apart they are. Who looks at every second, fourth or eighth element sees all of those that are 32 apart, or
none; who looks at pieces of rows seldom sees those that follow one another."""

GATE_SHARE: Final = 8
"""In the regime `few_gates` four columns of so many are moved: of every so many, or neighbours. Two are moved to one
side, two to the other, and one of each only in the last steps."""
OPEN_STEPS: Final = 80
"""So many: before them gates let something in, which these keep."""
GATE_OFFSET: Final = 5.0
"""By so much gates are moved: what is said of moved gates in `values.py` holds here, too."""


def choose_part(length: int, chance: Chance) -> slice:
    """Return which places of an axis are of a part: every second one of a secret half.

    Who looks at one half of an axis, or at every second place, sees none of them in half of the calls, and so does who
    looks at less.
    """
    half, turn = chance.below(2), chance.below(2)
    begin, end = math.ceil(half * length / 2), math.ceil((half + 1) * length / 2)
    return slice(begin + (begin + turn) % 2, end, 2)


def find_part(values: torch.Tensor, axis: int, chance: Chance) -> torch.Tensor | None:
    """Return a view of the elements of a part along an axis; None where there is none.

    Args:
        values: of any shape.
        axis: -1 for columns, -2 for rows.
        chance: of the values' device.
    """
    if values.ndim < -axis or values.shape[axis] < LEAST_LENGTH:
        return None
    return values.transpose(axis, -1)[..., choose_part(values.shape[axis], chance)].transpose(axis, -1)


def choose_places(count: int, columns: int, chance: Chance) -> torch.Tensor:
    """Return places of a row, as far apart as chance decides: int64 [count]; there are no more than columns."""
    step = min(STEPS[chance.below(len(STEPS))], columns // count)
    first = chance.below(columns)
    return torch.arange(first, first + count * step, step, device=chance.device) % columns


def put_stretch(values: torch.Tensor, chance: Chance) -> None:
    """Make elements of one row large, as many as chance decides: in place."""
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    fewest = max(1.0, columns / PER_SQUARES)
    most = max(fewest, min(columns / 4, columns * math.sqrt(len(rows)) / PER_SUM))
    count = math.ceil(fewest * (most / fewest) ** (chance.below(AMOUNTS) / (AMOUNTS - 1)))
    large = torch.empty(count, device=values.device).uniform_(
        0.9 * STRETCH_VALUE, 1.2 * STRETCH_VALUE, generator=chance.many
    )
    places = choose_places(count, columns, chance)
    large = large if chance.is_so(UPWARDS) else large.neg_()
    rows[chance.below(len(rows))].index_copy_(0, places, large.to(values.dtype))


def move_few_gates(values: torch.Tensor, chance: Chance) -> None:
    """Move the gates of some columns to either side, in place. Steps are the axis before the last."""
    columns = values.shape[-1]
    places = torch.arange(columns, device=values.device)
    if chance.is_so():
        turns = (places + chance.below(columns)) % columns * GATE_SHARE // columns
    else:
        turns = (places + chance.below(GATE_SHARE)) % GATE_SHARE
    sides = [((turns == first).to(values.dtype) - (turns == first + 1).to(values.dtype)) for first in (0, 2)]
    values += sides[0] * GATE_OFFSET
    if values.ndim > 1:
        values[..., -OPEN_STEPS:, :] += sides[1] * GATE_OFFSET
