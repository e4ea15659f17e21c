"""One call, timed from Python as a benchmark script does it: `bench_gpu_time`. Imported when it is first asked for.

The package measures nothing itself: samples are taken by `timing.procedure`, and summarised by `timing.summary`.
It isolates nothing, and judges nothing.

* `gpu_time` decides what was asked for, and which warnings say what was done otherwise.
* `device` decides where a call is timed, and by which clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.testing.gpu_time import GpuTime, bench_gpu_time

__all__ = ["GpuTime", "bench_gpu_time"]

__getattr__, __dir__ = lazy_names(__name__, __all__, {"gpu_time": __all__})
