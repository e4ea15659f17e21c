"""A worker's clock as the session uses it: the recipe runs in the session, the calls run in the worker.

Around each request the session writes new content into the places of its calls (`trial.py`), and checks their outputs
(`reader.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Protocol

from flashinfer_bench.bench.runner.workers.timed.readings import check_clock, check_readings
from flashinfer_bench.bench.runner.workers.timed.trial import PlaceLaunch, RemoteTrial
from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Preamble
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.worker.protocol import Called, ClockTraits, Started, Stopped


class Ask(Protocol):
    """Asks the worker, within the solution's time; its errors become a SolutionFailure."""

    def __call__(self, verb: str, expected: type[Any], what: str, **fields: Any) -> Any:
        """Return the checked answer."""


class RemoteClock(Clock):
    """The clock of one worker for one job. It takes the calls of a request together, each in another place.

    Args:
        ask: asks the worker.
        traits: the worker's clock, as it was before a solution was loaded.
        trial: the places of the calls, their content, and the reader of their outputs.
        fall_back: why the worker is to use another clock than its own; None for its own.
    """

    def __init__(self, ask: Ask, traits: ClockTraits, trial: RemoteTrial, *, fall_back: str | None = None) -> None:
        self._ask = ask
        self._trial = trial
        self._fall_back = fall_back
        self._take_traits(traits)
        self._facts: Facts = {}
        self._spent_ns = 0.0

    def _take_traits(self, traits: ClockTraits) -> None:
        self._traits = traits
        self.method: str = traits.method
        self.cache_state: str = traits.cache_state
        self.fills_queue = traits.fills_queue
        self.sees_operations = traits.sees_operations

    @property
    def fresh_graphs(self) -> int:  # type: ignore[override]
        """Graphs that replays take in turn, if one of them was not replayed since the calls were laid out; else 0."""
        graphs = self._trial.count_in_turn(replay=True)
        return graphs if len(self._trial.places.replayed) < graphs else 0

    def __enter__(self) -> RemoteClock:
        started = self._ask("start", Started, "the measurement", fall_back=self._fall_back)
        self._take_traits(started.clock)
        check_clock(started.clock, self._trial.asked)
        if started.lost is not None:
            raise ClockLost(started.lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch the worker's clock off, unless the worker is gone or the solution has failed."""
        if error is None or isinstance(error, (ClockLost, CaptureRefused)):
            self._ask("stop", Stopped, "the measurement")

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Have the worker make the calls, and hidden ones that are due; no two of a request lie in one place."""
        samples: list[Sample] = []
        left = [launch for launch in launches if isinstance(launch, PlaceLaunch)]
        while left:
            request = self._trial.prepare(left)
            lead = [vars(preambles[len(samples) + at]) for at in request.led_as]
            fields = {"indices": request.indices, "lead": lead, "replay": left[0].replay}
            self._spent_ns = 0.0
            setups = self._call(part="setup", **fields) if self._trial.has_setup else []
            made = self._call(part="run", **fields)
            self._trial.places.replayed.update(request.indices if left[0].replay else ())
            self._trial.finish(request, setups, self._spent_ns)
            samples += [made[at] for at in request.usual]
            left = left[len(request.usual) :]
        return samples

    def _call(self, **fields: Any) -> list[Sample]:
        start = time.monotonic()
        called = self._ask("calls", Called, "the measurement", **fields)
        wall_ns = (time.monotonic() - start) * 1e9
        self._spent_ns += wall_ns
        if called.lost is not None:
            raise ClockLost(called.lost)
        if called.refused is not None:
            raise CaptureRefused(called.refused)
        if called.facts is not None and self.method != "wall":  # a wall clock has none
            self._facts = called.facts.model_dump(exclude_none=True)
        return check_readings(called, len(fields["indices"]), self._traits, wall_ns=wall_ns)

    def replays(self, source: Callable[[int], Launch], graphs: int = 1) -> Callable[[int], Launch]:
        """Return a source of replays: the worker captures the call of each place once."""
        del graphs
        if self._trial.has_setup:
            raise CaptureRefused("what setup prepares belongs to the inputs of one call, and a graph would keep it")
        return partial(self._trial.supply, replay=True) if self.sees_operations else source

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that the worker uses instead; a wall clock has none."""
        if self.method != "cupti":
            return None
        return RemoteClock(self._ask, self._traits, self._trial, fall_back=reason)

    def facts(self) -> Facts:
        """Return the facts that the worker's clock knows of its readings."""
        return self._facts
