"""Compiles a solution's Triton kernels, torch extensions and FlashInfer modules ahead, by fake calls without a GPU.

It runs while another solution is measured. So it has the lowest priority, and cannot leave its cores. The results are
in the solution's own cache. Its reports are not trusted, and a solution that fails here is compiled at its first call,
as usual.

`stand_in` fakes enough of a GPU for Triton and FlashInfer to compile the kernels of a call. Tensors have shapes,
strides and the GPU as their device, and no memory (torch's FakeTensor). A launch has no effect, and compiled FlashInfer
modules are not loaded. A call that reads a number from a tensor gets 16. Triton specializes kernels on divisibility by
16, so it compiles the kernels that most calls will launch. The cache keys equal the keys of a launch on the GPU. They
depend on the kernel's source, the kinds of its arguments, the options and the GPU.
"""

from __future__ import annotations

import importlib
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest import mock

import torch
from torch._subclasses import fake_impls, fake_tensor

from flashinfer_bench.sandbox.process_tree import show_memory
from flashinfer_bench.sandbox.seccomp import refuse_calls
from flashinfer_bench.worker.jit.folders import enter_folders
from flashinfer_bench.worker.load import LoadedEntry, load_entry

THREADS_A_BLOCK: Final = 1024
"""Maximum number of threads in a block, reported to Triton for every kernel."""
LOWEST_PRIORITY: Final = 19
NUMBER: Final = 16
"""Number that a call reads from a tensor. A boolean is true at every second read, so that loops on a condition end."""
MOST_READ: Final = 20_000
"""Maximum number of values that are read. The next read raises, which ends a loop that waits for another number."""


def precompile(order: Mapping[str, Any], shared_modules: str | None = None) -> None:
    """Load the solution, and make the calls of the order on tensors without memory.

    Args:
        order: `directory`, `entry`, `symbol` and `kind` of its artifact, the `calls` with `inputs` and `outputs`, the
            `gpu` (see `stand_in`), the usable `cores`, and the number of `compilers` at once.
        shared_modules: FlashInfer's folder of compiled modules; None if there is none.
    """
    step_back(order["cores"])
    os.environ["MAX_JOBS"] = str(order["compilers"])
    show_memory()
    enter_folders(shared_modules)
    with stand_in(order["gpu"]):
        loaded = load_entry(Path(order["directory"]), order["entry"], order["symbol"], kind=order["kind"])
        for call in order["calls"]:
            try:
                call_once(loaded, call)
            except Exception:
                traceback.print_exc()


def step_back(cores: Sequence[int]) -> None:
    """Use only idle time of these cores from now on. This cannot be undone."""
    os.nice(LOWEST_PRIORITY)
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(1)
    refuse_calls(("sched_setaffinity", "sched_setattr", "sched_setscheduler", "sched_setparam"))


def call_once(loaded: LoadedEntry, call: Mapping[str, Any]) -> None:
    """Make one call, with its outputs if the entry function takes them."""
    inputs = [make_argument(one) for one in call["inputs"]]
    outputs = [make_argument(one) for one in call["outputs"]]
    takes = loaded.signature
    fills = takes is not None and takes.minimum >= len(inputs) + len(outputs)
    given = [*inputs, *outputs] if fills else inputs
    loaded.function(*given, **loaded.bind_setup(inputs, given)())


def make_argument(described: Mapping[str, Any]) -> Any:
    """Return a number, or a tensor of this shape."""
    if "scalar" in described:
        return described["scalar"]
    return torch.empty(described["shape"], dtype=getattr(torch, described["dtype"]), device="cuda")


def prepare_stand_in() -> None:
    """Import the modules for the first use of a stand-in, for all forks of this process.

    This process and its forks then have the lowest priority.
    """
    os.nice(LOWEST_PRIORITY)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # imports must not start the driver, since no fork could use it
    with stand_in({"torch": {"name": "", "major": 9, "minor": 0}, "triton": {}}, asks_driver=False):
        torch.empty_like(torch.empty(1, device="cuda")) + 1


@contextmanager
def stand_in(gpu: Mapping[str, Any], *, asks_driver: bool = True) -> Iterator[None]:
    """Let the code of a block see a fake GPU.

    Args:
        gpu: its properties from torch (`torch`), and from Triton's driver (`triton`).
        asks_driver: whether torch may start the driver, which finds no GPU. Then torch switches devices without the
            driver, as copies and slices of tensors require.
    """
    mode = fake_tensor.FakeTensorMode
    with ExitStack() as stack:

        def patch(target: Any, **values: Any) -> None:
            for name, value in values.items():
                stack.enter_context(mock.patch.object(target, name, value, create=target is mode))

        if hasattr(fake_tensor, "init_gpu_context"):
            patch(fake_tensor, init_gpu_context=mock.DEFAULT)
        found = SimpleNamespace(**gpu["torch"])
        stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
        answers = {
            **dict.fromkeys(("is_available", "is_initialized"), True),
            **dict.fromkeys(("set_device", "synchronize", "_lazy_init"), None),
            **dict.fromkeys(("current_stream", "default_stream"), stream),
            **dict.fromkeys(("device", "device_of"), nullcontext()),
            "device_count": 1,
            "current_device": 0,
            "get_device_properties": found,
            "get_device_capability": (found.major, found.minor),
            "get_device_name": found.name,
            "is_current_stream_capturing": False,
        }
        patch(torch.cuda, **{name: always(answer) for name, answer in answers.items()})
        # Addresses have their real alignment, since a tensor's own memory begins at a multiple of 256.
        patch(fake_tensor.FakeTensor, data_ptr=lambda tensor: int(tensor.storage_offset()) * tensor.element_size())
        read = {torch.ops.aten._local_scalar_dense.default: _make_reader()}
        stack.enter_context(mock.patch.dict(fake_impls.op_implementations_dict, read))
        with suppress(ImportError):
            patch(importlib.import_module("tvm_ffi"), load_module=mock.DEFAULT)
        with suppress(ImportError):
            active = importlib.import_module("triton.runtime.driver").driver
            tuner = importlib.import_module("triton.runtime.autotuner").Autotuner
            stack.callback(setattr, active, "_active", active._active)
            active.set_active(make_driver(importlib.import_module("triton.backends.nvidia.driver"), gpu))
            patch(tuner, _bench=_compile_one)
            if hasattr(tuner, "check_disk_cache"):
                patch(tuner, check_disk_cache=_time_anew)
        patch(mode, avoid_device_init=asks_driver)
        stack.enter_context(mode(allow_non_fake_inputs=True))
        yield


def always(answer: Any) -> Callable[..., Any]:
    """Return a function that always gives the same answer."""
    return lambda *_arguments, **_named: answer


def _make_reader() -> Callable[..., bool | int | float]:
    reads = count(1)

    def read(_mode: object, _operation: object, tensor: torch.Tensor) -> bool | int | float:
        """Return the fake number of a one-element tensor."""
        number = next(reads)
        if number > MOST_READ:
            raise RuntimeError(f"{MOST_READ} numbers were read from tensors without memory")
        if tensor.dtype is torch.bool:
            return number % 2 == 0
        return float(NUMBER) if tensor.dtype.is_floating_point else NUMBER

    return read


def make_driver(nvidia: Any, gpu: Mapping[str, Any]) -> Any:
    """Return a Triton driver that compiles for a GPU, and launches nothing.

    Args:
        nvidia: Triton's module of the driver that launches.
        gpu: see `stand_in`.
    """

    def make_launcher(source: Any, metadata: Any) -> Any:
        """Compile the launcher, which is cached like kernels; return a launcher without effect."""
        with suppress(Exception):
            nvidia.CudaLauncher(source, metadata)
        return always(None)

    class CompilingDriver(nvidia.CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.utils = SimpleNamespace(
                get_device_properties=always(dict(gpu["triton"])),
                load_binary=always((0, 0, 0, 0, THREADS_A_BLOCK)),
                set_printf_fifo_size=always(None),
            )
            self.launcher_cls = make_launcher
            self.get_current_device = self.get_current_stream = always(0)
            self.set_current_device = always(None)
            self.get_device_capability = always((gpu["torch"]["major"], gpu["torch"]["minor"]))

    return CompilingDriver()


def _time_anew(_tuner: Any, _key: Any, _configurations: Any, time_all: Callable[[], object]) -> bool:
    """Skip Triton's disk cache of autotuning results, because nothing is timed here. Return False: no cached result."""
    time_all()
    return False


def _compile_one(tuner: Any, *arguments: Any, config: Any, **named: Any) -> list[float]:
    """Compile one configuration of an autotuned kernel, instead of timing it."""
    try:
        tuner.fn.run(*arguments, **{**named, **config.all_kwargs()})
    except Exception:
        return [float("inf")] * 3
    return [0.0] * 3
