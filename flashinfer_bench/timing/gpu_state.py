"""What state a GPU is in, through NVML: clocks, power, temperature, what slows it down, who else uses it. No CUDA."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pynvml

SLOWED_BY: Final = {
    "power_cap": pynvml.nvmlClocksEventReasonSwPowerCap,
    "hw_slowdown": pynvml.nvmlClocksThrottleReasonHwSlowdown,
    "sw_thermal": pynvml.nvmlClocksEventReasonSwThermalSlowdown,
    "hw_thermal": pynvml.nvmlClocksThrottleReasonHwThermalSlowdown,
    "hw_power_brake": pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown,
}


@dataclass(frozen=True)
class GpuState:
    """One look at one GPU; None where the driver does not tell."""

    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    slowed_by: tuple[str, ...]
    """Why its clocks are below what they could be: keys of SLOWED_BY."""
    other_processes: int | None
    """Number of processes that hold a context on it and are not ours. None also where NVML gives process ids of another
    namespace, as it does in a container."""


@dataclass(frozen=True)
class GpuSettings:
    """What a GPU is set to; None where the driver does not tell."""

    power_limit_w: float | None
    application_sm_mhz: int | None
    """Clocks that programs are to run at, where somebody has set them. Locked clocks no driver tells."""
    application_memory_mhz: int | None
    most_sm_mhz: int | None
    most_memory_mhz: int | None


@cache
def handle(uuid: str) -> Any:
    """Return NVML's handle of a GPU by its UUID, or None where NVML does not know it."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None


def read_gpu_state(uuid: str, *, ours: Collection[int] = ()) -> GpuState | None:
    """Look at a GPU; takes about 4 ms.

    Args:
        uuid: as NVML spells it, "GPU-…".
        ours: process ids that do not count as others. At least one of these processes holds a context.

    Returns:
        None where NVML does not know the GPU.
    """
    gpu = handle(uuid)
    if gpu is None:
        return None
    reasons = _ask(pynvml.nvmlDeviceGetCurrentClocksEventReasons, gpu) or 0
    power = _ask(pynvml.nvmlDeviceGetPowerUsage, gpu)
    processes = _ask(pynvml.nvmlDeviceGetComputeRunningProcesses, gpu)
    return GpuState(
        sm_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        memory_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
        power_w=None if power is None else round(power / 1000, 1),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, gpu, pynvml.NVML_TEMPERATURE_GPU),
        slowed_by=tuple(name for name, bit in SLOWED_BY.items() if reasons & bit),
        other_processes=None if processes is None else count_others([process.pid for process in processes], ours),
    )


def read_gpu_settings(uuid: str) -> GpuSettings | None:
    """Return what a GPU is set to; None where NVML does not know it."""
    gpu = handle(uuid)
    if gpu is None:
        return None
    limit_mw = _ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, gpu)
    return GpuSettings(
        power_limit_w=None if limit_mw is None else round(limit_mw / 1000, 1),
        application_sm_mhz=_ask(pynvml.nvmlDeviceGetApplicationsClock, gpu, pynvml.NVML_CLOCK_SM),
        application_memory_mhz=_ask(pynvml.nvmlDeviceGetApplicationsClock, gpu, pynvml.NVML_CLOCK_MEM),
        most_sm_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_SM),
        most_memory_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, gpu, pynvml.NVML_CLOCK_MEM),
    )


def count_others(seen: Collection[int], ours: Collection[int]) -> int | None:
    """Return how many processes on a GPU are not ours; None where none of ours is seen, so that ids mean nothing."""
    others = sum(pid not in ours for pid in seen)
    return None if ours and others == len(seen) else others


def _ask(question: Any, *arguments: Any) -> Any:
    try:
        return question(*arguments)
    except pynvml.NVMLError:
        return None
