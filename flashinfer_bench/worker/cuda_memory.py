"""Device memory that two processes share: raw allocations of the CUDA driver, one handle each.

torch's own sharing hands out a handle to the whole allocator block, neighbours included; a worker must not be able
to read what lies beside its inputs. So the arena is an allocation of its own, made and opened here through libcuda.
The calls need a current CUDA context, which torch makes.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import torch

from flashinfer_bench.timing import driver

IPC_HANDLE_BYTES: Final = 64
IPC_LAZY_PEER_ACCESS: Final = 1


class CudaMemoryError(driver.DriverError):
    """A call of the CUDA driver for memory failed."""


class IpcHandle(ctypes.Structure):
    """CUipcMemHandle of the driver API: 64 opaque bytes."""

    _fields_ = (("reserved", ctypes.c_char * IPC_HANDLE_BYTES),)


@cache
def _library() -> ctypes.CDLL:
    """Return libcuda, with the calls declared that are made here."""
    library, pointer = driver.driver(), ctypes.c_uint64
    library.cuMemAlloc_v2.argtypes = [ctypes.POINTER(pointer), ctypes.c_size_t]
    library.cuMemFree_v2.argtypes = [pointer]
    library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(IpcHandle), pointer]
    library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(pointer), IpcHandle, ctypes.c_uint]
    library.cuIpcCloseMemHandle.argtypes = [pointer]
    return library


def _check(code: int, what: str) -> None:
    driver.check(code, what, error=CudaMemoryError)


def allocate(size: int) -> int:
    """Allocate `size` bytes on the current device and return the address."""
    address = ctypes.c_uint64()
    _check(_library().cuMemAlloc_v2(ctypes.byref(address), size), f"allocating {size} bytes of device memory")
    return address.value


def free(address: int) -> None:
    """Give an allocation back."""
    _check(_library().cuMemFree_v2(address), "freeing device memory")


def export_handle(address: int) -> bytes:
    """Return the handle with which another process can open the allocation."""
    handle = IpcHandle()
    _check(_library().cuIpcGetMemHandle(ctypes.byref(handle), address), "exporting device memory")
    return ctypes.string_at(ctypes.byref(handle), IPC_HANDLE_BYTES)


def open_handle(handle: bytes) -> int:
    """Map an allocation of another process and return its address here."""
    opened = IpcHandle.from_buffer_copy(handle)
    address = ctypes.c_uint64()
    _check(
        _library().cuIpcOpenMemHandle_v2(ctypes.byref(address), opened, IPC_LAZY_PEER_ACCESS), "opening device memory"
    )
    return address.value


def close_handle(address: int) -> None:
    """Unmap what open_handle mapped."""
    _check(_library().cuIpcCloseMemHandle(address), "closing device memory")


class _DeviceBytes:
    """Tells torch where raw device memory lies, by the CUDA array interface, version 2."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 2}


def as_bytes(address: int, size: int) -> torch.Tensor:
    """Return the memory as a uint8 tensor that does not own it."""
    return torch.as_tensor(_DeviceBytes(address, size), device="cuda")
