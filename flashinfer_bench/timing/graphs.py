"""A call as a CUDA graph: captured once, replayed for each sample.

A replay runs the call's operations like a serving engine: gaps do not depend on how a process feeds the GPU.

* From the fourth capture in a process on, the driver starts each operation of every replay later. Serving processes
  have made dozens of captures, so a process that measures makes some first (`capture_first`).
* All captures use one stream of our own. torch gives 32 streams in rotation: a capture on a solution's side stream
  would run two branches one after the other.
* Kernels launched as `kernel<<<blocks, threads>>>` go to the legacy default stream, which no graph can hold. Our stream
  waits for that stream, so the driver refuses such a launch, and the call is timed without a graph. On other streams
  the driver refuses nothing; `see_operations` finds that the graph lacks them.
* Each graph has a memory pool of its own, which `torch.cuda.empty_cache` frees once the graph is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Final

import torch

from flashinfer_bench.timing import driver

CAPTURES_FIRST: Final = 8
"""Captures before a process measures. Four already delay the start; after eight it seldom returns."""


class CaptureRefused(Exception):
    """A call cannot be captured as a CUDA graph; the reason is its text."""


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
    """Check that the capture on the current stream has this many operations so far, if the driver reports it.

    Raises:
        CaptureRefused: it has fewer.
    """
    count = driver.count_captured(torch.cuda.current_stream().cuda_stream)
    if count is not None and count < least:
        raise CaptureRefused(f"it launches {least} operations, and a graph of it holds {count}")


def _free_generator() -> None:
    """Let the current device's generator draw again: torch takes a failed capture for one under way."""
    with suppress(AttributeError, IndexError, RuntimeError):  # an older torch has no such calls; one without CUDA, none
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
        generator.graphsafe_set_state(generator.clone_state())


@cache
def capture_first(device: torch.device) -> None:
    """Make the captures that change how later replays run, once for a GPU. Call it before code that may capture."""
    if device.type != "cuda":
        return
    with torch.cuda.device(device), suppress(CaptureRefused):
        small = torch.zeros(1, device=device)
        for _ in range(CAPTURES_FIRST):
            capture(small.zero_)


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """Return the stream for captures on a device of this process; it becomes the current stream."""
    torch.cuda.current_stream(device)  # the context is there
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(driver.make_stream(), device)  # type: ignore[no-untyped-call]
    return stream
