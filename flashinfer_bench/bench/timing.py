"""The time of a callable in this process, for debugging: NOTHING IS ISOLATED, so the timed code could forge it.

`flashinfer_bench.testing.bench_gpu_time` returns more: every sample, and how it was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from flashinfer_bench.testing.gpu_time import bench_gpu_time


def time_runnable(
    fn: Callable[..., Any],
    args: Sequence[Any],
    warmup: int = 10,
    iters: int = 50,
    device: torch.device | str | None = None,
) -> float:
    """Time `fn(*args)` as the engine does, with a cold L2 on a GPU, and return the median in milliseconds.

    Args:
        fn: the callable, for example a Runnable.
        args: its arguments.
        warmup: untimed calls before the timed calls.
        iters: timed calls.
        device: the current GPU during the calls; None for the GPU of the arguments.
    """
    where = None if device is None else torch.device(device)
    with torch.cuda.device(where) if where is not None and where.type == "cuda" else nullcontext():
        return bench_gpu_time(fn, tuple(args), num_iters=iters, dry_run_iters=warmup).median_ms
