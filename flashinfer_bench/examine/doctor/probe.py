"""Measures the clock and the launch overhead of the one device of this process (`examination.py` starts it)."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any, Final

import torch

from flashinfer_bench.examine.doctor.machine import Readings
from flashinfer_bench.testing.gpu_time import bench_gpu_time
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

ITERATIONS: Final = 30
"""Timed calls of each measurement."""
L2_SHARE: Final = 4
"""The kernel that shows the flush reads the L2's size divided by this number, so its data stay in a warm L2."""


def answer(kind: str) -> dict[str, Any]:
    """Measure the one visible device (`base/isolated.py` calls this)."""
    warnings.simplefilter("ignore")  # the readings report fall-backs
    if kind == "cpu":
        timed = bench_gpu_time(lambda: None, num_iters=ITERATIONS)
        return asdict(Readings(timed.method, empty_ns=round(timed.median_ms * 1e6)))
    device = torch.device("cuda", 0)
    small = torch.ones(4096, device=device)  # if CUDA does not work, this fails with CUDA's own message
    record = bench_gpu_time(torch.add, args=(small, 1), num_iters=ITERATIONS).measurement
    l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
    held = torch.ones(max(1, l2_bytes // L2_SHARE // 4), device=device)
    cold, warm = (bench_gpu_time(held.sum, num_iters=ITERATIONS, cold_l2_cache=is_cold) for is_cold in (True, False))
    fallback = str(record.get("fallback", ""))
    found = Readings(
        method=str(record["method"]),
        fallback="" if fallback == EVENTS_ASKED_FOR else fallback,
        cuda=torch.version.cuda,
        launch_gap_ns=int(record.get("launch_gap_ns", 0)),
        empty_ns=int(record.get("empty_pair_ns", 0)),
        cold_ns=round(cold.median_ms * 1e6),
        warm_ns=round(warm.median_ms * 1e6),
    )
    return asdict(found)
