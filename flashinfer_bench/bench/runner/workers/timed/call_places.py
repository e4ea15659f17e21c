"""The places of a job's calls in the arena: inputs and output slots, several sets of them side by side.

The session writes the inputs of a call into a place, poisons its outputs, and reads what lies there after the call.
Calls take the places in turn. Their number is bounded by memory; solutions see few addresses, all of them in warm-up.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.fills import WORD, fill_words
from flashinfer_bench.bench.evaluators.inputs.memory import (
    cached_bytes,
    look_at_free_bytes,
    most_free_bytes,
    recently_free_bytes,
    total_bytes,
)
from flashinfer_bench.bench.evaluators.inputs.writer import Writer, open_writer
from flashinfer_bench.bench.runner.workers.arena import SharedArena, lay_out
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.worker.arena import Slot

MOST_PLACES: Final = 8
GPU_PLACES: Final = 16
"""Places that timed calls take in turn on a CPU and on a GPU, at least if there is memory for them."""
GRAPH_PLACES: Final = 32
"""Most places of calls that are timed as replays: each has a graph of its own, which has to be captured."""
MORE_PLACES: Final = 88
"""Most places of small calls: two requests hold the usual number. With yet more a kernel would meet most addresses for
the first time while it is timed; some prepare data by address."""
SMALL_BYTES: Final = {"cpu": 8 << 20, "cuda": 1 << 30}
"""Most bytes of all places together, if there are more than the fewest."""
CPU_BYTES: Final = 32 << 20
GPU_BYTES: Final = 8 << 30
"""Most bytes of all places: on a CPU they should stay in its last cache; on a GPU batches of large calls need many
calls to be told from an empty batch."""
FREE_SHARE: Final = 8
"""All places take no more than the free memory of a GPU divided by this."""
FEWEST_PLACES: Final = 5
FEWEST_CALLS: Final = 2
"""Least places of chains and batches, and least calls of a chain if memory is scarcer than that. If only one call has
room, a solution cannot compute several at once."""
SCARCE_SHARE: Final = 3
"""If memory is scarce, FEWEST_PLACES may take the free memory divided by this: the session needs as much again for
memory of its own, and for calls that it compares."""
LARGE_SHARE: Final = 64
"""A call is large if it takes more than all memory of the device divided by this."""
FEW_READS: Final = 6
"""Calls of a chain, or large calls of a batch, that are compared: a solution that leaves out half of its calls passes
once in 400 times."""
PAGE_BYTES: Final = 4096
SECOND_SHARE: Final = 0.25
"""Share of the calls whose outputs get the second poison of their dtype. Skipping work under that one gains little."""
SPOTS: Final = 4096
"""Spots of an output, evenly spaced from a secret start, by which an unwritten or repeated output is found."""

Seen: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""Bytes of an output, on the host: a row for each of some places."""


def count_places(size: int, device: torch.device, most: int, *, held: int | None = None) -> int:
    """Return how many places there are on this device, at least one.

    Args:
        size: bytes of the inputs and outputs of one call.
        device: where they lie.
        most: no more are wanted.
        held: bytes of memory that they may lie in, and that is not free; FEWEST_PLACES may take more of a GPU then.
            None if few will do.
    """
    room = CPU_BYTES
    if device.type == "cuda":
        free = recently_free_bytes(device)
        scarce = 0 if held is None else min((free + held) // SCARCE_SHARE, FEWEST_PLACES * size)
        room = min(GPU_BYTES, max(free // FREE_SHARE, scarce))
    return max(1, min(most, room // max(size, 1)))


def check_room(size: int, device: torch.device, held: int) -> None:
    """Find out why a GPU has no room for a chain of FEWEST_CALLS: the solution may hold the missing memory.

    If a solution leaves room for one call only, nothing can time a short call from outside. If calls are large, the
    session itself may hold the missing memory.

    Args:
        size: bytes of the inputs and outputs of one call.
        device: the GPU.
        held: bytes of memory that calls may lie in.

    Raises:
        SolutionFailure: RUNTIME_ERROR; there was room before the solution's calls.
    """
    needed, free = SCARCE_SHARE * FEWEST_CALLS * size, look_at_free_bytes(device) + cached_bytes(device) + held
    if free < needed <= most_free_bytes(device) and size <= total_bytes(device) // LARGE_SHARE:
        raise SolutionFailure(
            "RUNTIME_ERROR",
            f"{free / 2**30:.2f} GiB of the GPU's memory are left beside what the solution holds; "
            f"{needed / 2**30:.2f} are needed so that its calls can be timed from outside",
        )


def spread(size: int) -> int:
    """Return the bytes from one place to the next on a CPU, at least `size`.

    Inputs lie at other offsets within a page in each of MOST_PLACES. How far an output that a call allocates lies
    from its inputs, modulo a page, makes a call of 20 us up to a tenth slower, and is the same in all calls of a worker
    otherwise.
    """
    offsets = PAGE_BYTES // math.gcd(size, PAGE_BYTES)
    return size if offsets >= MOST_PLACES else size + PAGE_BYTES // MOST_PLACES


def usual_places(size: int, device: torch.device) -> int:
    """Return how many places timed calls take in turn, if there is memory for them.

    Args:
        size: bytes of the inputs and outputs of one call.
        device: where they lie.
    """
    fewest = GPU_PLACES if device.type == "cuda" else MOST_PLACES
    return min(MORE_PLACES, max(fewest, SMALL_BYTES[device.type] // max(size, 1)))


class CallPlaces:
    """The places of one job, laid out for inputs of some shapes.

    Args:
        arena: the session's shared memory; what it held is lost.
        inputs: one call's inputs, for their shapes and dtypes.
        outputs: the definition's outputs.
        most: most places; None for as many as timed calls take.
    """

    def __init__(
        self, arena: SharedArena, inputs: Sequence[Any], outputs: Sequence[OutputSpec], most: int | None = None
    ) -> None:
        self.arena = arena
        self.signature = (most, *describe_inputs(inputs))
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        specs = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        specs += [(output.shape, output.dtype) for output in outputs]
        slots, size = lay_out(specs)
        self.stride = spread(size) if arena.device.type == "cpu" else size
        """Bytes from one place to the next."""
        self.replayed: set[int] = set()
        """Places whose graph was replayed."""
        held = None if most is None else arena.size
        usual = usual_places(self.stride, arena.device)
        self._count = count_places(self.stride, arena.device, most or usual, held=held)
        arena.reserve(self.stride * self._count)
        self.generation = arena.generation
        self._chance = random.SystemRandom()
        own = iter(slots)
        self.input_slots = [next(own) if isinstance(value, torch.Tensor) else None for value in inputs]
        """Slots of the inputs in the first place; None for a value that is no tensor."""
        self._first_outputs = list(own)
        self.outputs_end = size
        """Offset of the outputs' end in a place. They lie behind the inputs."""
        self.inputs_end = self._first_outputs[0].offset if self._first_outputs else size
        self.input_rows = self._rows_of_inputs(arena.block, self._count, self.stride)
        """Each input in all places: [places, *shape]; None for a value that is no tensor."""
        self._output_makers = [self._maker(slot) for slot in self._first_outputs]
        self._written = [
            (slot.dtype, self.held_bytes(self._count, slot.offset, slot.offset + slot.nbytes))
            for slot in self._first_outputs
            if slot.nbytes
        ]
        """The dtype of each output that has elements, and its bytes in all places."""

    def _maker(self, slot: Slot) -> Callable[[int], torch.Tensor]:
        """Return a function that makes the tensor of a place, given its slot in the first one; it is made once."""
        return cache(slot.maker(self.arena.block, self.stride))

    def __len__(self) -> int:
        return self._count

    def describe(self, names: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the fields of a `lay_out` request that say where the calls lie."""
        return {
            "arguments": {
                name: {"scalar": value} if slot is None else slot.to_json()
                for name, value, slot in zip(names, inputs, self.input_slots, strict=True)
            },
            "slots": [slot.to_json() for slot in self._first_outputs],
            "count": self._count,
            "stride": self.stride,
        }

    def inputs(self, index: int) -> list[torch.Tensor | None]:
        """Return a place's inputs as views of the arena, in the order of the definition; None for other values."""
        return [None if held is None else held[index] for held in self.input_rows]

    def outputs(self, index: int) -> list[torch.Tensor]:
        """Return a place's output slots as views of the arena."""
        return [make(index) for make in self._output_makers]

    def _rows_of_inputs(self, block: torch.Tensor, count: int, step: int) -> list[torch.Tensor | None]:
        """Return each input in `count` places of a uint8 block, `step` bytes apart."""
        return [None if slot is None else slot.rows(block, count, step) for slot in self.input_slots]

    def input_bytes(self, count: int) -> torch.Tensor:
        """Return the bytes of all inputs in the first places, a row for each; the outputs lie behind them."""
        return self.held_bytes(count, 0, self.inputs_end)

    def own_inputs(self, count: int) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Return memory of this process for the inputs of this many calls: a row of bytes for each, and each input.

        The first is as `input_bytes`, the second as `input_rows`, on the same device.
        """
        rows = torch.zeros(count, self.inputs_end, dtype=torch.uint8, device=self.arena.device)
        return rows, self._rows_of_inputs(rows.view(-1), count, self.inputs_end)

    def output_bytes(self, count: int) -> torch.Tensor:
        """Return the bytes of all output slots in the first places, a row for each."""
        return self.held_bytes(count, self.inputs_end, self.outputs_end)

    def outputs_in(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs in a copy of a row of `output_bytes`."""
        return [replace(slot, offset=slot.offset - self.inputs_end).view(row) for slot in self._first_outputs]

    def inputs_in(self, row: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the inputs in a copy of a row of `input_bytes`; None for a value that is no tensor."""
        return [None if slot is None else slot.view(row) for slot in self.input_slots]

    def held_bytes(self, count: int, begin: int, end: int) -> torch.Tensor:
        """Return the same bytes of each of the first places, as rows."""
        return self.arena.block.as_strided((count, end - begin), (self.stride, 1), begin)

    def poison(self, indices: Sequence[int], writer: Writer | None = None) -> None:
        """Fill the output slots of some places with words that no honest kernel leaves there.

        Args:
            indices: the places.
            writer: collects the writes, and is finished by the caller; None to write at once.
        """
        used = writer or open_writer(self.arena.device)
        for dtype, held in self._written:
            usual, *others = fill_words(dtype)
            second = [at for at in indices if others and self._chance.random() < SECOND_SHARE]
            used.fill_rows(held, [at for at in indices if at not in second], usual)
            for other in others:
                used.fill_rows(held, second, other)
        if writer is None:
            used.finish()

    def spoil_inputs(self, count: int) -> None:
        """Overwrite the inputs of the first places: results that are not computed yet cannot be computed any more.

        Whole words are written if inputs are made of such: on a GPU single bytes would take several times as long.
        """
        held = self.input_bytes(count)
        if self.stride % 8 == 0 and held.shape[1] % 8 == 0:
            held = held.view(torch.int64)
        held.zero_()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the worker can read all that was written."""
        if self.arena.device.type == "cuda":
            torch.cuda.synchronize(self.arena.device)

    def read_spots(self, indices: Sequence[int], secret: int) -> list[Seen]:
        """Return bytes at secret spots of each output that has elements: a row for each of some places.

        They come to the host together, since each wait for a GPU takes as long as several copies.
        """
        spots = [_rows(held[:, self._spots_of(held, secret)], indices) for _, held in self._written]
        if not spots:
            return []
        together = spots[0] if len(spots) == 1 else torch.cat(spots, dim=1)
        rows: Seen = together.to("cpu", copy=True, memory_format=torch.contiguous_format).numpy()
        *ends, _ = accumulate(one.shape[1] for one in spots)
        return np.split(rows, ends, axis=1)

    @staticmethod
    def _spots_of(held: torch.Tensor, secret: int) -> slice:
        """Return the spots of an output, [places, bytes]."""
        step = max(1, held.shape[1] // SPOTS)
        return slice(secret % step, None, step)

    def find_unwritten(self, seen: Sequence[Seen], secret: int) -> list[bool]:
        """Tell of each place whether an output was not written, by the result of `read_spots` for the same secret.

        WORD bytes in a row that hold poison, or all bytes of a smaller output, count as unwritten.
        """
        found = np.zeros(len(seen[0]) if seen else 0, dtype=bool)
        for output, (dtype, held) in zip(seen, self._written, strict=False):
            spots = self._spots_of(held, secret)
            of_word = (spots.start + spots.step * np.arange(output.shape[1])) % WORD
            for word in fill_words(dtype):
                is_poison = output == np.frombuffer(word.to_bytes(WORD, "little"), np.uint8)[of_word]
                if output.shape[1] < WORD:
                    found |= is_poison.all(axis=1)
                else:
                    whole = np.ascontiguousarray(is_poison[:, : output.shape[1] // WORD * WORD])
                    found |= (whole.view(np.uint64) == 0x0101010101010101).any(axis=1)
        return [bool(one) for one in found]


def _rows(held: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return some rows; a view if they lie one behind the other."""
    begin, end = min(indices, default=0), max(indices, default=-1) + 1
    return held[begin:end] if list(indices) == list(range(begin, end)) else copy_rows(held, indices)


def digest_rows(seen: Sequence[Seen], secret: int) -> list[int]:
    """Return a number of 64 bits for each place: a hash of the bytes that `read_spots` returned of all outputs.

    Equal outputs have equal numbers. Two others with one number make a call look odd, which costs a comparison.
    """
    return [hash((secret, *map(bytes, outputs))) for outputs in zip(*seen, strict=True)]


def describe_inputs(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the properties that a layout depends on: shapes and dtypes of tensors, and the other values themselves."""
    return tuple(
        (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else ("value", value) for value in inputs
    )
