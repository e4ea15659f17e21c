"""The session's end of the arena: allocate it, lay tensors out in it, describe it to a worker.

Inputs lie first, then outputs. Memory that replaces other memory has a new `generation`; then a worker that mapped the
old memory is told to bind again.

No worker sees what another worker left there (`renew`), or what the session held in that memory before.
"""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.memory import recently_free_bytes
from flashinfer_bench.worker import arena as shared
from flashinfer_bench.worker.arena import ALIGNMENT, Slot, map_memory_file

SMALLEST_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 1 << 28
"""An arena of at least this size is as large as needed. A smaller one is up to twice as large, and so grows rarely."""
GROWN_SHARE: Final = 16
"""A larger one that grows on a GPU is twice as large as before, where that is no more than the free memory divided by
this: workloads come by size, and each that makes it grow waits for that."""
LARGEST_ANTEROOM_BYTES: Final = 1 << 28
"""Only where a call needs no more than this an anteroom is made: it is held beside the arena."""
MOST_ANTEROOMS: Final = 4
"""Solutions that fail in a row leave one each behind. With so many, the end of their workers is waited for."""
PAGE_BYTES: Final = 1 << 21
"""The largest pages of a GPU. The driver may map memory whose size is no multiple of this in small pages only."""


def lay_out(specs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> tuple[list[Slot], int]:
    """Place tensors one behind the other; return their slots and the bytes needed in all."""
    slots: list[Slot] = []
    offset = 0
    for shape, dtype in specs:
        slot = Slot(offset, shape, dtype)
        slots.append(slot)
        offset += -(-max(slot.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return slots, offset


def round_up(size: int) -> int:
    """Return the size of an arena that has room for `size` bytes."""
    if size < LARGE_BYTES:
        return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as flat bytes, without a copy where they are contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, byte for byte: on a CPU `clone` makes every byte of a bool that is not 0 a 1."""
    return tensor.view(torch.uint8).clone().view(torch.bool) if tensor.dtype is torch.bool else tensor.clone()


def open_memory_file(size: int) -> int:
    """Return the descriptor of a file that exists in memory only.

    Nobody can make the file smaller: SIGBUS would end a process that reads what was cut off.
    """
    fd = os.memfd_create("flashinfer_bench_arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


@dataclass(frozen=True)
class Memory:
    """Memory that can be shared: of a GPU by its address, of the host by a descriptor."""

    block: torch.Tensor
    address: int = 0
    fd: int = -1

    @classmethod
    def allocate(cls, size: int, device: torch.device) -> Memory:
        """Return new memory, which holds nothing."""
        if device.type == "cuda":
            address = shared.allocate(size)
            return cls(shared.device_bytes(address, size), address).wiped()  # the driver hands out what it was freed
        fd = open_memory_file(size)
        return cls(map_memory_file(fd, size), fd=fd)

    def wiped(self) -> Memory:
        """Fill it with zeros."""
        self.block.zero_()
        torch.cuda.synchronize(self.block.device)
        return self

    def free(self) -> None:
        """Give it back; a memory file lives on in the processes that map it."""
        if self.address:
            shared.free(self.address)
        if self.fd >= 0:
            os.close(self.fd)


class SharedArena:
    """One block of shared memory on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generation = 0
        self._nothing = Memory(torch.empty(0, dtype=torch.uint8, device=device))
        self._memory = self._nothing
        self._retired: list[Memory] = []
        """Given up; workers may still map it."""
        self._home: Memory | None = None
        """The memory that `come_back` returns to; None while the arena lies there."""
        self._anterooms: list[Memory] = []
        """The arena lay there for a while. Workers that have not ended may map it."""

    def __enter__(self) -> SharedArena:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    @property
    def block(self) -> torch.Tensor:
        """The memory as bytes."""
        return self._memory.block

    @property
    def size(self) -> int:
        """Bytes of the memory that it lies in."""
        return self.block.numel()

    @property
    def largest(self) -> int:
        """Bytes of the memory that it lies in, or comes back to, whichever is more."""
        return max(self.size, (self._home or self._nothing).block.numel())

    def reserve(self, size: int) -> None:
        """Make the arena at least `size` bytes large; what it held is lost when it has to grow.

        The old memory stays until drop_retired: a worker may still map it.
        """
        if size <= self.size:
            return
        if size < 2 * self.size and self.device.type == "cuda":
            has_room = 2 * self.size <= recently_free_bytes(self.device) // GROWN_SHARE
            size = 2 * self.size if has_room else size
        self._retire()
        self._memory = Memory.allocate(round_up(size), self.device)
        self.generation += 1

    def renew(self) -> None:
        """Make the arena fit for a worker that has not seen it; call it when no other worker maps it any more.

        A memory file is replaced. Device memory is wiped, which takes less time. Data that stays in its
        place is also read as fast as before.
        """
        if self.device.type == "cpu":
            self._retire()
        else:
            self._memory.wiped()

    @property
    def is_aside(self) -> bool:
        """Whether it lies in an anteroom."""
        return self._home is not None

    def may_step_aside(self, size: int) -> bool:
        """Tell whether there is room for `step_aside`, if a worker's first calls need this many bytes."""
        return size <= LARGEST_ANTEROOM_BYTES and len(self._anterooms) < MOST_ANTEROOMS

    def step_aside(self) -> None:
        """Lie in other device memory until `come_back`: earlier workers, which have not ended, map the present one.

        So a worker's first calls need not wait for their end. Timed calls are to have the same memory in all workers:
        where data lies has a part in how fast it is read.
        """
        if self._home is not None:
            self._anterooms.append(self._memory)
        elif self._memory is not self._nothing:
            self._home = self._memory
        self._memory = self._nothing

    def come_back(self) -> None:
        """Lie where the arena lay before `step_aside`, wiped; call it when all earlier workers have ended."""
        if self._home is None:
            return
        for memory in self._anterooms:
            memory.free()
        self._anterooms = [self._memory]
        self._memory, self._home = self._home.wiped(), None
        self.generation += 1

    def drop_retired(self) -> None:
        """Free the memory that was given up; call it when no worker maps that any more."""
        for memory in self._retired:
            memory.free()
        self._retired.clear()

    def release(self) -> None:
        """Give all memory back."""
        for memory in (*self._retired, *self._anterooms, self._home or self._nothing, self._memory):
            memory.free()
        self._retired, self._anterooms, self._home, self._memory = [], [], None, self._nothing

    def describe(self) -> tuple[dict[str, Any], list[int]]:
        """Return the fields of a bind request and the descriptors that go with it."""
        if self.device.type == "cpu":
            return {"kind": "memfd", "size": self.size}, [self._memory.fd]
        handle = base64.b64encode(shared.export_handle(self._memory.address)).decode()
        return {"kind": "cuda", "handle": handle, "size": self.size}, []

    def _retire(self) -> None:
        self._retired.append(self._memory)
        self._memory = self._nothing
