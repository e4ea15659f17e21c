"""The CUDA driver calls that timing needs and torch does not have: for our kernels, L2 lines, a stream, captured nodes.

The calls need a current CUDA context, which torch makes. Only `make_context` makes a context itself.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

JIT_INPUT_PTX: Final = 1
"""The driver's number for PTX as an input of its linker."""
OPERATION_NODES: Final = (0, 1, 2)
CHILD_GRAPH: Final = 4
"""The driver's numbers for kinds of graph nodes: a kernel, a copy, a fill (OPERATION_NODES), and a graph within a
graph."""
TYPES: Final = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "z": ctypes.c_size_t,
    "u": ctypes.c_uint,
    "i": ctypes.c_int,
}
CALLS: Final = {
    "cuLinkCreate_v2": "uppp",
    "cuLinkAddData_v2": "piszsupp",
    "cuLinkComplete": "ppp",
    "cuLinkDestroy": "p",
    "cuModuleLoadData": "ps",
    "cuModuleGetFunction": "pps",
    "cuLaunchKernel": "puuuuuuuppp",
    "cuCtxResetPersistingL2Cache": "",
    "cuStreamCreate": "pu",
    "cuGraphGetNodes": "ppp",
    "cuGraphNodeGetType": "pp",
    "cuGetErrorString": "ip",
    "cuMemHostRegister_v2": "pzu",
    "cuMemHostUnregister": "p",
    "cuMemHostGetDevicePointer_v2": "ppu",
}
"""Driver call → letters of its arguments' types."""


class DriverError(Exception):
    """A call of the CUDA driver failed."""


@cache
def driver() -> ctypes.CDLL:
    """Load libcuda once and declare the calls that are made here."""
    library = ctypes.CDLL("libcuda.so.1")
    for name, letters in CALLS.items():
        getattr(library, name).argtypes = [TYPES[letter] for letter in letters]
    return library


def check(code: int, what: str, *, error: type[DriverError] = DriverError) -> None:
    """Raise an error that names `what` unless the driver returned 0."""
    if code != 0:
        text = ctypes.c_char_p()
        driver().cuGetErrorString(code, ctypes.byref(text))
        reason = text.value.decode() if text.value else "unknown error"
        raise error(f"{what} failed: {reason} (CUDA error {code})")


def make_context() -> None:
    """Start the driver and make the context of this process's first GPU. Torch then uses this context.

    It takes 0.3 s, and does not hold Python's GIL. A failure is left for torch to report.
    """
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if library.cuInit(0) == 0 and library.cuDeviceGet(ctypes.byref(device), 0) == 0:
        library.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def assemble(ptx: bytes) -> bytes:
    """Return the machine code of PTX for the current device. Machine code loads in 1 ms, PTX in 70 ms.

    Raises:
        DriverError: the driver cannot assemble the PTX.
    """
    library, state, text = driver(), ctypes.c_void_p(), ptx + b"\0"
    image, size = ctypes.c_void_p(), ctypes.c_size_t()
    check(library.cuLinkCreate_v2(0, None, None, ctypes.byref(state)), "preparing to assemble PTX")
    try:
        added = library.cuLinkAddData_v2(state, JIT_INPUT_PTX, text, len(text), b"timing", 0, None, None)
        check(added, "assembling")
        check(library.cuLinkComplete(state, ctypes.byref(image), ctypes.byref(size)), "linking")
        return ctypes.string_at(image, size.value)
    finally:
        library.cuLinkDestroy(state)


class Module:
    """Kernels in machine code or PTX, loaded into the current context until the context ends."""

    def __init__(self, image: bytes) -> None:
        self._image = image + b"\0"
        self._handle = ctypes.c_void_p()
        self._launchers: dict[tuple[str, int, int, int], Launcher] = {}
        check(driver().cuModuleLoadData(ctypes.byref(self._handle), self._image), "loading the timing kernels")

    def launcher(self, name: str, arguments: int = 0, blocks: int = 1, threads: int = 1) -> Launcher:
        """Return the launcher of the kernel of that name; the same one for the same numbers."""
        key = name, arguments, blocks, threads
        if key not in self._launchers:
            kernel = ctypes.c_void_p()
            check(driver().cuModuleGetFunction(ctypes.byref(kernel), self._handle, name.encode()), f"finding {name}")
            self._launchers[key] = Launcher(kernel, arguments, blocks, threads)
        return self._launchers[key]


class Launcher:
    """Launches one kernel whose arguments are 64-bit integers. The arguments are copied at each launch."""

    def __init__(self, kernel: ctypes.c_void_p, arguments: int, blocks: int, threads: int) -> None:
        self._kernel = kernel
        self._shape = (blocks, 1, 1, threads, 1, 1, 0)
        self._values = [ctypes.c_uint64() for _ in range(arguments)]
        self._pointers = (ctypes.c_void_p * max(arguments, 1))(*map(ctypes.addressof, self._values))
        self._launch = driver().cuLaunchKernel

    def __call__(self, stream: int, *arguments: int) -> None:
        """Launch on a stream, given as its handle."""
        for value, argument in zip(self._values, arguments, strict=True):
            value.value = argument
        code = self._launch(self._kernel, *self._shape, stream, self._pointers, None)
        if code != 0:
            check(code, "launching a timing kernel")


def make_stream() -> int:
    """Make a blocking stream, and return its handle. This stream and the legacy default stream wait for each other.

    Streams of torch are non-blocking. While a blocking stream is captured, a launch on the legacy default stream is an
    error that ends the capture. While a stream of torch's is captured, such a launch runs immediately and is missing in
    the graph.
    """
    stream = ctypes.c_void_p()
    check(driver().cuStreamCreate(ctypes.byref(stream), 0), "making a stream")
    assert stream.value is not None
    return stream.value


def count_captured(stream: int) -> int | None:
    """Return the number of kernels, copies and fills in a stream's capture so far.

    None if the number is unknown: the driver is older than CUDA 11.3, or the capture contains another graph.

    Args:
        stream: handle of a stream under capture.
    """
    library = driver()
    status, graph, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t()
    ask = getattr(library, "cuStreamGetCaptureInfo_v2", None)
    if ask is None:
        return None
    ask.argtypes = [ctypes.c_void_p] * 6
    if ask(stream, ctypes.byref(status), None, ctypes.byref(graph), None, None) or graph.value is None:
        return None
    failed = library.cuGraphGetNodes(graph, None, ctypes.byref(count))
    nodes, kinds = (ctypes.c_void_p * (count.value + 1))(), [ctypes.c_int() for _ in range(count.value)]
    if count.value:
        failed |= library.cuGraphGetNodes(graph, nodes, ctypes.byref(count))
    for node, kind in zip(nodes, kinds, strict=False):
        failed |= library.cuGraphNodeGetType(node, ctypes.byref(kind))
    result = [kind.value for kind in kinds]
    return None if failed or CHILD_GRAPH in result else sum(kind in OPERATION_NODES for kind in result)


def reset_persisting_lines() -> None:
    """Turn all persisting lines of the L2 into normal lines. Call it while the device is idle."""
    check(driver().cuCtxResetPersistingL2Cache(), "resetting persisting L2 lines")
