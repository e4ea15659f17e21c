"""A worker's clock as the session uses it: the recipe of a trial runs in the session, the calls run in the worker.

Around each request the session writes new content into the places of its calls (`trial.py`), and looks at what they
gave (`reader.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Final, Protocol

from flashinfer_bench.bench.runner.workers.cpu_time import BetweenRequests
from flashinfer_bench.bench.runner.workers.timed.readings import check_clock, check_readings
from flashinfer_bench.bench.runner.workers.timed.trial import PlaceLaunch, RemoteTrial, count_taken
from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Lead
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.worker.protocol import Called, ClockTraits, Started, Stopped

NO_GRAPH_BESIDE_SETUP: Final = "what setup prepares belongs to the inputs of one call, and a graph would keep it"


class Ask(Protocol):
    """Asks the worker, within the solution's time; what goes wrong becomes a SolutionFailure."""

    def __call__(self, verb: str, expected: type[Any], what: str, **fields: Any) -> Any:
        """Return the checked answer."""


@dataclass
class HeldClock:
    """A worker's clock that stays on from one trial to the next, until `let_go`.

    To switch CUPTI on and off takes a millisecond, and several where sessions of other GPUs do it, too.
    """

    started: Started | None = None
    """What the worker said when it switched its clock on; None while it is off."""

    def let_go(self, ask: Ask) -> None:
        """Have the worker switch its clock off, where it is on."""
        started, self.started = self.started, None
        if started is not None:
            ask("stop", Stopped, "the measurement")


class RemoteClock:
    """The clock of one worker for one trial. It takes the calls of a request together, each in another place.

    Args:
        ask: asks the worker.
        traits: the worker's clock, as it was before a solution was loaded.
        trial: where calls lie, what they are given, who looks at what they gave.
        fall_back: why the worker is to use another clock than its own; None for its own.
        held: keeps it on when the trial is over; None where it is switched off then.

    `core` is the one that makes the worker's calls, None for any.
    """

    def __init__(
        self,
        ask: Ask,
        traits: ClockTraits,
        trial: RemoteTrial,
        *,
        fall_back: str | None = None,
        held: HeldClock | None = None,
    ) -> None:
        self.core: int | None = None
        self._ask = ask
        self._trial = trial
        self._fall_back = fall_back
        self._held = held
        self._take_traits(traits)
        self._facts: Facts = {}
        self._spent_ns = 0.0
        self._between = BetweenRequests(trial.guard_pid)

    def _take_traits(self, traits: ClockTraits) -> None:
        self._traits = traits
        self.method: str = traits.method
        self.cache_state: str = traits.cache_state
        self.fills_queue = traits.fills_queue
        self.sees_operations = traits.sees_operations

    @property
    def places(self) -> int:
        """How many calls have places."""
        return len(self._trial.places)

    @property
    def fresh_graphs(self) -> int:
        """How many graphs replays take in turn, where one of them was not replayed since the calls were laid out."""
        graphs = count_taken(self._trial.places, replay=True)
        return graphs if len(self._trial.places.replayed) < graphs else 0

    def __enter__(self) -> RemoteClock:
        started = self._held.started if self._held is not None and self._fall_back is None else None
        if started is None:
            started = self._ask("start", Started, "the measurement", fall_back=self._fall_back)
        self._take_traits(started.clock)
        check_clock(started.clock, self._trial.asked)
        if started.lost is not None:
            raise ClockLost(started.lost)
        if self._held is not None:
            self._held.started = started
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Switch the worker's clock off, unless it is held, the worker is gone or the solution has failed."""
        if self._held is None and (error is None or isinstance(error, (ClockLost, CaptureRefused))):
            self._ask("stop", Stopped, "the measurement")

    def sample(self, launches: list[Launch], lead: Lead) -> list[Sample]:
        """Have the worker make the calls; no two of a request lie in one place."""
        samples: list[Sample] = []
        chosen = [launch for launch in launches if isinstance(launch, PlaceLaunch)]
        most = count_taken(self._trial.places, replay=chosen[0].replay) if chosen else 1
        for start in range(0, len(chosen), most):
            samples += self._sample_together(chosen[start : start + most], lead)
        return samples

    def _sample_together(self, launches: Sequence[PlaceLaunch], lead: Lead) -> list[Sample]:
        """Have the worker make calls, and those on inputs of other regimes that are due beside them."""
        trial, count = self._trial, len(launches)
        launches = [*launches, *trial.spares(launches)]
        indices = [launch.index for launch in launches]
        numbers = trial.write(indices)
        hidden = trial.hide(indices, numbers)
        fields = {"indices": indices, "lead": asdict(lead), "replay": launches[0].replay}
        fields |= {} if self.core is None else {"core": self.core}
        self._spent_ns = 0.0
        setups = self._call(part="setup", **fields) if trial.has_setup else []
        samples = self._call(part="run", **fields)
        trial.places.replayed.update(launch.index for launch in launches if launch.replay)
        trial.costs_ns += [self._spent_ns / len(indices)] * len(indices)
        trial.take_hidden(hidden)
        usual = [at for at in range(len(indices)) if at not in hidden.names]
        trial.setup_samples += [setups[at] for at in usual if setups]
        trial.reader.look([indices[at] for at in usual], [numbers[at] for at in usual])
        taken = [samples[at] for at in usual][:count]
        # Where there was no place beside the usual calls, some of these are made again.
        left = [launches[at] for at in hidden.names][: count - len(taken)]
        return [*taken, *self._sample_together(left, lead)] if left else taken

    def _call(self, **fields: Any) -> list[Sample]:
        _, ahead_ns = self._between.end()
        start = time.monotonic()
        called = self._ask("calls", Called, "the measurement", **fields)
        wall_ns = (time.monotonic() - start) * 1e9
        self._between.begin()
        self._spent_ns += wall_ns + ahead_ns
        if called.lost is not None:
            raise ClockLost(called.lost)
        if called.refused is not None:
            raise CaptureRefused(called.refused)
        if called.facts is not None and self.method != "wall":  # a wall clock has none
            self._facts = called.facts.model_dump(exclude_none=True)
        return check_readings(called, len(fields["indices"]), self._traits, wall_ns=wall_ns)

    def captured(self, supply: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a supplier of replays: the worker captures the call of each place once."""
        if self._trial.has_setup:
            raise CaptureRefused(NO_GRAPH_BESIDE_SETUP)
        if not self.sees_operations:
            return supply

        places = count_taken(self._trial.places, replay=True)

        def give(index: int) -> Launch:
            return PlaceLaunch(index % places, replay=True)

        return give

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that the worker uses instead; a wall clock has none."""
        if self.method != "cupti":
            return None
        return RemoteClock(self._ask, self._traits, self._trial, fall_back=reason, held=self._held)

    def launch_gap_ns(self) -> int:
        """Return 0: the worker has told it when it was ready."""
        return 0

    def chain_gap_ns(self) -> int:
        """Return 0: the worker has told it when it was ready."""
        return 0

    def least_span_ns(self) -> int:
        """Return 0: the session knows it from its own clock."""
        return 0

    def facts(self) -> Facts:
        """Return what the worker's clock knows of its readings."""
        return self._facts
