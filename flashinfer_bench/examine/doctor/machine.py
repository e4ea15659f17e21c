"""What a machine tells of itself without CUDA or torch: versions, compilers, and a GPU at rest, through NVML."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final

import pynvml

from flashinfer_bench import __version__
from flashinfer_bench.bench.machine import Device, is_torch_cuda_build
from flashinfer_bench.bench.runner.sandbox import Sandbox, find_sandbox
from flashinfer_bench.compile import Toolchain, find_toolchain, find_unavailable_languages
from flashinfer_bench.env import cache_root
from flashinfer_bench.timing.nvml import GpuState, read_gpu_state

PACKAGES: Final = ("torch", "triton", "flashinfer-python", "cupti-python", "apache-tvm-ffi")
"""Distributions whose versions times depend on."""


@dataclass(frozen=True)
class GpuAtRest:
    """A GPU before anything is run on it; None where the driver does not tell."""

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
    """A machine, and the device of it that is looked at."""

    device: Device
    gpus: int
    """NVIDIA GPUs that the driver knows, usable or not."""
    torch_has_cuda: bool
    versions: Mapping[str, str | None]
    """Package or driver to version; None for what is not installed."""
    compilers: Mapping[str, str | None]
    """Compiler to where it is and its version; None for what is not there."""
    languages: Mapping[str, str | None]
    """Language of solutions to None where they can be built here, else the reason why not."""
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
    driver = _read_driver(nvml)
    return MachineState(
        device=device,
        gpus=driver.gpus,
        torch_has_cuda=is_torch_cuda_build(),
        versions={**_own_versions(), "driver": driver.version, "CUDA of the driver": driver.cuda},
        compilers=_describe_compilers(toolchain),
        languages=find_unavailable_languages(toolchain),
        gpu=_read_gpu(device.uuid, nvml) if device.kind == "cuda" else None,
        sandbox=find_sandbox("auto", cache_root(environment)),
    )


@dataclass(frozen=True)
class _Driver:
    gpus: int = 0
    version: str | None = None
    cuda: str | None = None


def _read_driver(nvml: Any) -> _Driver:
    try:
        nvml.nvmlInit()
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        version = nvml.nvmlSystemGetDriverVersion()
        return _Driver(int(nvml.nvmlDeviceGetCount()), str(version), f"{cuda // 1000}.{cuda % 1000 // 10}")
    except nvml.NVMLError:
        return _Driver()


def _own_versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"flashinfer_bench": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def _describe_compilers(toolchain: Toolchain) -> dict[str, str | None]:
    cuda, cxx = toolchain.cuda, toolchain.cxx
    return {
        "nvcc": f"{cuda.nvcc.path} ({cuda.version[0]}.{cuda.version[1]})" if cuda else None,
        "C++": str(cxx.path) if cxx else None,
    }


def _read_gpu(uuid: str, nvml: Any) -> GpuAtRest | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        return None

    def ask(question: Any, *arguments: Any) -> Any:
        try:
            return question(handle, *arguments)
        except nvml.NVMLError:
            return None

    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    limit = ask(nvml.nvmlDeviceGetPowerManagementLimit)
    processes = ask(nvml.nvmlDeviceGetComputeRunningProcesses)
    return GpuAtRest(
        memory_bytes=None if memory is None else int(memory.total),
        memory_used_bytes=None if memory is None else int(memory.used),
        sm_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        memory_max_mhz=ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM),
        power_limit_w=None if limit is None else limit / 1000,
        processes=None if processes is None else tuple(process.pid for process in processes),
        state=read_gpu_state(uuid),
    )
