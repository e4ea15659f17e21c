"""The session's side of sampling: the procedure runs here, and the worker makes the calls.

New content is written into the buffers before each request. So each timed call has inputs that no earlier call had, and
any call can be compared afterwards. Calls on inputs of stress cases are hidden among them.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from flashinfer_bench.bench.runner.workers.timed.reported_time import check_clock, check_readings
from flashinfer_bench.bench.runner.workers.timed.timed_calls import BufferLaunch, TimedCalls
from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Preamble
from flashinfer_bench.timing.measurement import Metadata, Sample
from flashinfer_bench.worker.protocol import Called, ClockTraits, Started, Stopped

Ask: TypeAlias = Callable[..., Any]
"""Sends a request within the solution's time: method, expected answer, description, **fields → the checked answer.
Errors of the worker become a SolutionFailure."""


class RemoteClock(Clock):
    """The clock of one worker for one job. The calls of a request use different buffers.

    Args:
        traits: the worker's clock, as reported before a solution was loaded.
        trial: the buffers, contents and outputs of the calls.
        reason: why the worker must use another clock than its own; None to use its own.
    """

    def __init__(self, ask: Ask, traits: ClockTraits, trial: TimedCalls, *, reason: str | None = None) -> None:
        self._ask = ask
        self._trial = trial
        self._reason = reason
        self._take_traits(traits)
        self._metadata: Metadata = {}

    def _take_traits(self, traits: ClockTraits) -> None:
        self._traits = traits
        self.method: str = traits.method
        self.cache_state: str = traits.cache_state
        self.fills_queue, self.sees_operations = traits.fills_queue, traits.sees_operations

    @property
    def fresh_graphs(self) -> int:  # type: ignore[override]
        """Number of graphs that replays rotate through; 0 if each graph was replayed since the last layout."""
        graphs = self._trial.count_in_turn(replay=True)
        return graphs if len(self._trial.buffers.replayed) < graphs else 0

    def __enter__(self) -> RemoteClock:
        started = self._ask("start", Started, "the measurement", fall_back=self._reason)
        self._take_traits(started.clock)
        check_clock(started.clock, self._trial.timing)
        if started.lost is not None:
            raise ClockLost(started.lost)
        return self

    def __exit__(self, *raised: Any) -> None:
        """Switch the worker's clock off, unless the worker is gone or the solution has failed."""
        if raised[1] is None or isinstance(raised[1], (ClockLost, CaptureRefused)):
            self._trial.launches |= self._ask("stop", Stopped, "the measurement").launches

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Have the worker make the calls, and the hidden calls that are due. Each call has its own buffer."""
        trial, samples = self._trial, list[Sample]()
        while len(samples) < len(launches):
            start = len(samples)
            left = [launch for launch in launches[start:] if isinstance(launch, BufferLaunch)]
            request, replay = trial.prepare(left), left[0].replay
            # A hidden call has the preamble of the usual call before it.
            of_each = [max(0, bisect_right(request.usual, at) - 1) for at in range(len(request.indices))]
            lead = [[*vars(preambles[start + at]).values()] for at in of_each]
            fields = {"indices": request.indices, "lead": lead, "replay": replay}
            setups, setup_ns = self._call("setup", fields) if trial.has_setup else ([], 0.0)
            made, run_ns = self._call("run", fields)
            trial.buffers.replayed.update(request.indices if replay else ())
            trial.finish(request, setups, setup_ns + run_ns)
            samples += [made[at] for at in request.usual]
        return samples

    def _call(self, part: str, fields: dict[str, Any]) -> tuple[list[Sample], float]:
        """Return the samples of a request, and the nanoseconds until its answer."""
        start = time.monotonic()
        called = self._ask("calls", Called, "the measurement", part=part, **fields)
        wall_ns = (time.monotonic() - start) * 1e9
        if called.lost is not None:
            raise ClockLost(called.lost)
        if called.refused is not None:
            raise CaptureRefused(called.refused)
        if called.facts is not None and self.method != "wall":  # a wall clock reports no metadata
            self._metadata = called.facts.model_dump(exclude_none=True)
        return check_readings(called, len(fields["indices"]), self._traits, wall_ns=wall_ns), wall_ns

    def replays(self, source: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a source of replays. The worker captures the call of each buffer once."""
        if self._trial.has_setup:
            raise CaptureRefused("what setup prepares belongs to the inputs of one call, and a graph would keep it")
        return partial(self._trial.supply, replay=True) if self.sees_operations else source

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that the worker uses instead; None for a wall clock."""
        if self.method != "cupti":
            return None
        return RemoteClock(self._ask, self._traits, self._trial, reason=reason)

    def metadata(self) -> Metadata:
        """Return the metadata that the worker's clock reports with its samples."""
        return self._metadata
