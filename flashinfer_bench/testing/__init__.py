"""Times one call from Python, as a benchmark script does: `bench_gpu_time`. Imported at its first use.

The package measures nothing itself: `timing.procedure` takes samples, and `timing.summary` summarises them. It isolates
nothing, and judges nothing.

* `gpu_time` reads the request, and warns of each deviation from it.
* `device` selects the device and its clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.testing.gpu_time import GpuTime, bench_gpu_time

__all__ = ["GpuTime", "bench_gpu_time"]

__getattr__, __dir__ = lazy_names(__name__, __all__, {"gpu_time": __all__})
