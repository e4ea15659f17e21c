"""A call as a CUDA graph: captured once, replayed for each reading.

The replay runs the call's operations as serving engines run them, and their gaps do not depend on how a process's
launches happen to reach the GPU (measured on an H200: the span of nine short kernels differs by 5 % between processes
when they are launched on a stream, by 1 % when a graph is replayed). Branches on several streams stay parallel.

From the fourth capture in a process on, the driver starts each operation of every replay 0.35 us later (H200, 580.159),
also of the graphs before, also when they are gone, whatever stream or pool they were captured with, by CUPTI and by
events alike; now and then a process with fewer than a dozen goes back for a while. A process that serves has captured
dozens; so one that measures makes some captures first, and a call takes the same whatever was captured before it.

All captures use one stream: torch has 32 to give, in turn, and a solution's own side stream among them would have its
branch run behind the others; and torch keeps a workspace of cuBLAS for each stream that has ever been used.

Each graph has a memory pool of its own, which torch keeps when the graph is gone, and gives to no other graph:
`torch.cuda.empty_cache` after a trial gives it back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

import torch

from flashinfer_bench.timing.clocks.clock import CaptureRefused, Launch

CAPTURES_FIRST: Final = 8
"""Four make the difference; a process with more of them seldom goes back."""


def capture(launch: Launch) -> Launch:
    """Return a function that replays what the call launches on the current device.

    Raises:
        CaptureRefused: the call cannot be captured: it waits for the GPU, or does something else that a graph cannot
            hold.
    """
    graph = torch.cuda.CUDAGraph()
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                launch()
            finally:
                graph.capture_end()
    except Exception as error:  # whatever the call raises while it is captured: it can still be timed without a graph
        torch.cuda.synchronize()
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaptureRefused(f"the call cannot be captured: {said[:200]}") from None
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], object] = graph.replay
    return replay


@cache
def capture_first(device: torch.device) -> None:
    """Make the captures that change how later replays run, once for a GPU; before code runs that may make its own."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device), suppress(CaptureRefused):
        small = torch.zeros(1, device=device)
        for _ in range(CAPTURES_FIRST):
            capture(small.zero_)


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream for captures on a device of this process."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch's own lack
    return stream
