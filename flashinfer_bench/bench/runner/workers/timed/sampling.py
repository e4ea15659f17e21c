"""The session's side of sampling: the procedure runs here, and the worker makes the calls.

Before the calls of a request are made, new content is written into their places. So each timed call has inputs that no
call had before, and any of them may be compared afterwards. Calls on inputs of stress cases hide among them.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any, NamedTuple, TypeAlias

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.arena import copy_of
from flashinfer_bench.bench.runner.workers.timed.bounds import check_clock, check_readings
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces
from flashinfer_bench.bench.runner.workers.timed.reader import Reader
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall, StressSchedule
from flashinfer_bench.timing.clocks import CaptureRefused, Clock, ClockLost, Launch, Preamble
from flashinfer_bench.timing.measurement import Facts, Sample
from flashinfer_bench.timing.settings import TimingSettings
from flashinfer_bench.worker.protocol import Called, Claim, ClockTraits, Started

Ask: TypeAlias = Callable[..., Any]
"""Asks the worker within the solution's time: verb, expected answer, what for, **fields → the checked answer. The
worker's errors become a SolutionFailure."""


@dataclass(frozen=True)
class PlaceLaunch:
    """Stands for a call in one place; the worker launches it."""

    index: int
    replay: bool = False
    inputs: int = 0
    """Number of the evaluator's set of inputs that its own are made of."""

    def __call__(self) -> None:
        """It is never called here."""
        raise AssertionError("a remote call is launched by its worker")


class Request(NamedTuple):
    """The calls of one request: usual ones, and those on inputs of stress cases, hidden among them."""

    indices: list[int]
    """Their places."""
    numbers: list[int]
    usual: list[int]
    """Positions of the usual ones."""
    hidden: list[tuple[int, str, list[Any]]]
    """Position, stress case and inputs of each of the others."""


@dataclass
class RemoteTrial:
    """What the timed calls of one job share: their places, their content, the reader of their outputs, their costs."""

    places: CallPlaces
    contents: DealtContents
    reader: Reader
    timing: TimingSettings | None
    """How a GPU is timed; None on a CPU."""
    has_setup: bool
    returns: bool = True
    """Results of calls are copied into their output slots."""
    may_return_inputs: bool = False
    """Results may lie in the memory of the inputs."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Samples of `setup`, if the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """Share of each call in the time from its request to the answer, `setup` and preambles included."""
    schedule: StressSchedule | None = None
    """Which calls get inputs of stress cases; None if none does."""
    chance: random.Random = field(default_factory=random.SystemRandom)
    _numbers: list[Iterator[int]] = field(default_factory=list)
    """The next numbers of calls on each set of inputs."""

    def __post_init__(self) -> None:
        """Number the calls, unless they are moved."""
        sets = len(self.contents)
        self._numbers = self._numbers or [count(at, sets) for at in range(sets)]

    def write(
        self,
        indices: Sequence[int],
        into: Sequence[torch.Tensor | None] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[int]:
        """Write new content into some places, and poison their outputs; return the numbers of the calls.

        Args:
            indices: the places.
            into: each input's memory, [places, *shape]; None for the places themselves.
            numbers: the calls'; None for the next ones on all sets of inputs in turn.
        """
        self.reader.check_unchanged()
        sets = len(self._numbers)
        taken = list(numbers or (next(self._numbers[at % sets]) for at in range(len(indices))))
        writer = open_writer(self.places.arena.device)
        self.contents.write_all(taken, into or self.places.input_rows, indices, writer)
        self.places.poison(indices, writer)
        writer.finish()
        self.places.synchronize()
        return taken

    def prepare(self, launches: Sequence[PlaceLaunch]) -> Request:
        """Write the inputs of a request: of the first launches that have room, and of the hidden calls that are due."""
        most, schedule = self.count_in_turn(replay=launches[0].replay), self.schedule
        cases = [] if schedule is None else schedule.due(len(launches), most)
        launches = launches[: most - len(cases)]
        free = iter({*range(most)} - {launch.index for launch in launches})
        calls = [(launch.index, next(self._numbers[launch.inputs])) for launch in launches]
        at_hidden = sorted(self.chance.sample(range(len(calls) + len(cases)), len(cases)))
        made = [] if schedule is None else schedule.make(cases)
        for at, (number, _) in zip(at_hidden, made, strict=True):
            calls.insert(at, (next(free), number))
        indices, numbers = [index for index, _ in calls], [number for _, number in calls]
        self.write(indices, numbers=numbers)
        slots = [self.places.inputs(indices[at]) for at in at_hidden]
        for at, can_change in enumerate([] if schedule is None else schedule.plan.free):
            targets = [slot for own in slots if (slot := own[at]) is not None]
            if can_change is not None and targets:
                torch._foreach_copy_(targets, [inputs[at] for _, inputs in made])
        if slots:
            self.places.synchronize()
        hidden = [(at, case, own) for at, case, (_, own) in zip(at_hidden, cases, made, strict=True)]
        return Request(indices, numbers, [at for at in range(len(calls)) if at not in at_hidden], hidden)

    def finish(self, request: Request, setups: Sequence[Sample], spent_ns: float) -> None:
        """Keep the costs of the calls of a request, and outputs that are to be compared.

        Raises:
            SolutionFailure: INCORRECT_NUMERICAL; a hidden call has changed its inputs.
        """
        calls, usual, places = len(request.indices), request.usual, self.places
        self.costs_ns += [spent_ns / calls] * calls
        if self.schedule is not None:
            self.schedule.pass_by(calls, len(request.hidden))
            hidden = [(request.indices[at], case, inputs) for at, case, inputs in request.hidden]
            # Outputs are copied first: a thread may still be at work.
            gave = [[copy_of(output) for output in places.outputs(index)] for index, *_ in hidden]
            self.schedule.made += [StressCall(*call[1:], own) for call, own in zip(hidden, gave, strict=True)]
            self.reader.check_inputs([(inputs, places.inputs(index)) for index, _, inputs in hidden])
        self.setup_samples += [setups[at] for at in usual if setups]
        self.reader.look([request.indices[at] for at in usual], [request.numbers[at] for at in usual])

    def moved_to(self, places: CallPlaces, wanted: int) -> RemoteTrial:
        """Return the calls in other places, with a reader of its own that wants this many; no content comes again."""
        reader = Reader(places, self.contents, wanted, self.reader.check_inputs, is_idle=self.reader.is_idle)
        return replace(self, places=places, reader=reader)

    def count_in_turn(self, *, replay: bool) -> int:
        """Return how many of the places calls take in turn."""
        return min(len(self.places), GRAPH_PLACES) if replay else len(self.places)

    def supply(self, index: int, *, replay: bool = False) -> PlaceLaunch:
        """Give the launch of the i-th call: in the places in turn, on the sets of inputs in turn."""
        return PlaceLaunch(index % self.count_in_turn(replay=replay), replay, index % len(self.contents))

    @property
    def part(self) -> str:
        """The part of a call that a request asks for which makes whole calls, each with its `setup`."""
        return "both" if self.has_setup else "run"

    @property
    def setup_ns(self) -> float | None:
        """The usual time of `setup`, warm-up calls included; None if the solution has none."""
        spans = [sample.span_ns for sample in self.setup_samples]
        return median(spans[len(spans) // 4 :]) if spans else None


class RemoteClock(Clock):
    """The clock of one worker for one job. It takes the calls of a request together, each in another place.

    Args:
        ask: asks the worker.
        traits: the worker's clock, as it was before a solution was loaded.
        trial: the places of the calls, their content, and the reader of their outputs.
        reason: why the worker is to use another clock than its own; None for its own.
    """

    def __init__(self, ask: Ask, traits: ClockTraits, trial: RemoteTrial, *, reason: str | None = None) -> None:
        self._ask = ask
        self._trial = trial
        self._reason = reason
        self._take_traits(traits)
        self._facts: Facts = {}

    def _take_traits(self, traits: ClockTraits) -> None:
        self._traits = traits
        self.method: str = traits.method
        self.cache_state: str = traits.cache_state
        self.fills_queue, self.sees_operations = traits.fills_queue, traits.sees_operations

    @property
    def fresh_graphs(self) -> int:  # type: ignore[override]
        """Graphs that replays take in turn, if one of them was not replayed since the calls were laid out; else 0."""
        graphs = self._trial.count_in_turn(replay=True)
        return graphs if len(self._trial.places.replayed) < graphs else 0

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
            self._ask("stop", Claim, "the measurement")

    def sample(self, launches: Sequence[Launch], preambles: Sequence[Preamble]) -> list[Sample]:
        """Have the worker make the calls, and hidden ones that are due; no two of a request lie in one place."""
        trial, samples = self._trial, list[Sample]()
        while len(samples) < len(launches):
            start = len(samples)
            left = [launch for launch in launches[start:] if isinstance(launch, PlaceLaunch)]
            request, replay = trial.prepare(left), left[0].replay
            # A hidden call has the preamble of the usual call before it.
            of_each = [max(0, bisect_right(request.usual, at) - 1) for at in range(len(request.indices))]
            lead = [[*vars(preambles[start + at]).values()] for at in of_each]
            fields = {"indices": request.indices, "lead": lead, "replay": replay}
            setups, setup_ns = self._call("setup", fields) if trial.has_setup else ([], 0.0)
            made, run_ns = self._call("run", fields)
            trial.places.replayed.update(request.indices if replay else ())
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
        if called.facts is not None and self.method != "wall":  # a wall clock has none
            self._facts = called.facts.model_dump(exclude_none=True)
        return check_readings(called, len(fields["indices"]), self._traits, wall_ns=wall_ns), wall_ns

    def replays(self, source: Callable[[int], Launch]) -> Callable[[int], Launch]:
        """Return a source of replays: the worker captures the call of each place once."""
        if self._trial.has_setup:
            raise CaptureRefused("what setup prepares belongs to the inputs of one call, and a graph would keep it")
        return partial(self._trial.supply, replay=True) if self.sees_operations else source

    def fall_back(self, reason: str) -> Clock | None:
        """Return the clock that the worker uses instead; a wall clock has none."""
        if self.method != "cupti":
            return None
        return RemoteClock(self._ask, self._traits, self._trial, reason=reason)

    def facts(self) -> Facts:
        """Return the facts that the worker's clock knows of its samples."""
        return self._facts
