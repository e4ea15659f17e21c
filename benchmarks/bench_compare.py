"""Time the comparison of one large output, against reading both tensors twice, and its extra memory on a GPU.

python benchmarks/bench_compare.py [--gigabytes 1] [--dtype bfloat16] [--ratio 1.0] [--device cpu]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from flashinfer_bench.bench.evaluators.compare import compare
from flashinfer_bench.bench.evaluators.comparison import Tolerance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--ratio", type=float, default=1.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    arguments = parser.parse_args()
    device, dtype = torch.device(arguments.device), getattr(torch, arguments.dtype)
    elements = int(arguments.gigabytes * 1e9) // dtype.itemsize
    expected = torch.ones(elements, dtype=dtype, device=device)
    got = expected.clone()
    tolerance = Tolerance(1e-2, 1e-2, arguments.ratio)
    took = time_calls(lambda: compare(expected, got, tolerance), device)
    reading = 2 * time_calls(lambda: (expected.view(torch.int64).sum(), got.view(torch.int64).sum()), device)
    print(f"{arguments.gigabytes:g} GB of {arguments.dtype} on {device}: {took * 1e3:.1f} ms")
    print(f"reading both twice: {reading * 1e3:.1f} ms; beyond that: {(took - reading) * 1e3:.1f} ms")
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compare(expected, got, tolerance)
        print(f"extra memory: {(torch.cuda.max_memory_allocated() - before) / 1e6:.0f} MB")


def time_calls(call: Callable[[], object], device: torch.device, repeats: int = 5) -> float:
    """Give the median wall time of a call, in seconds."""
    seconds = []
    for _ in range(repeats + 1):
        start = perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(perf_counter() - start)
    return median(seconds[1:])


if __name__ == "__main__":
    main()
