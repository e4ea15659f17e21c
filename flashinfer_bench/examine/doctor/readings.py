"""What the probe measured: values that cross from its process to ours as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from flashinfer_bench.timing.nvml import GpuState


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

    def to_json(self) -> str:
        """Return the readings as one line."""
        return json.dumps(asdict(self))


def readings_from_json(text: str) -> Readings:
    """Return the readings that `Readings.to_json` wrote.

    Raises:
        ValueError, TypeError, KeyError: the text is something else.
    """
    fields = json.loads(text)
    cache, rates, load = (fields[name] for name in ("cache", "rates", "under_load"))
    parts = {
        "cache": CacheCheck(**cache) if cache else None,
        "rates": Rates(**rates) if rates else None,
        "under_load": GpuState(**{**load, "slowed_by": tuple(load["slowed_by"])}) if load else None,
    }
    return Readings(**{**fields, **parts})
