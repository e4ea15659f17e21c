"""The clocks, and the choice of a clock: CUPTI on a GPU, else CUDA events; the wall clock on a CPU.

A clock takes samples within a `with clock:` block. Only the call lies between the start and the end of a sample. If a
launch has a true `puts_away`, its `put_away()` moves the call's result into the outputs after the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from statistics import median
from time import perf_counter_ns
from typing import Any, Final

import torch

from flashinfer_bench.timing.cupti import CuptiRecorder, RecordsLost, import_cupti
from flashinfer_bench.timing.flush import CHAIN, GpuQueue, Preamble
from flashinfer_bench.timing.graphs import CaptureRefused, capture, capture_first, see_operations
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, WALL, Metadata, Sample
from flashinfer_bench.timing.settings import ClockChoice, L2Cache
from flashinfer_bench.timing.timeline import HostCall, TimelineBroken, read_samples

__all__ = [
    "CaptureRefused",
    "Clock",
    "ClockLost",
    "CudaEventClock",
    "CuptiClock",
    "Launch",
    "Preamble",
    "WallClock",
    "capture",
    "capture_first",
    "import_cupti",
    "make_clock",
    "see_operations",
    "shared_recorder",
]

EMPTY_PAIRS: Final = 10
"""Number of event pairs with nothing between them. The median of their times is reported."""
EMPTY_PAIR: Final = Preamble(delay_ns=40_000)
ASIDE_NS: Final = 50_000
"""If the device is busy for longer than this after a call's second event, the call has left work on other streams."""
CALLS_IN_FLIGHT: Final = 64
OPERATIONS_IN_FLIGHT: Final = 512
"""Maximum calls, and approximate maximum of operations, that the host enqueues before it waits for the GPU. In a full
queue, the host would wait inside a call, and the call's host time would be wrong."""
EMPTY_LAUNCHES: Final = 12
"""Number of samples of an empty kernel, or of a kernel that moves one word."""
EMPTY_LAUNCH: Final = Preamble(delay_ns=15_000)
EMPTY_CHAIN: Final = Preamble(delay_ns=200_000, flushes=False)

Launch = Callable[[], object]


class ClockLost(Exception):
    """The clock cannot take the requested samples. The text has the reason."""


class Clock:
    """The interface of a clock. The defaults fit a clock that sees only whole calls, and has no fall-back."""

    method: str
    """"cupti", "cuda_events" or "wall"."""
    cache_state: str
    """"cold" or "warm"."""
    fills_queue: bool = False
    """Whether a call is enqueued behind a delay kernel, so that its operations run back to back."""
    sees_operations: bool = False
    """Whether samples have the single operations of a call."""
    fresh_graphs: int | None = None
    """Number of graphs that replays rotate through. 0: every graph has been replayed before. None: each distinct call
    is captured at its first use."""

    def __enter__(self) -> Clock:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Switch the clock off, even after an error."""

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Call each launch once, in order, behind its preamble; return a sample of each call.

        Raises:
            ClockLost: samples were lost.
        """
        raise NotImplementedError

    def replays(self, source: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a source that replays the launches of `source`. Each distinct launch is captured once.

        The returned source raises CaptureRefused if a call cannot be captured.
        """
        return source

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock to use instead, or None if there is no other clock. The metadata of the new clock has the
        reason."""
        del reason
        return None

    def launch_gap_ns(self) -> int:
        """Return the launch overhead: the cost of one more launch in a full queue; 0 if GPU times include it."""
        return 0

    def chain_gap_ns(self) -> int:
        """Return the time per kernel in a chain of dependent empty kernels, in this context; 0 if unknown."""
        return 0

    def least_span_ns(self) -> int:
        """Return the GPU time of a call that moves one word, which no right call can beat; 0 if unknown."""
        return 0

    def metadata(self) -> Metadata:
        """Return the metadata that the clock adds to a trial."""
        return {}


def _put_away(launch: Any) -> bool:
    """Have a launch move its call's result into the outputs; return whether the move counts as part of the call."""
    return bool(getattr(launch, "puts_away", False) and launch.put_away())


class WallClock(Clock):
    """The wall clock, for a CPU. A sample is the time from a call to its return. The caches are as earlier calls left
    them.

    If a result and its output differ in memory layout, for example a transposed view, the copy into the output counts,
    too.
    """

    method = WALL
    cache_state = "warm"

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Time each call. A CPU has no queue to fill."""
        del preambles
        samples = []
        for launch in launches:
            start = perf_counter_ns()
            launch()
            taken = perf_counter_ns() - start
            if _put_away(launch):
                taken = perf_counter_ns() - start
            samples.append(Sample(span_ns=taken, enqueue_ns=taken))
        return samples


class CudaEventClock(Clock):
    """CUDA events around each call on the current stream: the fall-back if CUPTI cannot be used.

    A pair of events with nothing between them has a constant time, which is reported and not subtracted. Events do not
    cover work on streams that the current stream does not wait for. A call with such work leaves the device busy, and
    is timed until the device is idle.

    Args:
        queue: the GPU's queue.
        reason: why no better clock is used.
    """

    method = "cuda_events"
    fills_queue = True
    make_event: Callable[[], Any] = staticmethod(partial(torch.cuda.Event, enable_timing=True))

    def __init__(self, queue: GpuQueue, reason: str = "") -> None:
        self.cache_state = queue.l2_cache
        self._queue = queue
        self._reason = reason
        self._empty_ns: int | None = None

    def __enter__(self) -> Clock:
        if self._empty_ns is None:
            pairs = self.sample([lambda: None] * EMPTY_PAIRS, [EMPTY_PAIR] * EMPTY_PAIRS)
            self._empty_ns = int(median(sample.span_ns for sample in pairs))
        return self

    def __exit__(self, *raised: Any) -> None:
        """Wait until the device is idle, unless an error is raised already."""
        if raised[1] is None:
            self._queue.synchronize()

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Time each call between two events. Calls are not enqueued ahead, since a flush behind a call would delay its
        end event."""
        samples = []
        for launch, preamble in zip(launches, preambles, strict=True):
            start, end = self.make_event(), self.make_event()
            self._queue.enqueue(preamble)
            start.record()
            begin_ns = perf_counter_ns()
            launch()
            enqueue_ns = perf_counter_ns() - begin_ns
            if preamble.drains:
                self._queue.synchronize()
            end.record()
            late = start.query() and not preamble.drains
            end.synchronize()
            begin_ns = perf_counter_ns()
            self._queue.synchronize()
            escaped = perf_counter_ns() - begin_ns > ASIDE_NS
            samples.append(Sample(int(start.elapsed_time(end) * 1e6), enqueue_ns, late=late, escaped=escaped))
            _put_away(launch)
        return samples

    def metadata(self) -> Metadata:
        """Return the time of an empty pair of events, and why this clock is used."""
        return {"empty_pair_ns": self._empty_ns or 0} | ({"fallback": self._reason} if self._reason else {})


@dataclass(frozen=True)
class Replay:
    """The replay of one CUDA graph; torch's fills before the graph are no part of the call."""

    replay: Launch
    is_replay: bool = True

    def __call__(self) -> None:
        """Replay the graph."""
        self.replay()


class CuptiClock(Clock):
    """Samples from CUPTI's records: the GPU's own times of every kernel, copy and fill, from any stream or thread.

    Args:
        queue: the GPU's queue.
        recorder: reads CUPTI's records.
    """

    method = "cupti"
    fills_queue = True
    sees_operations = True
    capture: Callable[[Launch], Launch] = staticmethod(capture)
    release: Callable[[], object] = staticmethod(torch.cuda.empty_cache)

    def __init__(self, queue: GpuQueue, recorder: CuptiRecorder) -> None:
        self.cache_state = queue.l2_cache
        self._queue = queue
        self._recorder = recorder
        self._replays: dict[Launch, Launch] = {}
        self._per_call = 1
        """Largest number of operations in one of the latest calls."""

    def __enter__(self) -> Clock:
        self._queue.synchronize()  # or CUPTI would record earlier work, too
        try:
            self._recorder.start()
        except RecordsLost as lost:
            raise ClockLost(str(lost)) from None
        return self

    def __exit__(self, *raised: Any) -> None:
        """Switch CUPTI off, and free the memory of the trial's graphs."""
        self._recorder.stop()
        has_captured = bool(self._replays)
        self._replays.clear()
        if has_captured and raised[1] is None:
            with suppress(RuntimeError):  # the samples are valid, and a broken device raises again later
                self.release()

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Time each call by the records of its launches."""
        samples: list[Sample] = []
        while len(samples) < len(launches):
            room = max(1, min(CALLS_IN_FLIGHT, OPERATIONS_IN_FLIGHT // (self._per_call + 2)))
            some = slice(len(samples), len(samples) + room)
            taken = self._sample_together(launches[some], preambles[some])
            self._per_call = max(1, *(sample.operations or 0 for sample in taken))
            samples += taken
        return samples

    def _sample_together(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        calls: list[HostCall] = []
        now = self._recorder.now
        for launch, preamble in zip(launches, preambles, strict=True):
            self._queue.enqueue(preamble)
            begin_ns = now()
            launch()
            end_ns, puts_away = now(), bool(getattr(launch, "puts_away", False))
            calls.append(HostCall(begin_ns, end_ns, puts_away, bool(getattr(launch, "is_replay", False))))
            if puts_away:
                self._queue.launch_empty()  # the mark: later work is no part of the call
                _put_away(launch)
        self._queue.synchronize()
        flushes = self._queue.l2_cache == "cold" and preambles[0].flushes
        try:
            samples = read_samples(self._recorder.take(), calls, flushes=flushes)
        except (RecordsLost, TimelineBroken) as broken:
            raise ClockLost(f"CUPTI lost records: {broken}") from None
        # Behind a drained queue there is no delay, so a call cannot be late.
        return [replace(one, late=False) if own.drains else one for one, own in zip(samples, preambles, strict=True)]

    def replays(self, source: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a source of replays; graphs are kept until the clock is switched off."""

        def give(index: int) -> Launch:
            launch = source(index)
            if launch not in self._replays:
                self._replays[launch] = Replay(self.capture(launch))
            return self._replays[launch]

        return give

    def launch_gap_ns(self) -> int:
        """Return the median time from the end of a delay to an empty kernel behind it, or 0 if records are lost."""
        samples = self._time_empty(self._queue.launch_empty, EMPTY_LAUNCH)
        return int(median(sample.lead_ns or 0 for sample in samples)) if samples else 0

    def chain_gap_ns(self) -> int:
        """Return the median time per kernel in a chain of empty kernels, without a flush, or 0 if records are lost."""
        samples = self._time_empty(self._queue.launch_chain, EMPTY_CHAIN)
        return int(median(sample.span_ns for sample in samples) / CHAIN) if samples else 0

    def least_span_ns(self) -> int:
        """Return the least time of a kernel that moves a word, or 0 if records are lost."""
        return min((sample.span_ns for sample in self._time_empty(self._queue.launch_move, EMPTY_LAUNCH)), default=0)

    def _time_empty(self, launch: Launch, preamble: Preamble) -> list[Sample]:
        try:
            with self:
                self.sample([launch], [preamble])
                return self.sample([launch] * EMPTY_LAUNCHES, [preamble] * EMPTY_LAUNCHES)
        except ClockLost:
            return []

    def fall_back(self, reason: str) -> Clock | None:
        """Return a clock of CUDA events."""
        return CudaEventClock(self._queue, reason)


def make_clock(
    device: torch.device, *, l2_cache: L2Cache = "cold", clock: ClockChoice = "auto", image: bytes | None = None
) -> Clock:
    """Return the best clock for a device.

    Args:
        device: the device of the calls; a GPU must have a context.
        l2_cache: "cold" flushes a GPU's L2 before each call. A CPU's caches are never flushed.
        clock: "cuda_events" selects CUDA events even if CUPTI works.
        image: machine code of the timing kernels, if it exists already.
    """
    if device.type != "cuda":
        return WallClock()
    queue = GpuQueue(device, l2_cache=l2_cache, image=image)
    if clock == "cuda_events":
        return CudaEventClock(queue, EVENTS_ASKED_FOR)
    try:
        return CuptiClock(queue, shared_recorder())
    except RecordsLost as lost:
        return CudaEventClock(queue, str(lost))


@cache
def shared_recorder() -> CuptiRecorder:
    """Return this process's recorder; raises RecordsLost if CUPTI cannot be used."""
    return CuptiRecorder()
