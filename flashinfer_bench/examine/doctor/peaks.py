"""Measures the peak rates of the one GPU of this process (`examination.py` starts it).

The calls are large copies, triads and matrix products, timed as solutions are. Each rate is the median over several
rounds, at the size with the highest median. A round measures all rates, so drifts of the clocks affect all of them
alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any, Final

import torch

from flashinfer_bench.roofline.cost import TERA
from flashinfer_bench.testing.gpu_time import bench_gpu_time

ROUNDS: Final = 3
WARM_UP_MS, TIMED_MS = 50, 100
"""Milliseconds of untimed calls, then of timed calls, for one rate in a round."""
MOST_NUMBERS: Final = 1 << 28
"""Largest number of elements of a vector, 1 GiB in float32. It exceeds every L2."""
FREE_BYTES: Final = 32
"""A vector has at most one element for this many bytes of free memory."""
SIZES: Final = (4096, 8192)
"""Numbers of rows of the square matrices."""
PRODUCTS: Final = {
    "fp32": (torch.float32, "highest"),
    "tf32": (torch.float32, "high"),
    "fp16": (torch.bfloat16, "high"),
    "fp8": (torch.float8_e4m3fn, "high"),
}
"""Unit → dtype of the factors, and torch's precision of products in float32."""


def answer(_kind: str) -> dict[str, Any]:
    """Measure the one visible device (`base/isolated.py` calls this)."""
    warnings.simplefilter("ignore")
    count = min(MOST_NUMBERS, torch.cuda.mem_get_info()[0] // FREE_BYTES)
    rates, gpu, best = dict[tuple[str, float], list[float]](), dict[str, Any](), dict[str, float]()
    for _ in range(ROUNDS):
        for name, amount, call in list_calls(torch.device("cuda", 0), count):
            with suppress(RuntimeError):  # the device cannot multiply this dtype
                timed = bench_gpu_time(call, dry_run_time_ms=WARM_UP_MS, repeat_time_ms=TIMED_MS)
                rates.setdefault((name, amount), []).append(amount / TERA / timed.median_ms * 1e3)
                gpu[name] = timed.measurement.get("gpu")
    for (name, _), found in rates.items():
        best[name] = max(best.get(name, 0.0), median(found))
    return {"tb_per_sec": {name: best.pop(name) for name in ("copy", "triad")}, "tflops": best, "gpu": gpu}


def list_calls(device: torch.device, count: int) -> Iterator[tuple[str, float, Callable[[], object]]]:
    """Yield the calls of one round: name of the rate, bytes or operations, and the call.

    Args:
        device: the device of the tensors.
        count: number of elements of a vector.
    """
    a, b, c = (torch.ones(count, device=device) for _ in range(3))
    yield "copy", 2 * a.nbytes, partial(a.copy_, b)
    yield "triad", 3 * a.nbytes, partial(torch.add, b, c, alpha=2, out=a)
    one = torch.ones((), device=device)
    for unit, (dtype, precision) in PRODUCTS.items():
        torch.set_float32_matmul_precision(precision)
        for size in SIZES:
            x, y = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
            of_fp8 = partial(torch._scaled_mm, x, y.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
            yield unit, 2.0 * size**3, of_fp8 if unit == "fp8" else partial(torch.mm, x, y)
