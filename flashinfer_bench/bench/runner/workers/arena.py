"""The session's end of the arena: allocate it, lay tensors out in it, describe it to a worker.

Inputs lie first, then outputs. Memory that replaces other memory has a new `generation`; then a worker that mapped the
old memory is told to bind again.

No worker sees what another worker left there (`renew`), or what the session held in that memory before.
"""

from __future__ import annotations

import base64
import fcntl
import os
import tempfile
from collections.abc import Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.memory import recently_free_bytes
from flashinfer_bench.worker import cuda_memory
from flashinfer_bench.worker.arena import ALIGNMENT, Slot, map_memory_file

SMALLEST_BYTES: Final = 1 << 20
LARGE_BYTES: Final = 1 << 28
"""An arena of at least this size is as large as needed. A smaller one is up to twice as large, and so grows rarely."""
GROWN_SHARE: Final = 16
"""A larger one that grows on a GPU is twice as large as before, where that is no more than the free memory divided by
this: workloads come by size, and each that made it grow waited 8 ms for that."""
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
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy, byte for byte: on a CPU `clone` makes every byte of a bool that is not 0 a 1."""
    return tensor.view(torch.uint8).clone().view(torch.bool) if tensor.dtype is torch.bool else tensor.clone()


def open_memory_file(size: int) -> int:
    """Return the descriptor of a file that exists in memory only.

    Where the system has seals nobody can make the file smaller. SIGBUS would end a process that reads what was cut off.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("flashinfer_bench_arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return fd
    fd, path = tempfile.mkstemp(prefix="flashinfer_bench_arena_")
    os.unlink(path)  # noqa: PTH108 - a path from mkstemp
    os.ftruncate(fd, size)
    return fd


class SharedArena:
    """One block of shared memory on one device; a context manager that gives it back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.generation = 0
        self.size = 0
        self.block = torch.empty(0, dtype=torch.uint8, device=device)
        self._address = 0
        self._fd = -1
        self._retired: list[tuple[int, int]] = []
        self._home: tuple[int, torch.Tensor] | None = None
        """Address and bytes of the memory that `come_back` returns to; None while the arena lies there."""
        self._anterooms: list[int] = []
        """Addresses of memory in which the arena lay for a while. Workers that have not ended may map it."""
        self._is_shown = False

    def __enter__(self) -> SharedArena:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def reserve(self, size: int) -> None:
        """Make the arena at least `size` bytes large; what it held is lost when it has to grow.

        The old memory stays until drop_retired: a worker may still map it.
        """
        if size <= self.size:
            return
        if size < 2 * self.size and self._has_room(2 * self.size):
            size = 2 * self.size
        self._retire()
        size = round_up(size)
        if self.device.type == "cuda":
            self._address = cuda_memory.allocate(size)
            self.block = cuda_memory.as_bytes(self._address, size)
            self._wipe()  # the driver hands a process its own freed memory as it was left
        else:
            self._fd = open_memory_file(size)
            self.block = map_memory_file(self._fd, size)
        self.size = size
        self.generation += 1

    def place(
        self, tensors: Sequence[torch.Tensor], room_for: Sequence[tuple[tuple[int, ...], torch.dtype]] = ()
    ) -> list[Slot]:
        """Copy tensors to the arena's beginning, leave room for more behind them, and return the slots of all.

        What the arena held is lost.
        """
        slots, size = lay_out([(tuple(tensor.shape), tensor.dtype) for tensor in tensors] + list(room_for))
        self.reserve(size)
        for tensor, slot in zip(tensors, slots, strict=False):
            as_bytes(slot.view(self.block)).copy_(as_bytes(tensor))
        return slots

    def leave(self) -> None:
        """Give up memory that a worker was told of: that worker may map it, read it and write to it.

        The old memory stays until drop_retired.
        """
        if self._is_shown:
            self._retire()

    def renew(self) -> None:
        """Make the arena fit for a worker that has not seen it; call it when no other worker maps it any more.

        A memory file is replaced. Device memory is wiped, which takes less time. Data that stays in its
        place is also read as fast as before.
        """
        if self.device.type == "cuda":
            self._wipe()
        else:
            self._retire()

    @property
    def largest(self) -> int:
        """Bytes of the memory that it lies in, or comes back to, whichever is more."""
        return max(self.size, self._home[1].numel() if self._home is not None else 0)

    @property
    def is_aside(self) -> bool:
        """Whether it lies in an anteroom."""
        return self._home is not None

    def may_step_aside(self, size: int) -> bool:
        """Tell whether there is room for `step_aside`, where a worker's first calls need so many bytes."""
        return size <= LARGEST_ANTEROOM_BYTES and len(self._anterooms) < MOST_ANTEROOMS

    def step_aside(self) -> None:
        """Lie in other device memory until `come_back`: earlier workers, which have not ended, map the present one.

        So a worker's first calls need not wait for their end. Timed calls are to have the same memory in all workers:
        where data lies has a part in how fast it is read.
        """
        if self._home is not None:
            self._anterooms.append(self._address)
        elif self._address:
            self._home = self._address, self.block
        self._forget()

    def come_back(self) -> None:
        """Lie where the arena lay before `step_aside`, wiped; call it when all earlier workers have ended."""
        if self._home is None:
            return
        for address in self._anterooms:
            cuda_memory.free(address)
        self._anterooms = [self._address] if self._address else []
        (self._address, self.block), self._home = self._home, None
        self.size, self._is_shown = self.block.numel(), False
        self.generation += 1
        self._wipe()

    def drop_retired(self) -> None:
        """Free the memory that was given up; call it when no worker maps that any more."""
        for address, fd in self._retired:
            if address:
                cuda_memory.free(address)
            if fd >= 0:
                os.close(fd)
        self._retired.clear()

    def release(self) -> None:
        """Give all memory back; a memory file lives on in the processes that map it."""
        self._retired += [(address, -1) for address in self._anterooms]
        if self._home is not None:
            self._retired.append((self._home[0], -1))
        self._anterooms, self._home = [], None
        self._retire()
        self.drop_retired()

    def describe(self) -> tuple[dict[str, Any], list[int]]:
        """Return the fields of a bind request and the descriptors that go with it."""
        self._is_shown = True
        if self.device.type == "cuda":
            handle = base64.b64encode(cuda_memory.export_handle(self._address)).decode()
            return {"kind": "cuda", "handle": handle, "size": self.size}, []
        return {"kind": "memfd", "size": self.size}, [self._fd]

    def _has_room(self, size: int) -> bool:
        return self.device.type == "cuda" and size <= recently_free_bytes(self.device) // GROWN_SHARE

    def _retire(self) -> None:
        if self._address or self._fd >= 0:
            self._retired.append((self._address, self._fd))
        self._forget()

    def _forget(self) -> None:
        self._address, self._fd, self.size, self._is_shown = 0, -1, 0, False
        self.block = torch.empty(0, dtype=torch.uint8, device=self.device)

    def _wipe(self) -> None:
        self.block.zero_()
        torch.cuda.synchronize(self.device)
