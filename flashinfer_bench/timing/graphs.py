"""Captures a call once as a CUDA graph, and replays the graph for each sample.

A serving engine also replays graphs. In a replay, the gaps between operations do not depend on how fast a process
launches.

* Once a process has made four captures, the driver starts each operation of every replay later. Serving processes have
  made dozens of captures, so a process that measures makes some captures first (`capture_first`).
* All captures use one stream that is made here. torch hands out 32 streams in rotation, so a stream of torch's could
  also be a solution's side stream. A capture would then run two branches one after the other.
* Kernels launched as `kernel<<<blocks, threads>>>` go to the legacy default stream. No graph can contain work of this
  stream. The capture stream waits for it, so the driver refuses such a launch, and the call is timed without a graph.
  In a capture on another stream, the driver refuses no launch. Then `see_operations` finds that the graph lacks
  operations.
* Each graph has its own memory pool, which `torch.cuda.empty_cache` frees once the graph is deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

import torch

from flashinfer_bench.timing import driver

CAPTURES_FIRST: Final = 8
"""Number of captures before a process measures. Operations start later after four captures. With eight, they rarely
start earlier again."""


class CaptureRefused(Exception):
    """A call cannot be captured as a CUDA graph. The text has the reason."""


def capture(launch: Callable[[], object]) -> Callable[[], object]:
    """Return a function that replays the call's launches on the current device.

    Raises:
        CaptureRefused: the call waits for the GPU, launches on the legacy default stream, or does something else that a
            graph cannot hold.
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
    except Exception as error:  # the call may raise any error; it can still be timed without a graph
        torch.cuda.synchronize()
        _free_generator()
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaptureRefused(f"the call cannot be captured: {said[:200]}") from None
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], object] = graph.replay
    return replay


def see_operations(least: int) -> None:
    """Check that the capture on the current stream has at least `least` operations so far, if the driver reports the
    number.

    Raises:
        CaptureRefused: the capture has fewer operations.
    """
    count = driver.count_captured(torch.cuda.current_stream().cuda_stream)
    if count is not None and count < least:
        raise CaptureRefused(f"it launches {least} operations, and a graph of it holds {count}")


def _free_generator() -> None:
    """Make the current device's random generator usable again. Without this, torch treats a failed capture as still
    under way."""
    with suppress(AttributeError, IndexError, RuntimeError):  # torch may be too old, or have no CUDA
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


@cache
def capture_first(device: torch.device) -> None:
    """Make CAPTURES_FIRST captures, once for each GPU, since they change how later replays run. Call it before code
    that may capture."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device), suppress(CaptureRefused):
        small = torch.zeros(1, device=device)
        for _ in range(CAPTURES_FIRST):
            capture(small.zero_)


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return this process's stream for captures on a device."""
    torch.cuda.current_stream(device)  # makes the context
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(driver.make_stream(), device)  # type: ignore[no-untyped-call]
    return stream
