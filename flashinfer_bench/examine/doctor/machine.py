"""Reads a machine without CUDA or torch: versions, compilers, and an idle GPU by NVML. Declares a probe's results."""

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
from flashinfer_bench.sandbox.namespaces import has_own_network
from flashinfer_bench.timing.nvml import GpuState, read_gpu_state

PACKAGES: Final = ("torch", "triton", "flashinfer-python", "cupti-python", "apache-tvm-ffi")
"""Distributions whose versions can change times."""


@dataclass(frozen=True)
class MachineState:
    """A machine, and its examined device."""

    device: Device
    gpus: int
    """Number of NVIDIA GPUs that the driver knows, usable or not."""
    torch_has_cuda: bool
    versions: Mapping[str, str | None]
    """Package or driver → version; None if it is not installed."""
    compilers: Mapping[str, str | None]
    """Compiler → its path and version; None if it is not installed."""
    languages: Mapping[str, str | None]
    """Language → why its solutions cannot be built here; None if they can."""
    at_rest: GpuState | None = None
    """The GPU before our programs run on it; None for a CPU."""
    sandbox: Sandbox = field(default_factory=Sandbox)
    """The sandbox that this machine can provide."""
    has_own_network: bool = True
    """Whether a process can have a private network."""


@dataclass(frozen=True)
class Readings:
    """The measurements of one device."""

    method: str
    """The clock of timed calls: "cupti", "cuda_events" or "wall"."""
    fallback: str = ""
    """Why no better clock is used; empty for the best clock."""
    cuda: str | None = None
    """The CUDA version that torch was built for."""
    launch_gap_ns: int = 0
    """Launch overhead: the cost of one more launch in a full queue; 0 if the clock cannot measure it."""
    empty_ns: int = 0
    """Time that the wall clock, or a pair of CUDA events, reports for an empty call; 0 for CUPTI."""
    cold_ns: int = 0
    """Time of a kernel that reads a part of the L2's size, with a cold L2; 0 on a CPU."""
    warm_ns: int = 0
    """Time of the same kernel with a warm L2."""


def read_machine(device: Device, *, nvml: Any = pynvml, environment: Mapping[str, str] = os.environ) -> MachineState:
    """Read the state of this machine.

    Args:
        device: the device to examine.
        nvml: the NVML binding.
        environment: the variables that locate compilers.
    """
    toolchain, gpus = find_toolchain(environment), 0
    versions: dict[str, str | None] = {"flashinfer_bench": __version__, "python": platform.python_version()}
    versions |= dict.fromkeys([*PACKAGES, "driver"])
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    with suppress(nvml.NVMLError):
        nvml.nvmlInit()
        number, driver = int(nvml.nvmlSystemGetCudaDriverVersion()), nvml.nvmlSystemGetDriverVersion()
        versions["driver"] = f"{driver} (CUDA {number // 1000}.{number % 1000 // 10})"
        gpus = int(nvml.nvmlDeviceGetCount())
    cuda, cxx = toolchain.cuda, toolchain.cxx
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
        at_rest=read_gpu_state(device.uuid) if device.kind == "cuda" else None,
        sandbox=find_sandbox("auto", cache_root(environment)),
        has_own_network=has_own_network(),
    )
