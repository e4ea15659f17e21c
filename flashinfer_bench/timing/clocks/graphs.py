"""A call as a CUDA graph: captured once, replayed for each reading.

The replay runs the call's operations as serving engines run them. Their gaps do not depend on how the launches of a
process reach the GPU: on an H200 the span of nine short kernels differs between processes by 5 % when they are launched
on a stream, and by 1 % when a graph is replayed. Branches on several streams stay parallel.

From the fourth capture in a process on, the driver starts each operation of every replay 0.35 us later (H200, driver
580.159). This holds for all graphs, older ones too, and also when the captured graphs are gone. It does not depend on
the stream, the pool or the clock. A process with fewer than a dozen captures sometimes goes back for a while. A process
that serves has made dozens of captures. So a process that measures makes some captures first; then the time of a call
does not depend on what was captured before it.

All captures use one stream, of our own. torch has 32 streams and gives them in turn: if a capture got the stream that
a solution uses as its side stream, the two branches would run one after the other. torch also keeps a cuBLAS workspace
for each stream that was ever used.

Many kernels are launched without a stream, `kernel<<<blocks, threads>>>`, so on the legacy default stream. That is
right, since torch's current stream is this one, and no graph can hold it. Streams of torch's are captured beside it as
if nothing had been launched, and the replay does nothing. Our stream waits for the default one, so there the driver
refuses such a launch, and the call is timed as it is launched. On other streams that nobody told of the capture the
driver refuses none; `see_operations` finds that the graph lacks them.

Each graph has a memory pool of its own. torch keeps the pool when the graph is gone, and gives it to no other graph.
`torch.cuda.empty_cache` after a trial frees it. A graph of hundreds of calls may have a `GraphMemory` instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from typing import Any, Final

import torch

from flashinfer_bench.timing import driver
from flashinfer_bench.timing.clocks.clock import CaptureRefused, Launch

CAPTURES_FIRST: Final = 8
"""Captures that a process makes before it measures. Four bring the later start; after eight it seldom goes back."""


class GraphMemory:
    """Memory of graphs on the current device that live one after the other: each takes that of the one before.

    512 calls with results of 1 MB took 24 ms to be captured in memory of their own, and 14 to give it back; in that of
    the graph before 5 and 1 (H100). The driver takes as long for memory as for all else. It is held while this lives.
    """

    def __init__(self) -> None:
        self._held: tuple[torch.cuda.CUDAGraph, torch.Tensor] | None = None
        self.nbytes = 0
        """About what graphs have taken that were captured in it."""

    def give_up(self) -> None:
        """Hold no memory: what graphs that live have taken stays theirs, and the next graph begins anew."""
        self._held, self.nbytes = None, 0

    @contextmanager
    def taken(self) -> Iterator[Any]:
        """Give what torch names it by to a graph that is captured meanwhile."""
        handle, before = self._handle(), torch.cuda.memory_reserved()
        try:
            yield handle
        finally:
            self.nbytes += max(0, torch.cuda.memory_reserved() - before)

    def _handle(self) -> Any:
        """Return what torch names it by. The first time a graph of next to nothing is captured, which holds it."""
        if self._held is None:
            holder = torch.cuda.CUDAGraph()
            holder.capture_begin()
            try:
                least = torch.zeros(1, device="cuda")
            finally:
                holder.capture_end()
            self._held = holder, least
        return self._held[0].pool()


def capture(launch: Launch, memory: GraphMemory | None = None) -> Launch:
    """Return a function that replays what the call launches on the current device.

    Args:
        launch: makes the call.
        memory: what the graph's results lie in, in place of memory of its own. No other graph in it is replayed again.

    Raises:
        CaptureRefused: the call cannot be captured: it waits for the GPU, launches on the legacy default stream, or
            does something else that a graph cannot hold.
    """
    graph = torch.cuda.CUDAGraph()
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream), nullcontext() if memory is None else memory.taken() as handle:
            graph.capture_begin(handle)
            try:
                launch()
            finally:
                graph.capture_end()
    except Exception as error:  # the call may raise anything; it can still be timed without a graph
        torch.cuda.synchronize()
        _free_generator()
        if memory is not None:
            memory.give_up()  # torch may take it for memory of a capture that goes on
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CaptureRefused(f"the call cannot be captured: {said[:200]}") from None
    torch.cuda.current_stream().wait_stream(stream)
    replay: Callable[[], object] = graph.replay
    return replay


def see_operations(least: int) -> None:
    """See that what is captured on the current stream has so many operations so far; it may be that nobody can tell.

    Raises:
        CaptureRefused: it has fewer.
    """
    count = driver.count_captured(torch.cuda.current_stream().cuda_stream)
    if count is not None and count < least:
        raise CaptureRefused(f"it launches {least} operations, and a graph of it holds {count}")


def _free_generator() -> None:
    """Let the current device's generator draw again: torch takes a capture that failed for one that goes on."""
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
    """Return the stream for captures on a device of this process; it is the current one."""
    torch.cuda.current_stream(device)  # the context is there
    stream: torch.cuda.Stream = torch.cuda.ExternalStream(driver.make_stream(), device)  # type: ignore[no-untyped-call]
    return stream
