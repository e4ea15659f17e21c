"""CUPTI: the times of every kernel, copy and fill, as the GPU itself recorded them.

The records between two of our spins belong to one call, whatever stream or thread it launched from. Only records of
GPU work are enabled; those of API calls slow the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from types import TracebackType
from typing import Final, Protocol

from flashinfer_bench.timing.clocks.clock import Clock, ClockLost, Launch, Replay, is_replay, put_away, puts_away
from flashinfer_bench.timing.lane import CHAIN, EMPTY_KERNEL, FLUSH_KERNEL, SPIN_KERNEL, Lane, Lead, Leads, lead_of_each
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.timing.timeline import HostCall, Operation, OurKernels, TimelineBroken, read_samples

CALLS_IN_FLIGHT: Final = 64
OPERATIONS_IN_FLIGHT: Final = 512
"""The host enqueues at most this many calls, and about this many operations, before it waits for the device. The
device's queue holds about a thousand launches; in a full queue the host would wait, and its time would be misread."""

EMPTY_LAUNCHES: Final = 12
"""Readings whose median is the launch gap, or the chain gap."""
EMPTY_LEAD: Final = Lead(spin_ns=15_000)
CHAIN_LEAD: Final = Lead(spin_ns=200_000, flushes=False)


class RecordsLost(Exception):
    """CUPTI cannot be switched on, or has dropped records; the reason is its text."""


class Recorder(Protocol):
    """CUPTI's activity records."""

    def start(self) -> None:
        """Begin to record; raises RecordsLost where that is not possible."""

    def stop(self) -> None:
        """Record no more."""

    def now(self) -> int:
        """Return the time on the records' clock, in nanoseconds."""

    def take(self) -> Sequence[Operation]:
        """Return what was recorded since the last time; raises RecordsLost where records were dropped."""


class CuptiClock:
    """Takes readings from CUPTI's records.

    Args:
        lane: what goes before each call.
        recorder: CUPTI.
        capture: turns a call into a replay of a CUDA graph; raises CaptureRefused.
        release: gives back the memory of graphs that are gone.
        fallback: makes the clock to use where the records are lost, given the reason.
    """

    method = "cupti"
    fills_queue = True
    sees_operations = True
    fresh_graphs: int | None = None

    def __init__(
        self,
        lane: Lane,
        recorder: Recorder,
        *,
        capture: Callable[[Launch], Launch],
        fallback: Callable[[str], Clock],
        release: Callable[[], object] = lambda: None,
    ) -> None:
        self.cache_state: str = lane.l2_cache
        self._lane = lane
        self._recorder = recorder
        self._capture = capture
        self._fallback = fallback
        self._release = release
        self._has_captured = False
        self._per_call = 1
        self._leads_ns: list[int] = []

    def __enter__(self) -> CuptiClock:
        self._lane.synchronize()  # records of earlier work come when it is done
        try:
            self._recorder.start()
        except RecordsLost as lost:
            raise ClockLost(str(lost)) from None
        self._leads_ns.clear()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch CUPTI off, and give back what the trial's graphs have held."""
        self._recorder.stop()
        if self._has_captured and error is None:
            with suppress(RuntimeError):  # readings that were taken are good, and a broken device will say so again
                self._release()
            self._has_captured = False

    def sample(self, launches: list[Launch], lead: Leads) -> list[Sample]:
        """Time each call by the records of what it launched."""
        samples: list[Sample] = []
        calls = list(zip(launches, lead_of_each(lead, len(launches)), strict=True))
        while len(samples) < len(calls):
            room = max(1, min(CALLS_IN_FLIGHT, OPERATIONS_IN_FLIGHT // (self._per_call + 2)))
            together = calls[len(samples) : len(samples) + room]
            taken = self._sample_together(together)
            self._per_call = max(1, *(sample.operations or 0 for sample in taken))
            for (_, own), sample in zip(together, taken, strict=True):
                samples.append(replace(sample, late=False) if own.settled else sample)  # nothing spins
        self._leads_ns += [sample.lead_ns for sample in samples if sample.lead_ns is not None]
        return samples

    def _sample_together(self, together: Sequence[tuple[Launch, Lead]]) -> list[Sample]:
        calls: list[HostCall] = []
        flush = FLUSH_KERNEL if self._lane.l2_cache == "cold" and together[0][1].flushes else None
        now = self._recorder.now
        for launch, lead in together:
            self._lane.lead_up(lead)
            begin_ns = now()
            launch()
            calls.append(HostCall(begin_ns, now(), ends_with_mark=puts_away(launch), is_replay=is_replay(launch)))
            if puts_away(launch):
                self._lane.launch_empty()  # what comes behind this mark is no part of the call
                put_away(launch)
        self._lane.synchronize()
        try:
            return read_samples(self._recorder.take(), calls, names=OurKernels(SPIN_KERNEL, flush, EMPTY_KERNEL))
        except (RecordsLost, TimelineBroken) as broken:
            raise ClockLost(f"CUPTI lost records: {broken}") from None

    def captured(self, supply: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a supplier of replays; a call that is supplied again is not captured again."""
        replays: dict[Launch, Launch] = {}

        def give(index: int) -> Launch:
            launch = supply(index)
            if launch not in replays:
                self._has_captured = True
                replays[launch] = Replay(self._capture(launch))
            return replays[launch]

        return give

    def launch_gap_ns(self) -> int:
        """Return the usual time from the end of a spin to an empty kernel behind it, or 0 where records are lost."""
        samples = self._look_at(self._lane.launch_empty, EMPTY_LEAD)
        return int(median(sample.lead_ns or 0 for sample in samples)) if samples else 0

    def chain_gap_ns(self) -> int:
        """Return the time of one link of a chain of empty kernels, caches warm, or 0 where records are lost."""
        samples = self._look_at(self._lane.launch_chain, CHAIN_LEAD)
        return int(median(sample.span_ns for sample in samples) / CHAIN) if samples else 0

    def least_span_ns(self) -> int:
        """Return the least time of a kernel that reads a word and writes it elsewhere, or 0 where records are lost."""
        return min((sample.span_ns for sample in self._look_at(self._lane.launch_move, EMPTY_LEAD)), default=0)

    def _look_at(self, launch: Launch, lead: Lead) -> list[Sample]:
        try:
            with self:
                self.sample([launch], lead)
                return self.sample([launch] * EMPTY_LAUNCHES, lead)
        except ClockLost:
            return []

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that is used instead."""
        return self._fallback(reason)

    def facts(self) -> Facts:
        """Return the usual time from the end of the spin to the call's first operation."""
        return {"lead_ns": int(median(self._leads_ns))} if self._leads_ns else {}
