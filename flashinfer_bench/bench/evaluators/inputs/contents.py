"""The contents of the inputs of timed calls: each call of a job gets its own contents, which are derived from a secret.

A solution could answer a repeated input from memory, so no two calls get the same contents. The input's rule
(`rules.py`) and its source choose one of four modes:

    redrawn  random inputs: made again by their rule, and custom inputs by the definition's function. Stored inputs with
             a constraint, such as rows that add up to one: shuffled and multiplied, so that each row keeps its sum or
             length
    scaled   other stored floats: rotated by a secret number of elements, shuffled in rows, multiplied by factors of 0.8
             to 1.25; half of the calls also negate an input that has both signs
    rolled   stored narrow formats, packed words, numbers with a fixed range: rotated by a secret number of elements.
             Quantised numbers also get other bits that keep each number in range
    fixed    integers that give structure (page tables, offsets), are few, or stand beside stored integers; single
             numbers; tables of constants: unchanged

Factors and orders are secret. Orders differ from row to row, and factors from element to element. With a single factor
or order, a solution could compute sums and maxima of rows from the sums and maxima of the base. With rotation alone, a
solution could still use weights that it converted and cached. `writer.py` writes the contents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, Final

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed, unpack
from flashinfer_bench.bench.evaluators.inputs.custom import SLOW_S, CustomInputs, is_same, list_custom
from flashinfer_bench.bench.evaluators.inputs.generate import bind_axes, find_varied_inputs
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.inputs.seeds import derive_seed
from flashinfer_bench.bench.evaluators.inputs.writer import MULTIPLIED, NEGATED, Unsigned, Writer, open_writer
from flashinfer_bench.data import Definition, Workload

LARGEST_SHARE_FACTOR: Final = 2.0
"""Largest factor by which an element is multiplied, in rows that keep their sum or norm. The smallest is its inverse.
The factors change which elements are largest, but hardly change how peaked a row is."""
SHORTEST_ROW: Final = 64
"""Minimum elements of a row that is shuffled by itself. The order of fewer elements can be guessed."""
SHORT_TOGETHER: Final = 4096
"""Maximum elements of short rows that are shuffled together as one row."""
LONGEST_ROW: Final = 1 << 22
"""Maximum elements that are shuffled together. Longer rows are divided. This many float32 elements fit into a GPU's
L2."""
PROBES: Final = range(-3, 0)
"""Call numbers that no real call has. Their contents show whether an input differs from call to call. One number is not
enough, because its contents may equal the original inputs by chance."""
COUNTED_TOGETHER: Final = 1 << 26
"""Maximum bytes that are counted at once."""
LEAST_REACH: Final = 4
"""Integers count as quantised values if any magnitude reaches this number. Smaller integers may be codes, such as -1
for "no value"."""
ALIGNED: Final = 256
"""In memory, the inputs of two consecutive calls are a multiple of this many elements apart."""

Rows = Sequence[torch.Tensor | None]
"""For each input a tensor [rows, *shape] of its dtype whose rows are contiguous; None if the input is no tensor."""


def find_varied(definition: Definition, workload: Workload, device: torch.device) -> list[VariedInput]:
    """Return how each input of a workload differs from call to call, in the order of the definition.

    A custom input that does not depend on the seed stays the same, if another custom input depends on the seed. An
    input that depends on the seed is made again for each call, if the function is fast and changes no integers that
    give structure. All other custom inputs vary like stored inputs, unless they must agree with each other.

    Raises:
        WorkloadFault: an axis of the workload has no size.
    """
    result = find_varied_inputs(definition, workload, device)
    if list_custom(workload):
        custom = CustomInputs(definition, workload, *bind_axes(definition, workload), device)
        differing, seconds = custom.compare_draws()
        has_structure = any(result[name].mode == "fixed" for name in differing)
        is_redrawn = seconds <= SLOW_S and (custom.must_agree or not has_structure)
        for name in custom.names if differing else ():
            if name not in differing or (custom.must_agree and not is_redrawn):
                result[name] = VariedInput(name)
            elif is_redrawn:
                result[name] = VariedInput(name, "redrawn", partial(custom.take, differing, name))
    return list(result.values())


class Contents:
    """The inputs of the calls that are derived from one set of inputs, the base.

    Args:
        base: the evaluator's inputs, in the order of the definition. They are read and never changed.
        varied: how each input differs from call to call.
        seed: secret; with the number of a call it decides the call's content.
        base_number: number of the call that gets the base itself.
    """

    def __init__(self, base: Sequence[Any], varied: Sequence[VariedInput], seed: int, base_number: int) -> None:
        self.base = [value.contiguous() if isinstance(value, torch.Tensor) else value for value in base]
        self.base_number = base_number
        self._varied, self._seed = list(varied), seed
        self._signs: dict[int, bool] = {}

    @cached_property
    def differs(self) -> bool:
        """Whether any input differs from call to call. Inputs of zeros, for example, are the same in each call."""
        tensors = [at for at, value in enumerate(self.base) if isinstance(value, torch.Tensor) and value.numel()]
        return any(self._varied[at].deviation is not None for at in tensors) or any(
            not is_same(made, self.base[at])
            for at in tensors
            for number in PROBES
            for made in DealtContents([Contents([self.base[at]], [self._varied[at]], self._seed, 0)]).make(number)
        )

    def write_all(self, numbers: Sequence[int], into: Rows, rows: Sequence[int], writer: Writer) -> None:
        """Have a writer write the inputs of some calls; the caller calls `writer.finish`."""
        calls = list(zip(numbers, rows, strict=True))
        as_base = [row for number, row in calls if number == self.base_number]
        others = [(number, row) for number, row in calls if number != self.base_number]
        secrets = self._draw_secrets([number for number, _ in others])
        other_rows = [row for _, row in others]
        redrawn = []
        for index, (value, targets, varied) in enumerate(zip(self.base, into, self._varied, strict=True)):
            if not isinstance(value, torch.Tensor) or targets is None or not value.numel():
                continue
            same = rows if varied.mode == "fixed" else as_base
            if same:
                writer.move_rows(value, targets, same, np.zeros(len(same), np.uint64))
            if varied.mode == "fixed" or not others:
                continue
            if varied.deviation is not None and writer.draws(value.dtype):
                writer.draw_rows(targets, other_rows, secrets[:, index], varied.deviation)
            elif varied.mode == "redrawn":
                redrawn.append((index, targets))
            else:
                self._move(index, secrets[:, index], targets, other_rows, writer)
        for row, keys in zip(other_rows, secrets.tolist(), strict=True):
            for index, targets in redrawn:
                remake = self._varied[index].remake
                targets[row].copy_(self._redraw(index, keys[index]) if remake is None else remake(keys[-1]))

    def _draw_secrets(self, numbers: Sequence[int]) -> Unsigned:
        """Return the secrets of calls, below 2**63: [calls, inputs + 1]. The last column is for inputs that are made
        again from one seed."""
        columns = range(len(self.base) + 1)
        drawn = [[derive_seed(self._seed, "contents", number, at) for at in columns] for number in numbers]
        return np.array(drawn, np.uint64).reshape(-1, len(columns))

    def _move(self, index: int, keys: Unsigned, into: torch.Tensor, rows: Sequence[int], writer: Writer) -> None:
        """Have the writer write a scaled or rolled input of some calls."""
        value = self.base[index]
        moves = choose_moves(value, keys)
        if self._varied[index].mode == "scaled":
            is_negated = (keys >> np.uint64(60) & np.uint64(1)) * np.uint64(NEGATED if self._has_signs(index) else 0)
            writer.vary_rows(value, into, rows, moves, keys | is_negated, choose_columns(value))
        else:
            writer.move_rows(value, into, rows, moves)
            if index in self._perturbations:
                writer.flip_rows(into, rows, keys, self._perturbations[index])

    def _redraw(self, index: int, key: int) -> torch.Tensor:
        value: torch.Tensor = self.base[index]
        if value.dtype in MULTIPLIED and value.shape[-1] > 1:
            return redraw_rows(value, key, keeps_length=self._has_signs(index))
        dimension = -1 if value.is_floating_point() else 0  # whole packed pages are rotated
        size = value.shape[dimension]
        return torch.roll(value, 1 + key % (size - 1), dims=dimension) if size > 1 else value

    def _has_signs(self, index: int) -> bool:
        """Return whether all numbers of an input are finite, and both signs occur. The first call waits until the GPU
        has finished its work."""
        if index not in self._signs:
            low, high = torch.stack(torch.aminmax(self.base[index])).tolist()
            self._signs[index] = -math.inf < low < 0 < high < math.inf
        return self._signs[index]

    @cached_property
    def _perturbations(self) -> dict[int, torch.Tensor]:
        return {at: find_perturbation(self.base[at]) for at, one in enumerate(self._varied) if one.is_perturbed}


class DealtContents:
    """The inputs of a job's calls, which use the evaluator's sets of inputs in turn.

    Call n gets the contents with number n // sets of the set with index n % sets.

    Args:
        each: the contents of each set; all have the same shapes, dtypes and single values.
    """

    def __init__(self, each: Sequence[Contents]) -> None:
        self._each = list(each)
        self.base = self._each[0].base

    def __len__(self) -> int:
        return len(self._each)

    @cached_property
    def differs(self) -> bool:
        """Whether any input differs from call to call, in each set."""
        return all(one.differs for one in self._each)

    def set_of(self, number: int) -> int:
        """Return the index of the set that a call uses."""
        return number % len(self._each)

    def is_base(self, number: int) -> bool:
        """Return whether a call has the evaluator's own inputs."""
        return number // len(self._each) == self._each[self.set_of(number)].base_number

    def make(self, number: int) -> list[Any]:
        """Return the inputs of one call."""
        return self.make_all([number])[0]

    def make_all(self, numbers: Sequence[int]) -> list[list[Any]]:
        """Return the inputs of several calls, which are written together."""
        count, base = len(numbers), self.base
        into = [make_rows(value, count) if isinstance(value, torch.Tensor) else None for value in base]
        devices = [value.device for value in base if isinstance(value, torch.Tensor)]
        writer = open_writer(devices[0] if devices else torch.device("cpu"))
        self.write_all(numbers, into, range(count), writer)
        writer.finish()
        return [
            [value if own is None else own[at] for value, own in zip(base, into, strict=True)] for at in range(count)
        ]

    def write_all(self, numbers: Sequence[int], into: Rows, rows: Sequence[int], writer: Writer) -> None:
        """Have a writer write the inputs of some calls; the caller calls `writer.finish`.

        Args:
            numbers: numbers of the calls.
            into: memory of each input's contents.
            rows: the rows of the calls.
            writer: writes many calls in little more time than a single call.
        """
        sets = len(self._each)
        for at, one in enumerate(self._each):
            own = [(call // sets, row) for call, row in zip(numbers, rows, strict=True) if call % sets == at]
            if own:
                one.write_all([call for call, _ in own], into, [row for _, row in own], writer)


def make_rows(value: torch.Tensor, count: int) -> torch.Tensor:
    """Return memory for `count` tensors like `value`, [count, *shape]. Each tensor is contiguous, and aligned like a
    separate tensor."""
    step = -(-value.numel() // ALIGNED) * ALIGNED
    return value.new_empty(count * step).as_strided((count, *value.shape), (step, *value.stride()))


def redraw_rows(value: torch.Tensor, key: int, *, keeps_length: bool) -> torch.Tensor:
    """Return rows with their elements in a different order, each element multiplied by a positive factor.

    Args:
        value: rows of a dtype in MULTIPLIED.
        key: secret; decides the factors, and the order that all rows share.
        keeps_length: whether a row keeps its Euclidean length; if not, it keeps its sum.
    """
    generator = torch.Generator(value.device).manual_seed(key)
    order = torch.randperm(value.shape[-1], generator=generator, device=value.device)
    dtype = torch.promote_types(value.dtype, torch.float32)
    made = torch.empty(value.shape, dtype=dtype, device=value.device)
    made.uniform_(1 / LARGEST_SHARE_FACTOR, LARGEST_SHARE_FACTOR, generator=generator)
    made.mul_(value.index_select(-1, order))
    power = 2 if keeps_length else 1
    before, after = (torch.linalg.vector_norm(rows, power, -1, True, dtype=torch.float64) for rows in (value, made))
    ratio = (before / after).nan_to_num_(1.0, 1.0, 1.0)  # 1 for rows of zeros, and for rows with an infinite number
    return made.mul_(ratio.to(dtype)).to(value.dtype)


def choose_moves(value: torch.Tensor, keys: Unsigned) -> Unsigned:
    """Return for each key the number of elements by which a tensor is rotated. A tensor with rows of two or more
    elements is never rotated by whole rows."""
    count = value.numel()
    if count < 2:
        return np.zeros(len(keys), np.uint64)
    columns = value.shape[-1] if value.ndim else 1
    moves: Unsigned = keys % np.uint64(count - 1) + np.uint64(1)
    return moves - (moves % np.uint64(columns) == 0) if columns > 1 else moves


def choose_columns(value: torch.Tensor) -> int:
    """Return how many elements of a tensor are shuffled together, as one row; the last row may be shorter.

    Very short rows are joined, very long rows are divided.
    """
    count, columns = value.numel(), value.shape[-1] if value.ndim else 1
    if SHORTEST_ROW <= columns <= LONGEST_ROW:
        return columns
    most = SHORT_TOGETHER if columns < SHORTEST_ROW else LONGEST_ROW
    return math.ceil(count / math.ceil(count / most))


def find_perturbation(value: torch.Tensor) -> torch.Tensor:
    """Return for each byte value the bits that may be flipped together.

    A byte may change only to a byte that also occurs in the tensor. The new byte differs in the sign, the lowest bit,
    or both; in int8 only in the sign. Zeros, infinities and NaN stay, and no byte becomes one of them. So labels do not
    change, and neither do packed codes of fewer than 8 bits. This waits for a GPU.

    Args:
        value: stored quantised numbers, a tensor of int8 or of a narrow float.

    Returns:
        uint8 [256]: byte → the bits to flip.
    """
    counts = torch.zeros(256, dtype=torch.int64, device=value.device)
    for part in torch.split(value.reshape(-1).view(torch.uint8), COUNTED_TOGETHER):
        counts += torch.bincount(part, minlength=256)
    codes = torch.arange(256).to(torch.uint8)
    typed = codes.view(value.dtype)
    numbers = (unpack(typed) if is_packed(value.dtype) else typed.double()).view(256, -1)
    may_be = (counts.cpu() > 0) & (numbers.isfinite() & (numbers != 0)).all(1)
    is_int = value.dtype is torch.int8
    masks = (0x99, 0x11, 0x88) if is_packed(value.dtype) else (0x81, 0x01, 0x80)
    flips = [codes ^ typed.neg().view(torch.uint8)] if is_int else [torch.full_like(codes, mask) for mask in masks]
    bits = torch.zeros_like(codes)
    for flip in flips:
        bits = torch.where((bits == 0) & may_be & may_be[(codes ^ flip).int()], flip, bits)
    are_numbers = not is_int or bool((numbers[bits != 0].abs() >= LEAST_REACH).any())
    return (bits * are_numbers).to(value.device)
