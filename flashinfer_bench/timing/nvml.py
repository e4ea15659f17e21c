"""The state of a GPU through NVML: clocks, power, temperature, throttle reasons, other processes. This module uses no
CUDA."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cache, partial
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
    """State of one GPU at one moment; a field is None if the driver does not report it."""

    sm_mhz: int | None
    memory_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    slowed_by: tuple[str, ...]
    """Throttle reasons: keys of SLOWED_BY."""
    other_processes: int | None
    """Number of other programs' processes with a context on the GPU. It is also None if NVML reports process ids of
    another namespace, as in a container."""


@dataclass(frozen=True)
class GpuSettings:
    """Settings of a GPU; a field is None if the driver does not report it."""

    power_limit_w: float | None
    application_sm_mhz: int | None
    """Application clocks, if they were set. The driver does not report locked clocks."""
    application_memory_mhz: int | None
    most_sm_mhz: int | None
    most_memory_mhz: int | None


@cache
def handle(uuid: str) -> Any:
    """Return NVML's handle of a GPU by its UUID ("GPU-…"), or None if NVML does not know it."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(uuid)
    except pynvml.NVMLError:
        return None


def read_gpu_state(uuid: str, *, ours: Collection[int] = ()) -> GpuState | None:
    """Return a GPU's state, in about 4 ms; None if NVML does not know it.

    Args:
        uuid: the GPU's UUID as NVML spells it, "GPU-…".
        ours: ids of our own processes, which do not count as other processes. At least one of these processes must hold
            a context.
    """
    gpu = handle(uuid)
    if gpu is None:
        return None
    ask = partial(_ask, gpu)
    reasons, processes = ask("CurrentClocksEventReasons") or 0, ask("ComputeRunningProcesses")
    return GpuState(
        sm_mhz=ask("ClockInfo", pynvml.NVML_CLOCK_SM),
        memory_mhz=ask("ClockInfo", pynvml.NVML_CLOCK_MEM),
        power_w=_watts(ask("PowerUsage")),
        temperature_c=ask("Temperature", pynvml.NVML_TEMPERATURE_GPU),
        slowed_by=tuple(name for name, bit in SLOWED_BY.items() if reasons & bit),
        other_processes=None if processes is None else count_others([process.pid for process in processes], ours),
    )


def read_gpu_settings(uuid: str) -> GpuSettings | None:
    """Return the settings of a GPU; None if NVML does not know it."""
    gpu = handle(uuid)
    if gpu is None:
        return None
    kinds = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
    clocks = [_ask(gpu, what, kind) for what in ("ApplicationsClock", "MaxClockInfo") for kind in kinds]
    return GpuSettings(_watts(_ask(gpu, "EnforcedPowerLimit")), *clocks)


def count_others(seen: Collection[int], ours: Collection[int]) -> int | None:
    """Return the number of process ids that are not ours. None if no process of ours is among them, because the ids are
    then of another namespace."""
    others = sum(pid not in ours for pid in seen)
    return None if ours and others == len(seen) else others


def _ask(gpu: Any, what: str, *arguments: Any) -> Any:
    try:
        return getattr(pynvml, f"nvmlDeviceGet{what}")(gpu, *arguments)
    except pynvml.NVMLError:
        return None


def _watts(milliwatts: int | None) -> float | None:
    return None if milliwatts is None else round(milliwatts / 1000, 1)
