"""A machine without CUDA or torch: versions, compilers, and a GPU at rest, through NVML."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

import pynvml

from flashinfer_bench import __version__
from flashinfer_bench.bench.machine import Device, is_torch_cuda_build
from flashinfer_bench.bench.runner.sandbox import Sandbox, find_sandbox
from flashinfer_bench.compile import find_toolchain, find_unavailable_languages
from flashinfer_bench.env import cache_root
from flashinfer_bench.timing.nvml import GpuState, read_gpu_state

PACKAGES: Final = ("torch", "triton", "flashinfer-python", "cupti-python", "apache-tvm-ffi")
"""Distributions whose versions times depend on."""


@dataclass(frozen=True)
class GpuAtRest:
    """A GPU before anything runs on it; a field is None if the driver does not say."""

    memory_bytes: int | None
    memory_used_bytes: int | None
    sm_max_mhz: int | None
    memory_max_mhz: int | None
    power_limit_w: float | None
    processes: tuple[int, ...] | None
    """Processes that hold a context on it."""
    state: GpuState | None


@dataclass(frozen=True)
class MachineState:
    """A machine, and the device of it that is examined."""

    device: Device
    gpus: int
    """NVIDIA GPUs that the driver knows, usable or not."""
    torch_has_cuda: bool
    versions: Mapping[str, str | None]
    """Package or driver → version; None if it is not installed."""
    compilers: Mapping[str, str | None]
    """Compiler → its path and version; None if it is not there."""
    languages: Mapping[str, str | None]
    """Language of solutions → None if they can be built here, else the reason why not."""
    gpu: GpuAtRest | None
    """None for a CPU."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """How far solutions can be confined here."""


def read_machine(device: Device, *, nvml: Any = pynvml, environment: Mapping[str, str] = os.environ) -> MachineState:
    """Look at the machine that this runs on.

    Args:
        device: the device to look at.
        nvml: the NVML binding.
        environment: where compilers are looked for.
    """
    toolchain = find_toolchain(environment)
    cuda = toolchain.cuda
    cxx = toolchain.cxx
    gpus = 0
    versions: dict[str, str | None] = {"flashinfer_bench": __version__, "python": platform.python_version()}
    versions |= dict.fromkeys([*PACKAGES, "driver", "CUDA of the driver"])
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        number = int(nvml.nvmlSystemGetCudaDriverVersion())
        versions["CUDA of the driver"] = f"{number // 1000}.{number % 1000 // 10}"
        versions["driver"] = str(nvml.nvmlSystemGetDriverVersion())
        gpus = int(nvml.nvmlDeviceGetCount())
    return MachineState(
        device=device,
        gpus=gpus,
        torch_has_cuda=is_torch_cuda_build(),
        versions=versions,
        compilers={
            "nvcc": f"{cuda.nvcc.path} ({cuda.version[0]}.{cuda.version[1]})" if cuda else None,
            "C++": str(cxx.path) if cxx else None,
        },
        languages=find_unavailable_languages(toolchain),
        gpu=_read_gpu(device.uuid, nvml) if device.kind == "cuda" else None,
        sandbox=find_sandbox("auto", cache_root(environment)),
    )


def _read_gpu(uuid: str, nvml: Any) -> GpuAtRest | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None

    def ask(question: Any, *arguments: Any) -> Any:
        with suppress(nvml.NVMLError):
            return question(handle, *arguments)
        return None

    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    limit = ask(nvml.nvmlDeviceGetPowerManagementLimit)
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses)
    return GpuAtRest(
        memory_bytes=memory and int(memory.total),
        memory_used_bytes=memory and int(memory.used),
        sm_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        memory_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
        power_limit_w=limit and limit / 1000,
        processes=None if processes is None else tuple(process.pid for process in processes),
        state=read_gpu_state(uuid),
    )
