"""Timing one call from Python, as a benchmark script does: `bench_gpu_time`. Imported when it is first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flashinfer_bench.testing.gpu_time import bench_gpu_time
    from flashinfer_bench.testing.timed import GpuTime

__all__ = ["GpuTime", "bench_gpu_time"]

_HOME_OF: Final = {"GpuTime": "timed", "bench_gpu_time": "gpu_time"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
