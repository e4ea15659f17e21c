"""A call as a CUDA graph: captured once, replayed for each reading.

The replay runs the call's operations as serving engines run them, and their gaps do not depend on how a process's
launches happen to reach the GPU (measured on an H200: the span of nine short kernels differs by 5 % between processes
when they are launched on a stream, by 1 % when a graph is replayed). Branches on several streams stay parallel.

All captures use one stream: where each had one of its own, from the fourth on each operation of a replay started
0.35 us later, for as long as the process lived, so that a call was the slower the more had been captured before. That
it is the streams' doing is a conclusion; that one stream mends it is still to be measured.

Each graph has a memory pool of its own, which torch keeps when the graph is gone, and gives to no other graph:
`torch.cuda.empty_cache` after a trial gives it back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch

from flashinfer_bench.timing.clocks.clock import CaptureRefused, Launch


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
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream for captures on a device of this process."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream
