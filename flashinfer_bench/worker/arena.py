"""The block of memory that a session shares with one worker, and how tensors lie in it.

The session owns it and decides the layout; the worker only maps it. On a GPU it is an allocation opened by its IPC
handle, on a CPU a memory file whose descriptor came with the frame. Tensors are contiguous, at offsets of ALIGNMENT
bytes.
"""

from __future__ import annotations

import base64
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.worker import cuda_memory

ALIGNMENT: Final = 256
"""Bytes; a GPU's allocator aligns tensors in the same way."""


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes that the tensor's elements take."""
        count = 1
        for dimension in self.shape:
            count *= dimension
        return count * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return the slot as a field of a frame."""
        return {"offset": self.offset, "shape": list(self.shape), "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Slot:
        """Read what to_json wrote."""
        return cls(int(data["offset"]), tuple(int(n) for n in data["shape"]), getattr(torch, data["dtype"]))

    def view(self, block: torch.Tensor) -> torch.Tensor:
        """Return the tensor inside a uint8 block."""
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=block.device)
        return block[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)

    def views(self, block: torch.Tensor, count: int, stride: int) -> list[torch.Tensor]:
        """Return so many tensors inside a uint8 block, this one first; the next one lies `stride` bytes on."""
        return [*map(self.maker(block, stride), range(count))]

    def maker(self, block: torch.Tensor, stride: int) -> Callable[[int], torch.Tensor]:
        """Return what makes the tensor of a place inside a uint8 block: place 0 has this one, the next `stride` on."""
        if self.nbytes == 0:
            return lambda _: self.view(block)
        size = self.dtype.itemsize
        begin, step, strides = self.offset // size, stride // size, self.view(block).stride()
        held = block.view(self.dtype)  # a block has whole pages, and slots begin at multiples of ALIGNMENT
        return lambda at: held.as_strided(self.shape, strides, begin + at * step)


@dataclass(frozen=True)
class MappedArena:
    """An arena as a uint8 tensor, and how to give the mapping up."""

    block: torch.Tensor
    release: Callable[[], None]


def _nothing() -> None:
    """Leave a memory file mapped for as long as a tensor points into it."""


def map_memory_file(fd: int, size: int) -> torch.Tensor:
    """Map a memory file, shared and writable, as a uint8 tensor; the tensor keeps the mapping."""
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


def open_arena(description: dict[str, Any], fds: list[int]) -> MappedArena:
    """Map the arena that a bind request describes; closes the descriptors that came with it."""
    size = int(description["size"])
    try:
        if description["kind"] == "cuda":
            address = cuda_memory.open_handle(base64.b64decode(description["handle"]))
            return MappedArena(cuda_memory.as_bytes(address, size), lambda: cuda_memory.close_handle(address))
        return MappedArena(map_memory_file(fds[0], size), _nothing)
    finally:
        for fd in fds:
            os.close(fd)
