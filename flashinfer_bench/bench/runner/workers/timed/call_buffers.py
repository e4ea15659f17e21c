"""The buffers of a job's calls in the arena: several sets of inputs and output slots side by side.

The session writes the inputs of a call into a buffer, fills its outputs with a sentinel, and reads them after the call.
Calls rotate through the buffers. Memory limits the number of buffers. A solution meets few addresses, and all of them
in warm-up.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.fills import WORD, fill_words
from flashinfer_bench.bench.evaluators.inputs.memory import (
    cached_bytes,
    most_free_bytes,
    query_free_bytes,
    recently_free_bytes,
    total_bytes,
)
from flashinfer_bench.bench.evaluators.inputs.writer import Writer, open_writer
from flashinfer_bench.bench.runner.workers.arena import SharedArena, lay_out
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.errors import SolutionFailure

MOST_BUFFERS: Final = 8
GPU_BUFFERS: Final = 16
"""Number of buffers that timed calls rotate through on a CPU and on a GPU, if memory allows."""
GRAPH_BUFFERS: Final = 32
"""Maximum number of buffers of calls that are timed as replays. Each buffer needs a captured graph of its own."""
MORE_BUFFERS: Final = 88
"""Maximum number of buffers of small calls. Two requests, each with one call for each buffer, make the usual number of
calls. With more buffers, a kernel would meet most addresses for the first time while it is timed. Some kernels prepare
data by address."""
SMALL_BYTES: Final = {"cpu": 8 << 20, "cuda": 1 << 30}
"""Maximum bytes of all buffers together, if there are more than MOST_BUFFERS on a CPU or GPU_BUFFERS on a GPU."""
CPU_BYTES: Final = 32 << 20
GPU_BYTES: Final = 8 << 30
"""Maximum bytes of all buffers. On a CPU all buffers should fit into the last-level cache. On a GPU a batch of large
calls has many calls, so that its time differs from an empty batch's."""
FREE_SHARE: Final = 8
"""All buffers together take at most 1/FREE_SHARE of a GPU's free memory."""
FEWEST_BUFFERS: Final = 5
FEWEST_CALLS: Final = 2
"""Minimum number of buffers of a chain or a batch; minimum number of calls of a chain if these buffers do not fit. If
only one call fits, no chain is needed: a solution cannot compute several calls at once."""
SCARCE_SHARE: Final = 3
"""If memory is scarce, FEWEST_BUFFERS take at most 1/SCARCE_SHARE of the free memory. The session needs the same amount
again for its own memory, and for compared calls."""
LARGE_SHARE: Final = 64
HUGE_SHARE: Final = 24
VAST_SHARE: Final = 8
"""A call is large, huge or vast if it takes more than 1/LARGE_SHARE, 1/HUGE_SHARE or 1/VAST_SHARE of the device's
memory. A job of large calls has one stress call for each set of inputs. A job of huge calls has one stress call, and
one compared call for each set. A job of vast calls has no stress call."""
FEW_READS: Final = 6
"""Number of calls that are compared in a chain, and in a batch of large calls. A solution that skips half of its calls
rarely passes."""
SECOND_SHARE: Final = 0.25
"""Share of the calls whose outputs get the second sentinel of their dtype. A solution that skips its work only for this
sentinel gains little."""
SPOTS: Final = 512
"""Words of an output, evenly spaced from a secret start, that are read to find unwritten or repeated outputs."""

Seen: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
"""Words of the outputs, on the host: a row for each buffer."""


def count_buffers(size: int, device: torch.device, most: int | None = None, *, held: int = 0) -> int:
    """Return the number of buffers on this device, at least one.

    Args:
        size: bytes of the inputs and outputs of one call.
        most: number of buffers for a chain or a batch; None for the number of buffers of timed calls. With `most`,
            FEWEST_BUFFERS can take up to 1/SCARCE_SHARE of a GPU's memory, instead of 1/FREE_SHARE.
        held: bytes of allocated memory that the buffers can reuse.
    """
    size, is_gpu = max(size, 1), device.type == "cuda"
    fewest, room = (GPU_BUFFERS, GPU_BYTES) if is_gpu else (MOST_BUFFERS, CPU_BYTES)
    if is_gpu:
        free = recently_free_bytes(device)
        scarce = 0 if most is None else min((free + held) // SCARCE_SHARE, FEWEST_BUFFERS * size)
        room = min(room, max(free // FREE_SHARE, scarce))
    usual = min(MORE_BUFFERS, max(fewest, SMALL_BYTES[device.type] // size))
    return max(1, min(usual if most is None else most, room // size))


def check_room(size: int, device: torch.device, held: int) -> None:
    """Check that a solution has not taken the GPU memory that a chain of FEWEST_CALLS needs.

    If a solution leaves memory for one call only, a short call cannot be timed from outside. Large calls are not
    refused, since the session itself may hold the missing memory.

    Args:
        size: bytes of the inputs and outputs of one call.
        held: bytes of memory that calls can reuse.

    Raises:
        SolutionFailure: memory is short, and there was enough before the solution's calls (RUNTIME_ERROR).
    """
    needed, free = SCARCE_SHARE * FEWEST_CALLS * size, query_free_bytes(device) + cached_bytes(device) + held
    if free < needed <= most_free_bytes(device) and size <= total_bytes(device) // LARGE_SHARE:
        raise SolutionFailure(
            "RUNTIME_ERROR",
            f"{free / 2**30:.2f} GiB of the GPU's memory are left beside what the solution holds; "
            f"{needed / 2**30:.2f} are needed so that its calls can be timed from outside",
        )


class CallBuffers:
    """The buffers of one job, laid out for inputs of given shapes.

    Args:
        arena: the session's shared memory; its content is lost.
        inputs: one call's inputs, for their shapes and dtypes.
        most: maximum number of buffers; None for the number of buffers of timed calls.
    """

    def __init__(
        self, arena: SharedArena, inputs: Sequence[Any], outputs: Sequence[OutputSpec], most: int | None = None
    ) -> None:
        self.arena = arena
        self.signature = (most, *describe_inputs(inputs))
        specs = [(tuple(value.shape), value.dtype) for value in inputs if isinstance(value, torch.Tensor)]
        slots, size = lay_out([*specs, *((output.shape, output.dtype) for output in outputs)])
        self.stride = self.outputs_end = size
        """Bytes from one buffer to the next. The outputs lie behind the inputs."""
        self.replayed: set[int] = set()
        """Buffers whose graph was replayed."""
        self._count = count_buffers(size, arena.device, most, held=arena.size)
        arena.reserve(size * self._count)
        self.generation = arena.generation
        self._chance = random.SystemRandom()
        own = iter(slots)
        self.input_slots = [next(own) if isinstance(value, torch.Tensor) else None for value in inputs]
        """Slots of the inputs in the first buffer; None for a value that is no tensor."""
        self._output_slots = list(own)
        self.inputs_end = self._output_slots[0].offset if self._output_slots else size
        self.input_rows = self._rows_of_inputs(arena.block, self._count, size)
        """Each input in all buffers: [buffers, *shape]; None for a value that is no tensor."""
        self._output_rows = [slot.rows(arena.block, self._count, size) for slot in self._output_slots]
        self._written = [slot for slot in self._output_slots if slot.nbytes]
        """Slots of the outputs that have elements."""
        self._spots = [max(1, min(SPOTS, slot.nbytes // WORD)) for slot in self._written]
        """Number of words that are read from each of these outputs."""
        self._mask = self._of_words([(1 << 8 * min(slot.nbytes, WORD)) - 1 for slot in self._written])
        """Bits of these words that belong to the outputs. An output shorter than a word has fewer bits than a word."""

    def _of_words(self, of_outputs: Sequence[int]) -> Seen:
        """Return one number for each word that is read: the given number of the word's output."""
        return np.repeat(np.array(of_outputs, np.uint64), self._spots)

    def __len__(self) -> int:
        return self._count

    def describe(self, names: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
        """Return the fields of a `lay_out` request: the locations of the calls' inputs and outputs."""
        given = zip(names, inputs, self.input_slots, strict=True)
        return {
            "arguments": {name: {"scalar": value} if slot is None else slot.to_json() for name, value, slot in given},
            "slots": [slot.to_json() for slot in self._output_slots],
            "count": self._count,
            "stride": self.stride,
        }

    def inputs(self, index: int) -> list[torch.Tensor | None]:
        """Return a buffer's inputs as views of the arena, in the order of the definition; None for other values."""
        return [None if held is None else held[index] for held in self.input_rows]

    def outputs(self, index: int) -> list[torch.Tensor]:
        """Return a buffer's output slots as views of the arena."""
        return [held[index] for held in self._output_rows]

    def _rows_of_inputs(self, block: torch.Tensor, count: int, step: int) -> list[torch.Tensor | None]:
        """Return each input in `count` buffers of a uint8 block, `step` bytes apart."""
        return [None if slot is None else slot.rows(block, count, step) for slot in self.input_slots]

    def own_inputs(self, count: int) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Return private memory for the inputs of this many calls, as rows of bytes and as tensors.

        The rows are laid out like `held_inputs`, the tensors like `input_rows`, on the same device.
        """
        rows = torch.zeros(count, self.inputs_end, dtype=torch.uint8, device=self.arena.device)
        return rows, self._rows_of_inputs(rows.view(-1), count, self.inputs_end)

    def held_inputs(self) -> torch.Tensor:
        """Return the bytes of all inputs, a row for each buffer."""
        return self._rows_of(0, self.inputs_end)

    def held_outputs(self) -> torch.Tensor:
        """Return the bytes of all output slots, a row for each buffer."""
        return self._rows_of(self.inputs_end, self.outputs_end)

    def outputs_in(self, row: torch.Tensor) -> list[torch.Tensor]:
        """Return the outputs in a copy of a row of `held_outputs`."""
        return [replace(slot, offset=slot.offset - self.inputs_end).view(row) for slot in self._output_slots]

    def inputs_in(self, row: torch.Tensor) -> list[torch.Tensor | None]:
        """Return the inputs in a copy of a row of `held_inputs`; None for a value that is no tensor."""
        return [None if slot is None else slot.view(row) for slot in self.input_slots]

    def _rows_of(self, begin: int, end: int) -> torch.Tensor:
        return self.arena.block.as_strided((self._count, end - begin), (self.stride, 1), begin)

    def fill_outputs(self, indices: Sequence[int], writer: Writer) -> None:
        """Have a writer fill the output slots of some buffers with words that no honest kernel writes."""
        for slot in self._written:
            usual, *others = fill_words(slot.dtype)
            held = self._rows_of(slot.offset, slot.offset + slot.nbytes)
            second = {at for at in indices if others and self._chance.random() < SECOND_SHARE}
            writer.fill_rows(held, [at for at in indices if at not in second], usual)
            for other in others:
                writer.fill_rows(held, [*second], other)

    def spoil_inputs(self) -> None:
        """Overwrite the inputs of all buffers, so that missing results can no longer be computed."""
        writer = open_writer(self.arena.device)
        writer.fill_rows(self.held_inputs(), range(self._count), 0)
        writer.finish()
        self.synchronize()

    def synchronize(self) -> None:
        """Wait until the worker can read all written data."""
        if self.arena.device.type == "cuda":
            torch.cuda.synchronize(self.arena.device)

    def read_spots(self, indices: Sequence[int], secret: int) -> Seen:
        """Return words at secret columns of the outputs: a row for each buffer.

        All words are copied to the host together, since each wait for a GPU takes as long as several copies.
        """
        columns, words = [], self.arena.block.view(torch.int64)
        for count, slot in zip(self._spots, self._written, strict=True):
            step = max(1, slot.nbytes // WORD // count)
            begin = slot.offset // WORD + secret % step
            columns.append(
                pick_rows(words.as_strided((self._count, count), (self.stride // WORD, step), begin), indices)
            )
        if not columns:
            return np.zeros((len(indices), 0), np.uint64)
        seen: Seen = torch.cat(columns, dim=1).to("cpu", copy=True).numpy().view(np.uint64) & self._mask
        return seen

    def find_unwritten(self, seen: Seen) -> list[bool]:
        """Return for each buffer whether a word from `read_spots` still holds the sentinel."""
        words = [fill_words(slot.dtype) for slot in self._written]
        sentinels = [self._of_words([own[which] for own in words]) & self._mask for which in (0, -1)]
        found: list[bool] = np.logical_or(*(seen == one for one in sentinels)).any(axis=1).tolist()
        return found


def copy_rows(held: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return a copy of some rows of bytes or words, in the order of the indices, without waiting for the device."""
    chosen = torch.tensor(indices, dtype=torch.int64).to(held.device, non_blocking=True)
    words = held.view(torch.int64) if held.dtype is torch.uint8 else held  # rows of buffers have whole words
    return words.index_select(0, chosen).view(held.dtype)


def pick_rows(held: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return some rows; a view if they are contiguous."""
    begin, end = min(indices, default=0), max(indices, default=-1) + 1
    return held[begin:end] if [*indices] == [*range(begin, end)] else copy_rows(held, indices)


def describe_inputs(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the properties that a layout depends on: shapes and dtypes of tensors, and all other values."""
    return tuple(
        (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else ("value", value) for value in inputs
    )
