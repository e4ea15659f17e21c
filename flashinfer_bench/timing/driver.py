"""The CUDA driver, and the few calls that timing needs: assemble, load and launch our own kernels, reset L2 lines.

The calls need a current CUDA context, which torch makes; `make_context` alone makes it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Final

JIT_INPUT_PTX: Final = 1
"""The driver's number for PTX as an input of its linker."""
OPERATION_NODES: Final = (0, 1, 2)
"""The driver's numbers for nodes of a graph that are kernels, copies and fills."""
CHILD_GRAPH: Final = 4
"""The same for a graph within a graph."""
Kernel = ctypes.c_void_p
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
"""The variable that says how many connections to the GPU a context has, which streams share. CUDA makes eight where it
is not set; each takes 8 ms to make and 5 ms to end."""


class DriverError(Exception):
    """A call of the CUDA driver failed."""


@cache
def driver() -> ctypes.CDLL:
    """Load libcuda once and declare the calls that are made here."""
    library = ctypes.CDLL("libcuda.so.1")
    pointer, pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    text, size, number = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint
    library.cuLinkCreate_v2.argtypes = [number, pointer, pointer, pointers]
    library.cuLinkAddData_v2.argtypes = [pointer, ctypes.c_int, text, size, text, number, pointer, pointer]
    library.cuLinkComplete.argtypes = [pointer, pointers, ctypes.POINTER(size)]
    library.cuLinkDestroy.argtypes = [pointer]
    library.cuModuleLoadData.argtypes = [pointers, text]
    library.cuModuleGetFunction.argtypes = [pointers, pointer, text]
    library.cuLaunchKernel.argtypes = [pointer, *[number] * 7, pointer, pointer, pointer]
    library.cuCtxResetPersistingL2Cache.argtypes = []
    library.cuStreamCreate.argtypes = [pointers, number]
    library.cuGraphGetNodes.argtypes = [pointer, pointer, ctypes.POINTER(size)]
    library.cuGraphNodeGetType.argtypes = [pointer, ctypes.POINTER(ctypes.c_int)]
    library.cuGraphChildGraphNodeGetGraph.argtypes = [pointer, pointers]
    library.cuGetErrorString.argtypes = [ctypes.c_int, ctypes.POINTER(text)]
    return library


def check(code: int, what: str, *, error: type[DriverError] = DriverError) -> None:
    """Raise an error that names `what` unless the driver answered 0."""
    if code != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise error(f"{what} failed: {reason} (CUDA error {code})")


def make_context() -> None:
    """Start the driver and make the context of this process's first GPU, which torch then finds made.

    It takes 0.3 s and holds no lock of Python's. It says nothing where it fails: torch will say why.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), 0) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def set_connections(count: int | None) -> None:
    """Say how many connections the next context of this process has; None: as many as CUDA makes.

    Where the user says how many, that holds. The driver reads the variable, and Python's `os.environ`, of which other
    processes get theirs, knows nothing of it. Call it while no other thread runs.
    """
    if CONNECTIONS in os.environ:
        return
    library = ctypes.CDLL(None)
    if count is None:
        library.unsetenv(CONNECTIONS.encode())
    else:
        library.setenv(CONNECTIONS.encode(), str(count).encode(), 1)


def assemble(ptx: bytes) -> bytes:
    """Return the machine code of PTX for the current device. To load it takes 1 ms; to load PTX takes 70 ms.

    Raises:
        DriverError: the driver cannot assemble it.
    """
    library, state = driver(), ctypes.c_void_p()
    image, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(library.cuLinkCreate_v2(0, None, None, ctypes.byref(state)), "preparing to assemble PTX")
    try:
        text = ptx + b"\0"
        check(library.cuLinkAddData_v2(state, JIT_INPUT_PTX, text, len(text), b"timing", 0, None, None), "assembling")
        check(library.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size)), "linking")
        return ctypes.string_at(image, size.value)
    finally:
        library.cuLinkDestroy(state)


class Module:
    """Kernels in machine code or PTX, loaded into the current context for as long as that lives."""

    def __init__(self, image: bytes) -> None:
        self._image = image + b"\0"
        self._handle = ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(self._handle), self._image), "loading the timing kernels")

    def kernel(self, name: str) -> Kernel:
        """Return the kernel of that name."""
        found = ctypes.c_void_p()
        check(driver().cuModuleGetFunction(ctypes.byref(found), self._handle, name.encode()), f"finding {name}")
        return found


class Launcher:
    """Launches one kernel whose arguments are 64-bit integers. The arguments are copied at each launch."""

    def __init__(self, kernel: Kernel, *, blocks: int, threads: int, arguments: int) -> None:
        self._kernel = kernel
        self._shape = (blocks, 1, 1, threads, 1, 1, 0)
        self._values = [ctypes.c_uint64() for _ in range(arguments)]
        pointers = [ctypes.addressof(value) for value in self._values]
        self._pointers = (ctypes.c_void_p * max(arguments, 1))(*pointers)
        self._launch = driver().cuLaunchKernel

    def __call__(self, stream: int, *arguments: int) -> None:
        """Launch on a stream, given as its handle."""
        for value, argument in zip(self._values, arguments, strict=True):
            value.value = argument
        code = self._launch(self._kernel, *self._shape, stream, self._pointers, None)
        if code != 0:
            check(code, "launching a timing kernel")


def make_stream() -> int:
    """Make a stream that waits for the legacy default stream, and is waited for; return its handle.

    Streams of torch do neither. While this one is captured, a launch on the legacy default stream is an error that ends
    the capture. While a stream of torch's is captured, the launch runs at once and the graph does not hold it.
    """
    stream = ctypes.c_void_p()
    check(driver().cuStreamCreate(ctypes.byref(stream), 0), "making a stream")
    assert stream.value is not None
    return stream.value


def count_captured(stream: int) -> int | None:
    """Return how many kernels, copies and fills a stream's capture has so far; None where that cannot be told.

    Args:
        stream: handle of a stream under capture.
    """
    status, graph = ctypes.c_int(), ctypes.c_void_p()
    ask = getattr(driver(), "cuStreamGetCaptureInfo_v2", None)  # a driver of CUDA 11.3 or later has it
    if ask is None:
        return None
    pointer = ctypes.c_void_p
    ask.argtypes = [pointer, *[ctypes.POINTER(kind) for kind in (ctypes.c_int, ctypes.c_uint64)], *[pointer] * 3]
    if ask(stream, ctypes.byref(status), None, ctypes.byref(graph), None, None) != 0 or graph.value is None:
        return None
    return _count_operations(graph)


def _count_operations(graph: ctypes.c_void_p) -> int | None:
    library, count = driver(), ctypes.c_size_t()
    if library.cuGraphGetNodes(graph, None, ctypes.byref(count)) != 0:
        return None
    nodes = (ctypes.c_void_p * count.value)()
    if count.value and library.cuGraphGetNodes(graph, nodes, ctypes.byref(count)) != 0:
        return None
    operations = 0
    for node in nodes:
        kind, child = ctypes.c_int(), ctypes.c_void_p()
        if library.cuGraphNodeGetType(node, ctypes.byref(kind)) != 0:
            return None
        if kind.value == CHILD_GRAPH and library.cuGraphChildGraphNodeGetGraph(node, ctypes.byref(child)) == 0:
            operations += _count_operations(child) or 0
        operations += kind.value in OPERATION_NODES
    return operations


def reset_persisting_lines() -> None:
    """Turn all persisting lines of the L2 into normal ones. Call it while the device is idle."""
    check(driver().cuCtxResetPersistingL2Cache(), "resetting persisting L2 lines")
