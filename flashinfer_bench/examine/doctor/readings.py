"""The readings of one device, and the process that takes them (`probe.py`).

So the doctor's own process makes no CUDA context and imports no torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from flashinfer_bench.base.exits import describe_exit
from flashinfer_bench.base.isolated import IsolatedFailure, run_isolated
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import session_environment
from flashinfer_bench.timing.nvml import GpuState

PROBE: Final = "flashinfer_bench.examine.doctor.probe"
LIMIT_S: Final = 300.0
"""Seconds after which the process is ended, and has measured nothing."""


@dataclass(frozen=True)
class CacheCheck:
    """A kernel that only reads, on data that fits the L2; in 10^12 bytes a second."""

    data_bytes: int
    warm_tb_per_sec: float
    """The data was read just before."""
    cold_tb_per_sec: float
    """The L2 was flushed just before."""
    memory_tb_per_sec: float
    """The same kernel on data that is many times the L2."""


@dataclass(frozen=True)
class Rates:
    """What a GPU reaches on random data."""

    copy_tb_per_sec: float
    """A copy within its memory, bytes read and written, in 10^12 bytes a second."""
    matmul_tflops: float
    """A square bfloat16 matmul, in 10^12 operations a second."""


@dataclass(frozen=True)
class Readings:
    """What was measured on one device."""

    method: str
    """The clock that calls are timed by here: "cupti", "cuda_events" or "wall"."""
    fallback: str = ""
    """Why no better clock is used; empty where it is the best one."""
    cuda: str | None = None
    """The CUDA version that torch was built for."""
    l2_bytes: int = 0
    processors: int = 0
    """Streaming multiprocessors."""
    launch_gap_ns: int = 0
    """Time that one more launch costs in a full queue; 0 where the clock cannot tell."""
    empty_pair_ns: int = 0
    """What a pair of CUDA events with nothing between them reads."""
    empty_call_ns: int = 0
    """What the wall clock reads of a call that does nothing. Only a CPU has it."""
    cache: CacheCheck | None = None
    rates: Rates | None = None
    under_load: GpuState | None = None
    """The GPU amid a burst of matmuls."""


class ProbeFailed(Exception):
    """The device could not be measured; the reason is its text."""


def run_probe(device: Device, *, limit_s: float = LIMIT_S) -> Readings:
    """Measure a device, the only one that the process sees.

    Raises:
        ProbeFailed: it could not measure. The text has the last line that it wrote.
    """
    environment = session_environment(os.environ, device, interpret_triton=False)
    try:
        found = run_isolated(PROBE, device.kind, limit_s=limit_s, environment=environment)
    except IsolatedFailure as failure:
        if failure.code is None:
            raise ProbeFailed(f"measuring took more than {limit_s:g} s") from None
        said = failure.log.rpartition("\n")[2] or "it said nothing"
        raise ProbeFailed(f"the process that measures {describe_exit(failure.code)}: {said}") from None
    return TypeAdapter(Readings).validate_python(found)
