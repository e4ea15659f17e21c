"""The session's end of the arena: allocate it, lay tensors out in it, describe it to a worker.

Inputs come first, then outputs. Memory that replaces other memory has a new `generation`. A worker that mapped the old
memory must then bind again.

No worker can read data of another worker (`renew`), or older data of the session in that memory.
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
"""An arena of at least this many bytes has exactly the needed size. A smaller arena has up to twice the needed size, so
it grows rarely."""
GROWN_SHARE: Final = 16
"""An arena that grows on a GPU at least doubles, if the doubled size is at most 1/GROWN_SHARE of the free memory. Each
growth makes a job wait, and workloads often come in rising sizes."""
LARGEST_STAGING_BYTES: Final = 1 << 28
"""Calls of at most this many bytes can get separate memory besides the arena."""
MOST_STAGING_BUFFERS: Final = 4
"""Maximum number of separate blocks at once. Each solution that fails leaves a block. At the limit the session waits
until earlier workers have ended."""
PAGE_BYTES: Final = 1 << 21
"""Bytes of a GPU's largest pages. The driver may use small pages for sizes that are no multiple of this."""


def lay_out(specs: Sequence[tuple[tuple[int, ...], torch.dtype]]) -> tuple[list[Slot], int]:
    """Place tensors one after another; return their slots and the total bytes."""
    slots: list[Slot] = []
    offset = 0
    for shape, dtype in specs:
        slot = Slot(offset, shape, dtype)
        slots.append(slot)
        offset += -(-max(slot.nbytes, 1) // ALIGNMENT) * ALIGNMENT
    return slots, offset


def round_up(size: int) -> int:
    """Return the size of an arena with at least `size` bytes."""
    if size < LARGE_BYTES:
        return max(SMALLEST_BYTES, 1 << (size - 1).bit_length())
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's elements as flat bytes, without a copy if they are contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, byte for byte. On a CPU `clone` turns every nonzero byte of a bool into 1."""
    return tensor.view(torch.uint8).clone().view(torch.bool) if tensor.dtype is torch.bool else tensor.clone()


def open_memory_file(size: int) -> int:
    """Return the descriptor of a file that exists only in memory.

    The file is sealed against shrinking, since SIGBUS would end a process that reads a missing part.
    """
    fd = os.memfd_create("flashinfer_bench_arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


@dataclass(frozen=True)
class Memory:
    """Memory that can be shared: GPU memory by its address, host memory by a descriptor."""

    block: torch.Tensor
    address: int = 0
    fd: int = -1

    @classmethod
    def allocate(cls, size: int, device: torch.device) -> Memory:
        """Return new memory, filled with zeros."""
        if device.type == "cuda":
            address = shared.allocate(size)
            return cls(shared.device_bytes(address, size), address).wiped()  # it may hold old data
        fd = open_memory_file(size)
        return cls(map_memory_file(fd, size), fd=fd)

    def wiped(self) -> Memory:
        """Fill it with zeros."""
        self.block.zero_()
        torch.cuda.synchronize(self.block.device)
        return self

    def free(self) -> None:
        """Free it. A memory file stays in the processes that map it."""
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
        """Replaced memory that workers may still map."""
        self._home: Memory | None = None
        """The memory to which `come_back` returns; None while the arena uses it."""
        self._staging_buffers: list[Memory] = []
        """Earlier separate blocks of the arena. Workers that have not ended may map them."""

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
        """Bytes of the current memory."""
        return self.block.numel()

    @property
    def largest(self) -> int:
        """Bytes of the current memory, or of the memory that `come_back` restores, whichever is larger."""
        return max(self.size, (self._home or self._nothing).block.numel())

    def reserve(self, size: int) -> None:
        """Make the arena at least `size` bytes large. The content of an arena that grows is lost.

        The old memory stays until drop_retired, since a worker may still map it.
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
        """Prepare the arena for a new worker. Call it when no other worker maps the arena any more.

        A memory file is replaced. Device memory is only wiped. Wiping is quicker, and keeps the address, which decides
        how fast reads are.
        """
        if self.device.type == "cpu":
            self._retire()
        else:
            self._memory.wiped()

    @property
    def is_aside(self) -> bool:
        """Whether the arena uses a separate block."""
        return self._home is not None

    def may_step_aside(self, size: int) -> bool:
        """Return whether `step_aside` is possible, if a worker's first calls need this many bytes."""
        return size <= LARGEST_STAGING_BYTES and len(self._staging_buffers) < MOST_STAGING_BUFFERS

    def step_aside(self) -> None:
        """Use other device memory until `come_back`, since earlier workers that have not ended map the present memory.

        So the first calls of a new worker need not wait until the earlier workers have ended. Timed calls should use
        the same memory in all workers, because the location of data affects the read speed.
        """
        if self._home is not None:
            self._staging_buffers.append(self._memory)
        elif self._memory is not self._nothing:
            self._home = self._memory
        self._memory = self._nothing

    def come_back(self) -> None:
        """Return to the memory that was in use before `step_aside`, and wipe it. Call it when all earlier workers have
        ended."""
        if self._home is None:
            return
        for memory in self._staging_buffers:
            memory.free()
        self._staging_buffers = [self._memory]
        self._memory, self._home = self._home.wiped(), None
        self.generation += 1

    def drop_retired(self) -> None:
        """Free the retired memory. Call it after all workers that map this memory have ended."""
        for memory in self._retired:
            memory.free()
        self._retired.clear()

    def release(self) -> None:
        """Free all memory."""
        for memory in (*self._retired, *self._staging_buffers, self._home or self._nothing, self._memory):
            memory.free()
        self._retired, self._staging_buffers, self._home, self._memory = [], [], None, self._nothing

    def describe(self) -> tuple[dict[str, Any], list[int]]:
        """Return the fields of a bind request, and its descriptors."""
        if self.device.type == "cpu":
            return {"kind": "memfd", "size": self.size}, [self._memory.fd]
        handle = base64.b64encode(shared.export_handle(self._memory.address)).decode()
        return {"kind": "cuda", "handle": handle, "size": self.size}, []

    def _retire(self) -> None:
        self._retired.append(self._memory)
        self._memory = self._nothing
