"""What the inputs of single calls hold: each call of a job gets content of its own, made from a secret.

A solution that has seen an input before could answer from memory, so no call gets what another had. The content of a
call comes from a set of inputs that the evaluator made, in one of four ways, by the input's rule (`rules.py`):

    scaled   moved along by a secret number of elements, and each multiplied by a factor of its own, from a table that
             begins in a secret place; negated in half of the calls where the input has both signs
    rolled   moved along by a secret number of elements: bytes, packed floats, and numbers whose range means something
    redrawn  made anew by the input's rule: rows that have to add up to one, say; stored ones are moved along in rows;
             custom ones by the definition's own function, all of a call together
    fixed    as it is: integers that give structure (page tables, offsets), single numbers, tables of constants

A pass over the input makes its content, so it costs about what a copy costs. The same number gives the same content.

One factor for all elements would not do: who has once added up the stretches of an input then knows all sums over rows
of the next one, wherever it was moved. With a factor for each element there are as many sums as pairs of places.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.custom import SLOW_S, CustomInputs, list_custom
from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import Way, find_way, make_tensor
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED, TorchWriter, Writer, open_writer
from flashinfer_bench.data import Definition, RandomInput, Workload

LARGEST_FACTOR: Final = 1.25
"""Factors of scaled inputs lie between this and its inverse: outputs stay of the size that the tolerances are for."""
FACTORS: Final = (1 << 20) + 7
"""Length of the table of factors, a prime: so long that small inputs, too, hardly come twice in a trial, and that no
row is much longer, which could be added up by the factors' period."""
PROBES: Final = range(-3, 0)
"""Numbers that no call has: their contents tell whether an input can differ at all. A single value may come again once
by chance."""

Remaker = Callable[[int], torch.Tensor]
"""Makes an input anew from a seed."""


@dataclass(frozen=True)
class VariedInput:
    """How one input differs from call to call."""

    name: str
    way: Way
    remake: Remaker | None = None
    """Makes a "redrawn" input that is random in its workload, or custom."""
    is_joint: bool = False
    """Whether it is made together with other inputs of its call, from one seed."""


def find_varied(definition: Definition, workload: Workload, device: torch.device) -> list[VariedInput]:
    """Return how each input of a workload differs from call to call, in the order of the definition.

    Raises:
        WorkloadFault: an axis of the workload has no size.
    """
    axes, shapes = bind_axes(definition, workload)
    blanks = {name: Blank(name, definition, shape or (), axes, {}, 0, device) for name, shape in shapes.items()}
    ways: dict[str, Way] = {
        name: "fixed" if shapes[name] is None else find_way(blank) for name, blank in blanks.items()
    }
    varied = {name: VariedInput(name, way) for name, way in ways.items()}
    for name, shape in shapes.items():
        if shape is not None and isinstance(workload.inputs.get(name), RandomInput | None):
            varied[name] = VariedInput(name, ways[name], _remaker(blanks[name]))
    if list_custom(workload):
        custom = CustomInputs(definition, workload, axes, shapes, device)
        varied.update(_vary_custom(custom, ways))
    return list(varied.values())


def _vary_custom(custom: CustomInputs, ways: Mapping[str, Way]) -> dict[str, VariedInput]:
    """Return how custom inputs differ, but for those that are varied as stored ones are.

    Those that chance has no part in stay as they are, unless that holds for all. The others are made anew where that is
    quick, and leaves integers that give structure alone.
    """
    differing, seconds = custom.compare_draws(seed=0)
    changes_structure = any(ways[name] == "fixed" for name in differing)
    is_drawn = seconds <= SLOW_S and not changes_structure
    varied: dict[str, VariedInput] = {}
    for name in custom.names if differing else ():
        if name not in differing:
            varied[name] = VariedInput(name, "fixed")
        elif is_drawn:
            varied[name] = VariedInput(name, "redrawn", _picker(custom, name), is_joint=True)
    return varied


def _picker(custom: CustomInputs, name: str) -> Remaker:
    return lambda seed: custom.draw(seed)[name]


def _remaker(blank: Blank) -> Remaker:
    return lambda seed: make_tensor(Blank(**{**vars(blank), "seed": seed}))


class Contents:
    """The inputs of the calls of one trial.

    Args:
        base: the evaluator's inputs of the trial, in the order of the definition; they are read and never changed.
        varied: how each input differs from call to call.
        seed: secret; with the number of a call it decides the call's content.
        base_number: the call that gets the base itself, whose expected outputs are known.
    """

    def __init__(self, base: Sequence[Any], varied: Sequence[VariedInput], seed: int, base_number: int) -> None:
        self.base = list(base)
        self.base_number = base_number
        self._varied = list(varied)
        self._seed = seed
        self._device = next((value.device for value in base if isinstance(value, torch.Tensor)), torch.device("cpu"))
        self._factors: dict[tuple[int, bool], torch.Tensor] = {}
        """Input and whether it is negated → its table of factors, found sooner here than by dtype and device."""
        self._has_both_signs = [
            _has_both_signs(value) if one.way == "scaled" and isinstance(value, torch.Tensor) else False
            for value, one in zip(base, varied, strict=True)
        ]

    @functools.cached_property
    def differs(self) -> bool:
        """Whether any input differs from call to call: zeros, constants and single bytes are what they were."""
        return any(self._changes(index) for index in range(len(self.base)))

    def stands_for(self, input_sets: Sequence[Sequence[Any]]) -> bool:
        """Tell whether calls of this trial get what calls of trials on other inputs would get.

        They do where all that keeps its values in a trial is the same in all: fixed inputs, and integers that are moved
        along, such as the experts of tokens.
        """
        keeps = [index for index, one in enumerate(self._varied) if self._keeps_values(one.way, self.base[index])]
        return all(_is_same(self.base[index], inputs[index]) for inputs in input_sets for index in keeps)

    @staticmethod
    def _keeps_values(way: Way, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return True
        return way == "fixed" or (way == "rolled" and not value.is_floating_point())

    def _changes(self, index: int) -> bool:
        value = self.base[index]
        if self._varied[index].way == "fixed" or not isinstance(value, torch.Tensor) or value.numel() == 0:
            return False
        target = torch.empty_like(value, memory_format=torch.contiguous_format)
        base = value.reshape(-1).view(torch.uint8)
        writer = TorchWriter()
        for number in PROBES:
            self._write_one(number, index, target, writer)
            if not torch.equal(target.view(-1).view(torch.uint8), base):
                return True
        return False

    def make(self, number: int) -> list[Any]:
        """Return the inputs of a call, in memory of their own where they differ from the base."""
        return self.make_all([number])[0]

    def make_all(self, numbers: Sequence[int]) -> list[list[Any]]:
        """Return the inputs of each of some calls; all are written together."""
        writer, made = open_writer(self._device), []
        for number in numbers:
            made.append([torch.empty_like(value) if isinstance(value, torch.Tensor) else value for value in self.base])
            self.write(number, [value if isinstance(value, torch.Tensor) else None for value in made[-1]], writer)
        writer.finish()
        return made

    def write(self, number: int, into: Sequence[torch.Tensor | None], writer: Writer | None = None) -> None:
        """Write the inputs of a call.

        Args:
            number: the call's.
            into: contiguous tensors of the inputs' shapes and dtypes; None for what is no tensor.
            writer: is told what to write, and has to be finished by the caller; where none is given, all is launched.
        """
        told = writer or open_writer(self._device)
        for index, (value, target) in enumerate(zip(self.base, into, strict=True)):
            if target is None or value.numel() == 0:
                continue
            if number == self.base_number or self._varied[index].way == "fixed":
                told.move(value, target, 0)
            else:
                self._write_one(number, index, target, told)
        if writer is None:
            told.finish()

    def _write_one(self, number: int, index: int, target: torch.Tensor, writer: Writer) -> None:
        value, varied = self.base[index], self._varied[index]
        secret = derive_seed(self._seed, "content", number, *(() if varied.is_joint else (index,)))
        if varied.way == "redrawn" and varied.remake is not None:
            target.copy_(varied.remake(secret))
        elif varied.way == "redrawn":
            dimension = -1 if value.is_floating_point() else 0  # packed pages are moved along as wholes
            size = value.shape[dimension]
            target.copy_(torch.roll(value, 1 + secret % (size - 1), dims=dimension) if size > 1 else value)
        else:
            by = choose_move(value, secret)
            if varied.way == "scaled" and value.dtype in MULTIPLIED:
                is_negated = self._has_both_signs[index] and bool((secret >> 60) & 1)
                factors = self._factors.get((index, is_negated))
                if factors is None:
                    factors = make_factors(value.dtype, value.device, is_negated=is_negated)
                    self._factors[index, is_negated] = factors
                writer.scale(value, target, by, factors, (secret >> 40) % FACTORS)
            else:
                writer.move(value, target, by)


@functools.cache
def make_factors(dtype: torch.dtype, device: torch.device, *, is_negated: bool = False) -> torch.Tensor:
    """Return the table of factors; it is no secret, but where a call begins in it is."""
    generator = torch.Generator().manual_seed(FACTORS)
    shares = 2 * torch.rand(FACTORS, generator=generator, dtype=torch.float64) - 1
    factors = (shares * math.log(LARGEST_FACTOR)).exp()
    return (-factors if is_negated else factors).to(device=device, dtype=dtype)


def choose_move(value: torch.Tensor, secret: int) -> int:
    """Return by how many elements a tensor is moved along: not by whole rows, so that no row is one of the base."""
    count = value.numel()
    if count < 2:
        return 0
    columns = value.shape[-1] if value.ndim else 1
    move = 1 + secret % (count - 1)
    if columns > 1 and move % columns == 0:
        move = move - 1 if move > 1 else move + 1
    return move


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor):
        return value is other or torch.equal(*(one.reshape(-1).view(torch.uint8) for one in (value, other)))
    return bool(value == other)


def _has_both_signs(value: torch.Tensor) -> bool:
    if value.dtype not in MULTIPLIED or value.numel() == 0:
        return False
    low, high = value.amin(), value.amax()
    return bool((low < 0) & (high > 0) & torch.isfinite(low) & torch.isfinite(high))
