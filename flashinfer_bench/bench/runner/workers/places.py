"""The places of a job's calls in the arena: inputs and output slots, several sets of them side by side.

The session writes the inputs of a call into a place, poisons its outputs, and reads what lies there after the call.
Calls take the places in turn. Their number is bounded by memory; solutions see few addresses, all of them in warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.runner.workers.arena import SharedArena, as_bytes, lay_out
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.worker.arena import Slot

POISON_FLOAT: Final = 0xFF  # every floating-point format that torch has reads this as NaN, packed fp4 apart
POISON_OTHER: Final = 0xA5
MOST_PLACES: Final = 8
CPU_BYTES: Final = 32 << 20
"""All places together take no more on a CPU: they should stay in its last cache."""
GPU_BYTES: Final = 512 << 20
FREE_SHARE: Final = 8
"""Nor do they take more than the free memory of a GPU divided by this."""
RUN: Final = 16
"""Bytes of poison in a row that count as unwritten."""
LOOKED_AT: Final = 4096
"""Elements of an output, evenly spaced from a secret start, by which an unwritten or repeated output is found."""


@dataclass(frozen=True)
class CallPlace:
    """Where one call's inputs and outputs lie."""

    inputs: tuple[Slot | None, ...]
    """In the order of the definition; None for what is no tensor."""
    outputs: tuple[Slot, ...]


def count_places(size: int, device: torch.device) -> int:
    """Return how many places a job has on this device, at least one.

    Args:
        size: bytes of the inputs and outputs of one call.
        device: where they lie.
    """
    room = CPU_BYTES
    if device.type == "cuda":
        room = min(GPU_BYTES, torch.cuda.mem_get_info(device)[0] // FREE_SHARE)
    return max(1, min(MOST_PLACES, room // max(size, 1)))


class CallPlaces:
    """The places of one job, laid out for inputs of some shapes.

    Args:
        arena: the session's shared memory; what it held is lost.
        inputs: one call's inputs, for their shapes and dtypes.
        outputs: what the definition says of the outputs.
    """

    def __init__(self, arena: SharedArena, inputs: Sequence[Any], outputs: Sequence[OutputSpec]) -> None:
        self.arena = arena
        self.signature = describe_inputs(inputs)
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        specs = [(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
        specs += [(output.shape, output.dtype) for output in outputs]
        _, size = lay_out(specs)
        count = count_places(size, arena.device)
        slots, total = lay_out(specs * count)
        arena.reserve(total)
        self.generation = arena.generation
        self._places = [self._cut(slots, at * len(specs), inputs, len(outputs)) for at in range(count)]

    def __len__(self) -> int:
        return len(self._places)

    @staticmethod
    def _cut(slots: list[Slot], start: int, inputs: Sequence[Any], outputs: int) -> CallPlace:
        own = iter(slots[start:])
        places = tuple(next(own) if isinstance(value, torch.Tensor) else None for value in inputs)
        return CallPlace(places, tuple(next(own) for _ in range(outputs)))

    def describe(self, names: Sequence[str], inputs: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the calls of a `lay_out` request."""
        return [
            {
                "arguments": {
                    name: {"scalar": value} if slot is None else slot.to_json()
                    for name, value, slot in zip(names, inputs, place.inputs, strict=True)
                },
                "outputs": [slot.to_json() for slot in place.outputs],
            }
            for place in self._places
        ]

    def inputs(self, index: int) -> list[torch.Tensor | None]:
        """Return a place's inputs as views of the arena."""
        block = self.arena.block
        return [None if slot is None else slot.view(block) for slot in self._places[index].inputs]

    def outputs(self, index: int) -> list[torch.Tensor]:
        """Return a place's output slots as views of the arena."""
        return [slot.view(self.arena.block) for slot in self._places[index].outputs]

    def poison(self, index: int) -> None:
        """Fill a place's output slots with what no honest kernel leaves there."""
        for slot in self._places[index].outputs:
            poison(slot, self.arena.block)

    def synchronize(self) -> None:
        """Wait until what was written is there for the worker."""
        if self.arena.device.type == "cuda":
            torch.cuda.synchronize(self.arena.device)

    def fingerprints(self, index: int, secret: int) -> list[torch.Tensor]:
        """Return some bytes of each output of a place, from secret positions; empty for an output of no elements."""
        return [look_at(output, secret) for output in self.outputs(index)]


def describe_inputs(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return what a layout depends on: shapes and dtypes of tensors, and the other values themselves."""
    return tuple(
        (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else ("value", value) for value in inputs
    )


def look_at(output: torch.Tensor, secret: int) -> torch.Tensor:
    """Return evenly spaced bytes of an output, whole elements where it is small, on the CPU."""
    flat = as_bytes(output)
    step = max(1, flat.numel() // LOOKED_AT)
    return flat[secret % step :: step].cpu()


def is_unwritten(looked_at: torch.Tensor, dtype: torch.dtype) -> bool:
    """Tell whether a good part of the bytes that were looked at is still poison: 16 of them in a row."""
    value = POISON_FLOAT if dtype.is_floating_point else POISON_OTHER
    poisoned = looked_at == value
    if looked_at.numel() < RUN:
        return bool(poisoned.all()) and looked_at.numel() > 0
    return bool(poisoned.unfold(0, RUN, 1).all(dim=1).any())


def poison(slot: Slot, block: torch.Tensor) -> None:
    """Fill an output slot with what no honest kernel leaves there: NaN, or a pattern for integers."""
    if slot.nbytes:
        value = POISON_FLOAT if slot.dtype.is_floating_point else POISON_OTHER
        block[slot.offset : slot.offset + slot.nbytes].fill_(value)
