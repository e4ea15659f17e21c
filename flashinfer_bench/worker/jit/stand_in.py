"""Stands in for a GPU in a process that reaches none: enough of one for Triton and FlashInfer to compile what a call
would launch.

Tensors have shapes, strides and the GPU as their device, and no memory (torch's FakeTensor). A launch does nothing, and
a module that FlashInfer has compiled is not loaded. Where a call reads a number from a tensor, it gets 16: a number
that many sizes share a factor with, so Triton compiles what most calls will launch. What is compiled lies in the
solution's cache under the keys that a launch on the GPU looks for, since these are made of the kernel's source, the
kinds of its arguments, the options and the kind of GPU.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses import fake_impls, fake_tensor

from flashinfer_bench.worker.jit.late_dynamo import put_off_dynamo

THREADS_A_BLOCK: Final = 1024
"""What the stand-in tells Triton of every kernel: as many threads may be in a block as a GPU lets be there."""
WARP_SIZE: Final = 32
LOWEST_PRIORITY: Final = 19
STREAM: Final = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
NUMBER: Final = 16
"""What a call reads from tensors; conditions hold each second time, so a loop until one holds ends."""
MOST_READ: Final = 20_000
"""Numbers that are read, at the most: a loop until a number changes is to end, too."""


def prepare_stand_in() -> None:
    """Import what the first use of a stand-in would, half a second of work, for all forks of this process.

    It takes the lowest priority from here on, and its forks with it.
    """
    os.nice(LOWEST_PRIORITY)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # nothing that is imported may start the driver, which no fork could use
    put_off_dynamo()
    gpu = {"torch": {"name": "", "major": 9, "minor": 0}, "triton": {}}
    with stand_in(gpu, asks_driver=False):
        torch.empty_like(torch.empty(1, device="cuda")) + 1


@contextmanager
def stand_in(gpu: Mapping[str, Any], *, asks_driver: bool = True) -> Iterator[None]:
    """Let the code of a block find a GPU that is not there.

    Args:
        gpu: what torch tells of its properties (`torch`), and what Triton's driver does (`triton`).
        asks_driver: may start the driver, to see that it has no GPU. Then torch switches between devices without it,
            which copies and slices of tensors need.
    """
    with ExitStack() as stack:
        if hasattr(fake_tensor, "init_gpu_context"):
            stack.enter_context(mock.patch.object(fake_tensor, "init_gpu_context"))
        stack.enter_context(_torch_sees(gpu["torch"]))
        stack.enter_context(_triton_sees(gpu))
        stack.enter_context(_modules_stay_on_disk())
        mode = fake_tensor.FakeTensorMode
        stack.enter_context(mock.patch.object(mode, "avoid_device_init", asks_driver, create=True))
        stack.enter_context(mode(allow_non_fake_inputs=True))
        yield


@contextmanager
def _torch_sees(properties: Mapping[str, Any]) -> Iterator[None]:
    capability = properties["major"], properties["minor"]
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda _device: None,
        "get_device_properties": lambda _device=None: SimpleNamespace(**properties),
        "get_device_capability": lambda _device=None: capability,
        "get_device_name": lambda _device=None: properties["name"],
        "synchronize": lambda _device=None: None,
        "current_stream": lambda _device=None: STREAM,
        "default_stream": lambda _device=None: STREAM,
        "device": lambda _device=None: nullcontext(),
        "device_of": lambda _tensor=None: nullcontext(),
        "is_current_stream_capturing": lambda: False,
        "_lazy_init": lambda: None,
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        stack.enter_context(mock.patch.object(fake_tensor.FakeTensor, "data_ptr", _place))
        read = {torch.ops.aten._local_scalar_dense.default: _make_reader()}
        stack.enter_context(mock.patch.dict(fake_impls.op_implementations_dict, read))
        yield


def _make_reader() -> Callable[..., bool | int | float]:
    reads = count(1)

    def read(_mode: object, _operation: object, tensor: torch.Tensor) -> bool | int | float:
        """Return what is read from a tensor of one element."""
        number = next(reads)
        if number > MOST_READ:
            raise RuntimeError(f"{MOST_READ} numbers were read from tensors without memory")
        if tensor.dtype is torch.bool:
            return number % 2 == 0
        return float(NUMBER) if tensor.dtype.is_floating_point else NUMBER

    return read


@contextmanager
def _modules_stay_on_disk() -> Iterator[None]:
    """Load no module that FlashInfer has compiled: its functions would read tensors that have no memory."""
    try:
        loader = importlib.import_module("tvm_ffi")
    except ImportError:
        yield
        return
    with mock.patch.object(loader, "load_module"):
        yield


def _place(tensor: torch.Tensor) -> int:
    """Return an address that is aligned as the tensor's would be: memory of its own begins at a multiple of 256."""
    return int(tensor.storage_offset()) * tensor.element_size()


@contextmanager
def _triton_sees(gpu: Mapping[str, Any]) -> Iterator[None]:
    try:
        nvidia = importlib.import_module("triton.backends.nvidia.driver")
        active = importlib.import_module("triton.runtime.driver").driver
        tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
    except ImportError:
        yield
        return
    before = active._active
    active.set_active(make_driver(nvidia, gpu))
    try:
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(tuner, "_bench", _compile_one))
            if hasattr(tuner, "check_disk_cache"):
                stack.enter_context(mock.patch.object(tuner, "check_disk_cache", _time_anew))
            yield
    finally:
        active._active = before


def make_driver(nvidia: Any, gpu: Mapping[str, Any]) -> Any:
    """Return a driver of Triton's that compiles for a GPU, and launches nothing.

    Args:
        nvidia: Triton's module of the driver that launches.
        gpu: see `stand_in`.
    """
    capability = gpu["torch"]["major"], gpu["torch"]["minor"]

    class CompilingDriver(nvidia.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = SimpleNamespace(
                get_device_properties=lambda _device=0: dict(gpu["triton"]),
                load_binary=lambda *_of: (0, 0, 0, 0, THREADS_A_BLOCK),
                set_printf_fifo_size=lambda _size: None,
            )
            self.launcher_cls = self._make_launcher
            self.get_current_device = lambda: 0
            self.set_current_device = lambda _device: None
            self.get_current_stream = lambda _device=0: 0
            self.get_device_capability = lambda _device=0: capability

        def _make_launcher(self, source: Any, metadata: Any) -> Any:
            """Compile the launcher too, since that lies in the cache as kernels do; return one that does nothing."""
            with suppress(Exception):
                nvidia.CudaLauncher(source, metadata)
            return lambda *_arguments: None

    return CompilingDriver()


def _time_anew(_tuner: Any, _key: Any, _configurations: Any, time_all: Callable[[], object]) -> bool:
    """Keep no times of configurations on disk: these are none. Says that none were found there."""
    time_all()
    return False


def _compile_one(tuner: Any, *arguments: Any, config: Any, **named: Any) -> list[float]:
    """Compile one configuration of an autotuned kernel in place of timing it."""
    try:
        tuner.fn.run(*arguments, **{**named, **config.all_kwargs()})
    except Exception:
        return [float("inf")] * 3
    return [0.0] * 3
