"""The memory that a session shares with one worker, and the layout of tensors in it.

The session owns it and decides the layout; the worker only maps it. On a CPU it is a memory file whose descriptor comes
with the frame. On a GPU it is a raw allocation of the CUDA driver, opened by its IPC handle. Sharing by torch is not
used, since it exports the whole allocator block. A worker must not read memory next to its inputs. Driver calls need a
current CUDA context, which torch makes. Tensors are contiguous, at offsets that are multiples of ALIGNMENT bytes.
"""

from __future__ import annotations

import base64
import ctypes
import math
import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch

from flashinfer_bench.timing import driver

ALIGNMENT: Final = 256
"""Bytes. A GPU's allocator uses the same alignment."""
IPC_HANDLE_BYTES: Final = 64
IPC_LAZY_PEER_ACCESS: Final = 1


@dataclass(frozen=True)
class Slot:
    """The location of one tensor."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor's elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def to_json(self) -> dict[str, Any]:
        """Return the slot as a field of a frame."""
        return {"offset": self.offset, "shape": list(self.shape), "dtype": str(self.dtype).removeprefix("torch.")}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Slot:
        """Read the output of to_json."""
        return cls(int(data["offset"]), tuple(int(n) for n in data["shape"]), getattr(torch, data["dtype"]))

    def view(self, block: torch.Tensor) -> torch.Tensor:
        """Return the tensor inside a uint8 block."""
        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=self.dtype, device=block.device)
        return block[self.offset : self.offset + self.nbytes].view(self.dtype).view(self.shape)

    def rows(self, block: torch.Tensor, count: int, stride: int) -> torch.Tensor:
        """Return `count` tensors of this shape and dtype in a uint8 block, `stride` bytes apart, as one tensor [count,
        *shape]."""
        if self.nbytes == 0:
            return torch.empty((count, *self.shape), dtype=self.dtype, device=block.device)
        size, first = self.dtype.itemsize, self.view(block)
        held = block.view(self.dtype)  # a block has whole pages, and slots begin at multiples of ALIGNMENT
        return held.as_strided((count, *self.shape), (stride // size, *first.stride()), self.offset // size)


@dataclass(frozen=True)
class MappedArena:
    """An arena as a uint8 tensor, and a function that unmaps it."""

    block: torch.Tensor
    release: Callable[[], object]


def open_arena(description: dict[str, Any], fds: list[int]) -> MappedArena:
    """Map the arena of a bind request; close the request's descriptors."""
    size = int(description["size"])
    try:
        if description["kind"] == "cuda":
            address = open_handle(base64.b64decode(description["handle"]))
            return MappedArena(device_bytes(address, size), lambda: close_handle(address))
        return MappedArena(map_memory_file(fds[0], size), lambda: None)  # it stays mapped while a tensor uses it
    finally:
        for fd in fds:
            os.close(fd)


def map_memory_file(fd: int, size: int) -> torch.Tensor:
    """Map a memory file, shared and writable, as a uint8 tensor. The tensor keeps the mapping."""
    return torch.frombuffer(mmap.mmap(fd, size), dtype=torch.uint8)


class CudaMemoryError(driver.DriverError):
    """A memory call of the CUDA driver failed."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle of the driver API: 64 opaque bytes."""

    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


def _check(code: int, what: str) -> None:
    driver.check(code, what, error=CudaMemoryError)


def allocate(size: int) -> int:
    """Allocate `size` bytes on the current device and return the address."""
    address = ctypes.c_uint64()
    code = driver.driver().cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    _check(code, f"allocating {size} bytes of device memory")
    return address.value


def free(address: int) -> None:
    """Free an allocation."""
    _check(driver.driver().cuMemFree_v2(ctypes.c_uint64(address)), "freeing device memory")


def export_handle(address: int) -> bytes:
    """Return the handle with which another process can open the allocation."""
    handle = IpcHandle()
    code = driver.driver().cuIpcGetMemHandle(ctypes.byref(handle), ctypes.c_uint64(address))
    _check(code, "exporting device memory")
    return ctypes.string_at(ctypes.byref(handle), IPC_HANDLE_BYTES)


def open_handle(handle: bytes) -> int:
    """Map an allocation of another process and return its address here."""
    opened, address = IpcHandle.from_buffer_copy(handle), ctypes.c_uint64()
    code = driver.driver().cuIpcOpenMemHandle_v2(ctypes.byref(address), opened, ctypes.c_uint(IPC_LAZY_PEER_ACCESS))
    _check(code, "opening device memory")
    return address.value


def close_handle(address: int) -> None:
    """Unmap an allocation mapped by open_handle."""
    _check(driver.driver().cuIpcCloseMemHandle(ctypes.c_uint64(address)), "closing device memory")


class _DeviceBytes:
    """Gives torch the address of raw device memory by the CUDA array interface, version 2."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


def device_bytes(address: int, size: int) -> torch.Tensor:
    """Return raw device memory as a uint8 tensor that does not own it."""
    return torch.as_tensor(_DeviceBytes(address, size), device="cuda")
