"""Timing one call from Python, as a benchmark script does: `bench_gpu_time`. Imported when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.testing.gpu_time import bench_gpu_time
    from flashinfer_bench.testing.timed import GpuTime

__all__ = ["GpuTime", "bench_gpu_time"]

__getattr__, __dir__ = lazy_names(__name__, __all__, {"timed": ["GpuTime"], "gpu_time": ["bench_gpu_time"]})
