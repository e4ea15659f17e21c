"""What the inputs of single calls hold: each call of a job gets content of its own, made from a secret.

A solution that has seen an input before could answer from memory, so no call gets what another had. The content of a
call comes from a set of inputs that the evaluator made, in one of four ways, by the input's rule (`rules.py`):

    scaled   moved along by a secret number of elements, shuffled within rows, and each multiplied by a factor of its
             row's and one of its own, all drawn anew; negated in half of the calls where the input has both signs.
             What is normal and random in its workload is drawn anew by the writer
    rolled   moved along by a secret number of elements: bytes, packed words and floats, and numbers whose range means
             something. Bits of what is packed and of bytes are flipped, too, by a secret pattern: of those that are
             random in their workload any, of others such that numbers stay within their range (`nudges.py`)
    redrawn  made anew by the input's rule: rows that have to add up to one, say; stored ones are shuffled in rows, and
             each element multiplied by a factor of its own; custom ones by the definition's own function, all of a
             call together
    fixed    as it is: integers that give structure (page tables, offsets), single numbers, tables of constants

A pass over the input makes its content. A CPU takes 2 to 3 ns for an element that is drawn, and 4 to 12 ns for one that
is shuffled. The same number gives the same content on the same kind of device.

Factors from a table that is known would not do: of products, who knows the base and the factors knows the sum of the
logarithms. Without shuffling he knows in which few places the largest of a row may be. One factor for all elements
would not do: who has once added up the stretches of an input then knows all sums over rows of the next one, wherever it
was moved. Factors of elements alone would not do: they even out in a long row, so its sum is about a stretch's. Nor
would it do to move bytes along: who has unpacked them once takes a stretch of that.

Moving rows of probabilities along would not do either: who has sorted a row once knows the order and the running sums
of the next one, and with the order even a draw from other probabilities takes no look at all of them.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.custom import SLOW_S, CustomInputs, list_custom
from flashinfer_bench.bench.evaluators.inputs.make import bind_axes
from flashinfer_bench.bench.evaluators.inputs.nudges import AnyBits, Flips, find_nudge
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank, Way
from flashinfer_bench.bench.evaluators.inputs.rules import (
    find_deviation,
    find_flips,
    find_way,
    has_any_bools,
    is_quantised,
    make_tensor,
)
from flashinfer_bench.bench.evaluators.inputs.targets import pick
from flashinfer_bench.bench.evaluators.inputs.writer import (
    DRAWN,
    MULTIPLIED,
    Changes,
    TorchWriter,
    Unsigned,
    Writer,
    open_writer,
)
from flashinfer_bench.data import Definition, RandomInput, Workload

LARGEST_SHARE_FACTOR: Final = 2.0
"""Factors of stored rows that have to add up to something lie between this and its inverse: so wide that the order of
the elements changes, and so narrow that rows stay about as sharp as they were."""
SHORTEST_ROW: Final = 64
"""Shorter rows are not shuffled each by itself: some places are known of few."""
SHORT_TOGETHER: Final = 4096
"""So many elements of short rows, at the most, are shuffled as one row."""
LONGEST_ROW: Final = 1 << 22
"""Longer rows are shuffled in parts of at most this length: on a GPU such a part of float32 lies in the L2."""
SECRETS_TOGETHER: Final = 64
"""Calls whose secrets are drawn together."""
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
    deviation: float | None = None
    """Standard deviation of a "scaled" input that is normal and random in its workload."""
    flips: int = 0
    """Bits of each byte of a "rolled" input, random in its workload, of which a secret decides which are flipped."""
    is_nudged: bool = False
    """Whether a "rolled" input that is not random in its workload holds numbers, which may be changed a little."""


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
    varied = {
        name: VariedInput(name, way, is_nudged=way == "rolled" and is_quantised(blanks[name]))
        for name, way in ways.items()
    }
    for name, shape in shapes.items():
        if shape is not None and isinstance(workload.inputs.get(name), RandomInput | None):
            deviation = find_deviation(blanks[name])
            way: Way = "rolled" if has_any_bools(blanks[name]) else ways[name]
            flips = find_flips(blanks[name]) if way == "rolled" else 0
            varied[name] = VariedInput(name, way, _remaker(blanks[name]), deviation=deviation, flips=flips)
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
    """The inputs of the calls on one set of inputs.

    Args:
        base: the evaluator's inputs, in the order of the definition; they are read and never changed.
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
        self._nudges: dict[int, Flips | None] = {}
        """How inputs whose bits are flipped are changed, by their places."""
        self._secrets: dict[int, Unsigned] = {}
        """Calls whose numbers follow one another → their secrets."""
        self._has_both_signs = find_both_signs(
            [value if one.way in ("scaled", "redrawn") else None for value, one in zip(base, varied, strict=True)]
        )

    @functools.cached_property
    def differs(self) -> bool:
        """Whether any input differs from call to call: zeros, constants and single bytes are what they were."""
        return any(self._changes(index) for index in range(len(self.base)))

    def _changes(self, index: int) -> bool:
        value = self.base[index]
        if self._varied[index].way == "fixed" or not isinstance(value, torch.Tensor) or value.numel() == 0:
            return False
        if self._find_deviation(index) is not None:
            return True  # it is drawn anew
        if self._is_varied(index):
            return bool((value.isfinite() & (value != 0)).any())
        target = torch.empty_like(value, memory_format=torch.contiguous_format)
        base = value.reshape(-1).view(torch.uint8)
        writer, column = TorchWriter(), -1 if self._varied[index].is_joint else index
        for number in PROBES:
            self._write_input(index, self._find_secrets([number])[:, column], [target], writer)
            if not torch.equal(target.view(-1).view(torch.uint8), base):
                return True
        return False

    def _find_deviation(self, index: int) -> float | None:
        """Return the deviation of normal values that can be drawn anew; None where an input has other ones."""
        return self._varied[index].deviation if self.base[index].dtype in DRAWN else None

    def _find_flips(self, index: int) -> Flips | None:
        """Return how bits of an input may be flipped; None where they have to stay."""
        varied = self._varied[index]
        if varied.flips:
            return AnyBits(varied.flips)
        if not varied.is_nudged:
            return None
        if index not in self._nudges:
            self._nudges[index] = find_nudge(self.base[index])
        return self._nudges[index]

    def _is_varied(self, index: int) -> bool:
        """Tell whether an input is made of its base by shuffling and factors."""
        return self._varied[index].way == "scaled" and self.base[index].dtype in MULTIPLIED

    def make(self, number: int) -> list[Any]:
        """Return the inputs of a call, in memory of their own where they differ from the base."""
        return self.make_all([number])[0]

    def make_all(self, numbers: Sequence[int]) -> list[list[Any]]:
        """Return the inputs of each of some calls; all are written together."""
        return write_together(self.base, numbers, self.write_all)

    def write_all(self, numbers: Sequence[int], into: Sequence[Sequence[torch.Tensor] | None], writer: Writer) -> None:
        """Have the inputs of some calls written.

        A row of calls takes little longer than one of them: a GPU's session writes a thousand in a job.

        Args:
            numbers: the calls'.
            into: of each input contiguous tensors of its shape and dtype, one a call; None for what is no tensor.
            writer: is told what to write, and has to be finished by the caller.
        """
        own = [at for at, number in enumerate(numbers) if number != self.base_number]
        base = [at for at, number in enumerate(numbers) if number == self.base_number]
        secrets = self._find_secrets([numbers[at] for at in own])
        joint: list[tuple[int, Sequence[torch.Tensor]]] = []
        for index, (value, targets) in enumerate(zip(self.base, into, strict=True)):
            if not isinstance(value, torch.Tensor) or value.numel() == 0 or not targets:
                continue
            is_fixed = self._varied[index].way == "fixed"
            unchanged = targets if is_fixed else pick(targets, base)
            if unchanged:
                writer.move_rows(value, unchanged, np.zeros(len(unchanged), np.uint64))
            if own and not is_fixed:
                changed = pick(targets, own) if base else targets
                if self._varied[index].is_joint:
                    joint.append((index, changed))
                else:
                    self._write_input(index, secrets[:, index], changed, writer)
        for at in range(len(own)):  # those of a call are made at once, by a function of the definition's
            for index, changed in joint:
                self._write_input(index, secrets[at : at + 1, -1], changed[at : at + 1], writer)

    def _find_secrets(self, numbers: Sequence[int]) -> Unsigned:
        """Return the secrets of some calls, below 2**63: [calls, inputs + 1]; the last one is for joint inputs."""
        blocks = sorted({number // SECRETS_TOGETHER for number in numbers})
        if len(blocks) == 1:
            return self._draw_secrets(blocks[0])[[number % SECRETS_TOGETHER for number in numbers]]
        drawn = [self._draw_secrets(block) for block in blocks]
        begins = {block: SECRETS_TOGETHER * at for at, block in enumerate(blocks)}
        places = [begins[number // SECRETS_TOGETHER] + number % SECRETS_TOGETHER for number in numbers]
        return np.concatenate(drawn)[places] if drawn else np.zeros((0, len(self.base) + 1), np.uint64)

    def _draw_secrets(self, block: int) -> Unsigned:
        """Return the secrets of calls whose numbers follow one another: one digest gives them all."""
        if block not in self._secrets:
            columns = len(self.base) + 1
            text = "\x1f".join(map(str, (self._seed, "contents", block)))
            drawn = hashlib.shake_256(text.encode()).digest(8 * columns * SECRETS_TOGETHER)
            words = np.frombuffer(drawn, ">u8").astype(np.uint64) >> np.uint64(1)
            self._secrets[block] = words.reshape(SECRETS_TOGETHER, columns)
        return self._secrets[block]

    def _write_input(self, index: int, secrets: Unsigned, into: Sequence[torch.Tensor], writer: Writer) -> None:
        """Have one input of some calls written, given the secret of each."""
        value, varied = self.base[index], self._varied[index]
        if varied.way == "redrawn":
            for secret, target in zip(secrets.tolist(), into, strict=True):
                target.copy_(self._redraw(index, secret))
            return
        deviation = self._find_deviation(index)
        if deviation is not None:
            writer.draw_rows(into, secrets, deviation)
            return
        by = choose_moves(value, secrets)
        if not self._is_varied(index):
            writer.move_rows(value, into, by)
            flips = self._find_flips(index)
            if flips is not None:
                writer.flip_rows(into, secrets, flips)
            return
        is_negated = (secrets >> np.uint64(60) & np.uint64(1)).astype(bool) & self._has_both_signs[index]
        writer.vary_rows(value, into, Changes(by, secrets, is_negated, choose_columns(value)))

    def _redraw(self, index: int, secret: int) -> torch.Tensor:
        """Return an input that is made anew."""
        value: torch.Tensor = self.base[index]
        remake = self._varied[index].remake
        if remake is not None:
            return remake(secret)
        dimension = -1 if value.is_floating_point() else 0  # packed pages are moved along as wholes
        size = value.shape[dimension]
        if size < 2:
            return value
        if value.dtype in MULTIPLIED:
            return redraw_rows(value, secret, keeps_length=self._has_both_signs[index])
        return torch.roll(value, 1 + secret % (size - 1), dims=dimension)


def write_together(base: Sequence[Any], numbers: Sequence[int], write_all: Callable[..., None]) -> list[list[Any]]:
    """Return the inputs of each of some calls, in memory of their own, as `write_all` writes them."""
    into = [[torch.empty_like(one) for _ in numbers] if isinstance(one, torch.Tensor) else None for one in base]
    device = next((one.device for one in base if isinstance(one, torch.Tensor)), torch.device("cpu"))
    writer = open_writer(device)
    write_all(numbers, into, writer)
    writer.finish()
    return [
        [one if targets is None else targets[at] for one, targets in zip(base, into, strict=True)]
        for at in range(len(numbers))
    ]


class DealtContents:
    """The inputs of a job's calls, which have the evaluator's sets of inputs by turns.

    Call n has set n % sets, and what call n // sets on that set has.

    Args:
        each: the contents of each set; all have the same shapes, dtypes and single values.
    """

    def __init__(self, each: Sequence[Contents]) -> None:
        self._each = list(each)

    def __len__(self) -> int:
        return len(self._each)

    @property
    def base(self) -> list[Any]:
        """The evaluator's first set of inputs: all sets have its shapes, dtypes and single values."""
        return self._each[0].base

    @functools.cached_property
    def differs(self) -> bool:
        """Whether any input differs from call to call, in each set."""
        return all(one.differs for one in self._each)

    def set_of(self, number: int) -> int:
        """Return which set a call has."""
        return number % len(self._each)

    def is_base(self, number: int) -> bool:
        """Tell whether a call has the evaluator's own inputs."""
        return number // len(self._each) == self._each[self.set_of(number)].base_number

    def make(self, number: int) -> list[Any]:
        """Return the inputs of a call, in memory of their own where they differ from the base."""
        return self.make_all([number])[0]

    def make_all(self, numbers: Sequence[int]) -> list[list[Any]]:
        """Return the inputs of each of some calls, in memory of their own; all are written together."""
        return write_together(self.base, numbers, self.write_all)

    def write_all(self, numbers: Sequence[int], into: Sequence[Sequence[torch.Tensor] | None], writer: Writer) -> None:
        """Have the inputs of some calls written, as `Contents.write_all` does."""
        for at, one in enumerate(self._each):
            own = [position for position, number in enumerate(numbers) if self.set_of(number) == at]
            if own:
                targets = [None if some is None else pick(some, own) for some in into]
                one.write_all([numbers[position] // len(self._each) for position in own], targets, writer)


def redraw_rows(value: torch.Tensor, secret: int, *, keeps_length: bool) -> torch.Tensor:
    """Return rows in another order of the elements, each of which is multiplied by a factor of its own.

    Zeros stay zeros, and signs what they are. Some fifteen launches on a GPU, and nobody waits for it.

    Args:
        value: rows of a dtype in MULTIPLIED.
        secret: decides the order, which all rows share, and the factors.
        keeps_length: a row's Euclidean length stays what it was; else its sum, of numbers that are not negative.
    """
    generator = torch.Generator(value.device).manual_seed(secret)
    order = torch.randperm(value.shape[-1], generator=generator, device=value.device)
    dtype = torch.promote_types(value.dtype, torch.float32)
    made = torch.empty(value.shape, dtype=dtype, device=value.device)
    made.uniform_(1 / LARGEST_SHARE_FACTOR, LARGEST_SHARE_FACTOR, generator=generator)
    made.mul_(value.index_select(-1, order))
    was, found = (_measure_rows(rows, keeps_length=keeps_length) for rows in (value, made))
    ratio = (was / found).nan_to_num_(1.0, 1.0, 1.0)  # of rows of zeros, and where something is infinite
    return made.mul_(ratio.to(dtype)).to(value.dtype)


def _measure_rows(rows: torch.Tensor, *, keeps_length: bool) -> torch.Tensor:
    """Return lengths or sums of rows, in float64: there the order in which threads add up hardly makes a difference."""
    if keeps_length:
        lengths: torch.Tensor = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        return lengths
    return rows.sum(dim=-1, keepdim=True, dtype=torch.float64)


def choose_moves(value: torch.Tensor, secrets: Unsigned) -> Unsigned:
    """Return by how many elements a tensor is moved along: not by whole rows, so that no row is one of the base.

    Args:
        value: the tensor.
        secrets: a number below 2**63 for each move, as unsigned 64-bit integers.
    """
    count = value.numel()
    if count < 2:
        return np.zeros(len(secrets), np.uint64)
    columns = value.shape[-1] if value.ndim else 1
    moves: Unsigned = secrets % np.uint64(count - 1) + np.uint64(1)
    is_whole = moves % np.uint64(columns) == 0
    if columns > 1 and is_whole.any():
        beside = np.where(moves > 1, moves - np.uint64(1), moves + np.uint64(1))
        moves = np.where(is_whole, beside, moves)
    return moves


def choose_columns(value: torch.Tensor) -> int:
    """Return how many elements of a tensor that is varied are shuffled as one row; the last row may be shorter.

    Args:
        value: the tensor, not empty. Rows lie along its last axis; very short ones are taken together, very long ones
            are divided.
    """
    count, columns = value.numel(), value.shape[-1] if value.ndim else 1
    if SHORTEST_ROW <= columns <= LONGEST_ROW:
        return columns
    rows = -(-count // (SHORT_TOGETHER if columns < SHORTEST_ROW else LONGEST_ROW))
    return -(-count // rows)


def find_both_signs(values: Sequence[Any]) -> list[bool]:
    """Tell of each of some tensors whether it has finite numbers only, of both signs; one wait for all of them."""
    bounds: dict[int, torch.Tensor] = {}
    for index, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.dtype in MULTIPLIED and value.numel():
            bounds[index] = torch.stack(list(torch.aminmax(value))).double()
    found = [False] * len(values)
    told = torch.stack(list(bounds.values())).tolist() if bounds else []
    for index, (low, high) in zip(bounds, told, strict=True):
        found[index] = low < 0 < high and math.isfinite(low) and math.isfinite(high)
    return found
