"""Inputs of other regimes, which a few calls of a job get in secret. They serve correctness, never the latency.

Usual inputs are normal values near one. There x passes for 30 tanh(x / 30), rows need no normalisation, and a part of
a row tells the size of all of it. In another regime these are wrong. Only random floats that a definition leaves free
are changed: no stored values, no scales, probabilities or gates, whose range means something.
"""

from __future__ import annotations

import ast
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import torch

from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import is_free
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed, make_generator
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED
from flashinfer_bench.data import Definition, RandomInput, Workload
from flashinfer_bench.data.dtypes import DTYPES

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
"""Of more columns or rows the loud ones are drawn one by one."""
FEW_NUMBERS: Final = 16
"""An output of fewer elements may be right by chance on inputs of a regime: of a single number, who looks at half of a
row is off by no more than roundings may move it in 45 of 100 calls."""
MORE_CALLS: Final = 3
"""So there each trial has so many more calls of the regimes `smaller` and `one_row`."""
ROW_FACTOR: Final = 32
LEAST_ROW_FACTOR: Final = 16
"""In the regime `one_row` one row is multiplied by so many times the number of rows. So it is most of a sum over all of
them, also where each row's part is near a constant, as the logarithm of a sum is; and formats that take the others
for zeros are off by a thirtieth. Where numbers that large are none of the input's, half of it will do, or none is."""
LARGEST_ROW_FACTOR: Final = float(1 << 20)
ROOM: Final = 10.0
"""Usual values reach no further; times the factor they are numbers still."""
LARGEST_VALUE: Final = 100.0
"""Of the few large values: its square is still a number of float16."""
LARGE_SHARE: Final = 2.0
"""The few large values of a row hold about as much of its square sum as this many rows: whoever leaves them out of the
statistics of a row, or counts them twice, is off by half."""
LEAST_LARGE: Final = 8
"""Large values of a row, at least: with fewer, the rounding of one of them would move the whole row."""
CHOOSES: Final = re.compile(
    r"topk|top_k|argmax|argmin|argsort|kthvalue|multinomial|one_hot|bernoulli"
    r"|(?:^|_)(?:m?sort$|round_?$|rand|poisson|dropout)|^_?sampl|^(?:exponential|normal|uniform)_$"
)
"""A name in a reference that chooses or draws: in another regime its choices may all tie."""
CHOOSES_IN_TEXT: Final = re.compile(
    r"topk|top_k|argmax|argmin|argsort|sort\(|kthvalue|multinomial|round\(|one_hot|rand|bernoulli"
)
"""The same in the text of a reference that cannot be parsed."""
CHOOSING_OP_TYPES: Final = frozenset({"moe", "sampling", "top_k"})


class SharedPlaces(NamedTuple):
    """Generators that choose places along the axes of an input: the same for all inputs that have the same axes."""

    of_last_axis: torch.Generator
    of_other_axes: torch.Generator


Change = Callable[[torch.Tensor, torch.Generator, SharedPlaces], object]
"""Changes an input, given a generator of its own, and what it shares with others."""


def _uniform(bounds: tuple[float, float], generator: torch.Generator) -> float:
    share = float(torch.rand((), generator=generator, device=generator.device))
    return bounds[0] + (bounds[1] - bounds[0]) * share


def _make_few_large(values: torch.Tensor, generator: torch.Generator, _shared: SharedPlaces) -> None:
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    size = min(math.sqrt(LARGE_SHARE * columns / LEAST_LARGE), LARGEST_VALUE)
    count = min(columns, math.ceil(LARGE_SHARE * columns / size**2))
    shape = (len(rows), count)
    places = torch.randint(columns, shape, generator=generator, device=values.device)
    large = torch.rand(shape, generator=generator, device=values.device).mul_(0.3).add_(0.7).mul_(size)
    signs = torch.randint(2, shape, generator=generator, device=values.device).mul_(2).sub_(1)
    rows.scatter_(1, places, (large * signs).to(values.dtype))


def _make_smaller(values: torch.Tensor, generator: torch.Generator, shared: SharedPlaces) -> None:
    values.mul_(_uniform(SMALLER, generator))
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    rows.mul_(_leave_few_loud(columns, 0.0, shared.of_last_axis).to(values.dtype))
    rows.mul_(_leave_few_loud(len(rows), QUIETEST_ROW, shared.of_other_axes).to(values.dtype)[:, None])


def _make_one_row(values: torch.Tensor, generator: torch.Generator, shared: SharedPlaces) -> None:
    del generator
    rows = values.view(-1, values.shape[-1])
    factor = min(ROW_FACTOR * len(rows), LARGEST_ROW_FACTOR, torch.finfo(values.dtype).max / ROOM)
    if len(rows) > 1 and factor >= LEAST_ROW_FACTOR * len(rows):
        place = torch.randint(len(rows), (), generator=shared.of_other_axes, device=values.device)
        rows[place] *= factor


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


REGIMES: Final[Mapping[str, Change]] = {
    "few_large": _make_few_large,
    "larger": lambda values, generator, _: values.mul_(_uniform(LARGER, generator)),
    "smaller": _make_smaller,
    "heavy_tails": lambda values, *_: values.pow_(3),
    "one_row": _make_one_row,
}
"""Name → changes usual values in place. The first is used in every job, the others in a secret order, but the last one,
which is for outputs of few numbers."""
FOR_FEW_NUMBERS: Final = ("smaller", "one_row")


def why_no_regimes(definition: Definition) -> str | None:
    """Say why a definition is judged on usual inputs only; None where it is not."""
    is_float = [DTYPES[spec.dtype].kind == "float" for spec in definition.outputs.values()]
    if definition.op_type in CHOOSING_OP_TYPES or not any(is_float):
        return "its outputs choose"
    return "its reference chooses" if chooses(definition.reference or "") else None


@lru_cache(maxsize=256)
def chooses(source: str) -> bool:
    """Tell by the names in a reference whether it chooses or draws; texts and comments are no names."""
    try:
        names = [name for node in ast.walk(ast.parse(source)) for name in _names(node)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return CHOOSES_IN_TEXT.search(source) is not None
    return any(map(CHOOSES.search, names))


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name):
            return tuple(name.split("."))
        case _:
            return ()


def has_few_numbers(definition: Definition, workload: Workload) -> bool:
    """Say whether an output of floats has few elements; False also where its shape cannot be told."""
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError):
        return False
    specs = zip(definition.outputs.values(), shapes, strict=True)
    return any(0 < math.prod(shape or ()) < FEW_NUMBERS for spec, shape in specs if DTYPES[spec.dtype].kind == "float")


class Regimes:
    """The regimes of one job.

    Args:
        definition: what is computed.
        workload: says which inputs are random.
        seed: of the job; nobody outside the judge knows it while the job is judged.
    """

    def __init__(self, definition: Definition, workload: Workload, seed: int) -> None:
        self._seed = derive_seed(seed, "regimes")
        axes, shapes = bind_axes(definition, workload)
        self.free = [
            shape is not None
            and len(shape) > 0
            and math.prod(shape) > 0
            and (name not in workload.inputs or isinstance(workload.inputs[name], RandomInput))
            and is_free(Blank(name, definition, shape, axes, {}, 0, torch.device("cpu")))
            for name, shape in shapes.items()
        ]
        """Which inputs are changed, in the order of the definition."""
        self._has_few_numbers = has_few_numbers(definition, workload)
        self._axes = [tuple(spec.shape or ()) for spec in definition.inputs.values()]

    @property
    def names(self) -> list[str]:
        """All regimes that the job may have."""
        return [name for name in REGIMES if self._has_few_numbers or name != "one_row"]

    def choose(self, trial: int, trials: int) -> list[str]:
        """Return the regimes of a trial: one in each, one more in the last; and more for outputs of few numbers."""
        chance = random.Random(self._seed)
        first, *others = [name for name in REGIMES if name != "one_row"]
        chance.shuffle(others)
        wanted = [first, *others][: trials + 1]
        chance.shuffle(wanted)
        chosen = wanted[trial : trial + 1] if trial < trials - 1 else wanted[trial:]
        more = [*FOR_FEW_NUMBERS] * (MORE_CALLS if self._has_few_numbers else 0)
        return [*more, *chosen]  # a trial of slow calls has the first only

    def change(self, name: str, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Turn usual inputs of a call into those of a regime, in place."""
        for index, (is_changed, value) in enumerate(zip(self.free, values, strict=True)):
            if is_changed and value is not None and value.dtype in MULTIPLIED:
                generator = make_generator(self._seed, name, number, index, device=value.device)
                axes = self._axes[index]
                shared = [
                    make_generator(self._seed, name, number, *of, device=value.device) for of in (axes[-1:], axes[:-1])
                ]
                REGIMES[name](value, generator, SharedPlaces(*shared))
