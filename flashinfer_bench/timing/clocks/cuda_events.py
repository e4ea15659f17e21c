"""CUDA events round each call: the fall-back where CUPTI is not to be had.

A pair of events with nothing between them reads a constant, about 2 µs on an H200. It is measured and reported, and
not subtracted. A call may leave work on streams that nobody waits for; the pair does not hold that work. Such a call
shows by a device that is busy after the second event. It is then timed until the device is idle.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from types import TracebackType
from typing import Final, Protocol

from flashinfer_bench.timing.clocks.clock import Launch, WholeCallClock, put_away, puts_away
from flashinfer_bench.timing.lane import Lane, Lead, Leads, lead_of_each
from flashinfer_bench.timing.measurement import Facts, Sample

EMPTY_PAIRS: Final = 10
"""Pairs of events with nothing between them whose median is reported."""
EMPTY_LEAD: Final = Lead(spin_ns=40_000)
ASIDE_NS: Final = 50_000
"""If the device is busy for longer than this after a call's second event, the call has left work on other streams. To
wait for an idle device takes a few microseconds."""


class Event(Protocol):
    """A CUDA event that holds a time."""

    def record(self) -> object:
        """Enqueue it."""

    def query(self) -> bool:
        """Say whether the GPU has passed it."""

    def synchronize(self) -> object:
        """Wait until the GPU has passed it."""

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds from this event to another."""


class CudaEventClock(WholeCallClock):
    """Times calls on the current stream of one GPU.

    Args:
        lane: what goes before each call.
        make_event: makes an event that holds a time.
        reason: why no better clock is used. The facts tell it.
    """

    method = "cuda_events"
    fills_queue = True

    def __init__(self, lane: Lane, make_event: Callable[[], Event], *, reason: str = "") -> None:
        self.cache_state: str = lane.l2_cache
        self._lane = lane
        self._make_event = make_event
        self._reason = reason
        self._empty_ns: int | None = None

    def __enter__(self) -> CudaEventClock:
        if self._empty_ns is None:
            pairs = self.sample([lambda: None] * EMPTY_PAIRS, EMPTY_LEAD)
            self._empty_ns = int(median(sample.span_ns for sample in pairs))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the device idle; an error of the device itself is the one that is under way already."""
        if error is None:
            self._lane.synchronize()

    def sample(self, launches: list[Launch], lead: Leads) -> list[Sample]:
        """Time each call: nanoseconds between two events on the GPU.

        The GPU is idle before each call. If the next flush waited in the queue behind the second event, the events
        would lie further apart and scatter more than twice as much (softmax over 32 MB on an H200: 57.4 +- 0.45 us
        instead of 56.6 +- 0.17).
        """
        return [self._sample_one(*one) for one in zip(launches, lead_of_each(lead, len(launches)), strict=True)]

    def _sample_one(self, launch: Launch, lead: Lead) -> Sample:
        start, end = self._make_event(), self._make_event()
        self._lane.lead_up(lead)
        start.record()
        begin_ns = perf_counter_ns()
        launch()
        end_ns = perf_counter_ns()
        if lead.settled:
            self._lane.synchronize()
        end.record()
        late = start.query() and not lead.settled
        escaped = lead.looks_aside and self._is_busy_after(end)
        self._lane.synchronize()
        span_ns = int(start.elapsed_time(end) * 1e6)
        if puts_away(launch):
            put_away(launch)
        return Sample(span_ns=span_ns, enqueue_ns=end_ns - begin_ns, late=late, escaped=escaped)

    def _is_busy_after(self, end: Event) -> bool:
        end.synchronize()
        begin_ns = perf_counter_ns()
        self._lane.synchronize()
        return perf_counter_ns() - begin_ns > ASIDE_NS

    def facts(self) -> Facts:
        """Return the constant of an empty pair, and why this clock is used."""
        facts: Facts = {"empty_pair_ns": self._empty_ns or 0}
        return {**facts, "fallback": self._reason} if self._reason else facts
