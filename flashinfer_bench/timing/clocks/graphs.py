"""A call as a CUDA graph: captured once, replayed for each reading.

The replay runs the call's operations as serving engines run them, and their gaps do not depend on how a process's
launches happen to reach the GPU (measured on an H200: the span of nine short kernels differs by 5 % between processes
when they are launched on a stream, by 1 % when a graph is replayed). Branches on several streams stay parallel.

From the fourth capture in a process on, the driver starts each operation of every replay 0.35 us later (H200, 580.159),
also of the graphs before, also when they are gone, whatever stream or pool they were captured with, by CUPTI and by
events alike; now and then a process with fewer than a dozen goes back for a while. A process that serves has captured
dozens; so one that measures makes some captures first, and a call takes the same whatever was captured before it.

Each graph has a memory pool of its own, which torch keeps when the graph is gone, and gives to no other graph:
`torch.cuda.empty_cache` after a trial gives it back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

import torch

from flashinfer_bench.timing.clocks.clock import CaptureRefused, Launch

CAPTURES_FIRST: Final = 8
"""Captures in a process until one more changes nothing."""


def capture(launch: Launch) -> Launch:
    """Return a function that replays what the call launches on the current device.

    Raises:
        CaptureRefused: the call cannot be captured: it waits for the GPU, or does something else that a graph cannot
            hold.
    """
    _capture_first(torch.cuda.current_device())
    try:
        return _captured(launch)
    except Exception as error:  # whatever the call raises while it is captured: it can still be timed without a graph
        torch.cuda.synchronize()
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaptureRefused(f"the call cannot be captured: {said[:200]}") from None


@cache
def _capture_first(device: int) -> list[Launch]:
    """Make the captures that change how later ones are replayed; return their replays."""
    small = torch.zeros(1, device=device)
    return [_captured(small.zero_) for _ in range(CAPTURES_FIRST)]


def _captured(launch: Launch) -> Launch:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            launch()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], object] = graph.replay
    return replay
