"""Measures the one device that this process sees: clock, launch gap and flush (`visit.py` asks)."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.examine.doctor.machine import Readings
from flashinfer_bench.testing.device import timing_device
from flashinfer_bench.testing.gpu_time import bench_gpu_time
from flashinfer_bench.timing import driver, flush
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR

ITERATIONS: Final = 30
"""Timed calls of each measurement."""
LARGEST_BYTES: Final = 1 << 30
MEMORY_SHARE: Final = 8
"""A buffer takes at most LARGEST_BYTES, and at most the free memory divided by MEMORY_SHARE."""
L2_SHARE: Final = 3
"""The data that has to fit the L2 is the L2's size divided by this: it fits also if two halves hold the same lines."""
READER: Final = "flashinfer_bench_reader"
"""Name of the flush's kernel as the call that is timed."""


def answer(kind: str) -> dict[str, Any]:
    """Measure the device that this process sees (`base/isolated.py`)."""
    warnings.simplefilter("ignore")  # what they say of fall-backs stands in the readings
    if kind == "cuda":
        return asdict(probe_gpu())
    timed = bench_gpu_time(lambda: None, num_iters=ITERATIONS)
    return asdict(Readings(timed.method, empty_ns=round(timed.median_ms * 1e6)))


def probe_gpu() -> Readings:
    """Measure the GPU that this process sees."""
    device = torch.device("cuda", 0)
    small = torch.ones(4096, device=device)  # fails here, with CUDA's own words, where CUDA does not work
    timed_on = timing_device(device, "auto")
    record = bench_gpu_time(torch.add, args=(small, 1), num_iters=ITERATIONS).measurement
    fallback = str(record.get("fallback", ""))
    free, _ = torch.cuda.mem_get_info(device)
    size = min(LARGEST_BYTES, free // MEMORY_SHARE) // 4096 * 4096
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    return Readings(
        method=str(record["method"]),
        fallback="" if fallback == EVENTS_ASKED_FOR else fallback,
        cuda=torch.version.cuda,
        launch_gap_ns=timed_on.launch_gap_ns,
        empty_ns=int(record.get("empty_pair_ns", 0)),
        **check_cache(source, timed_on.l2_bytes),
    )


def check_cache(source: torch.Tensor, l2_bytes: int) -> dict[str, float]:
    """Return the rates of reads of data that fits the L2, warm and flushed, and of data that does not.

    Nothing is measured where there is too little memory for that.
    """
    if source.nbytes < 2 * l2_bytes:
        return {}
    data = source[: l2_bytes // L2_SHARE // 4096 * 4096].clone()

    def rate(tensor: torch.Tensor, *, cold: bool) -> float:
        read_ms, _ = bench_gpu_time(make_reader(tensor), num_iters=ITERATIONS, cold_l2_cache=cold)
        return tensor.nbytes / read_ms / 1e9

    warm, flushed, far = rate(data, cold=False), rate(data, cold=True), rate(source, cold=True)
    return {"warm_tb_per_sec": warm, "cold_tb_per_sec": flushed, "memory_tb_per_sec": far}


def make_reader(data: torch.Tensor) -> Callable[[], None]:
    """Return a call that reads a tensor and writes nothing: the flush's kernel under a name that is timed."""
    text = Path(flush.__file__).with_name("gpu_kernels.ptx").read_bytes()
    module = driver.Module(text.replace(flush.FLUSH_KERNEL.encode(), READER.encode()))
    blocks = int(torch.cuda.get_device_properties(data.device).multi_processor_count) * flush.BLOCKS_PER_PROCESSOR
    launch = driver.Launcher(module.kernel(READER), blocks=blocks, threads=flush.FLUSH_THREADS, arguments=2)
    return lambda: launch(torch.cuda.current_stream().cuda_stream, data.data_ptr(), data.nbytes)
