"""What the timed calls of a job share: their places, their content, the reader of their outputs, their costs.

Before the calls of a request are made, new content is written into their places. So each timed call has inputs that no
call had before, and any of them may be compared afterwards.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.arena import copy_of
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces
from flashinfer_bench.bench.runner.workers.timed.reader import Reader
from flashinfer_bench.bench.runner.workers.timed.readings import ReadingsAsked
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall, StressSchedule
from flashinfer_bench.timing.measurement import Sample


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


@dataclass(frozen=True)
class Request:
    """The calls of one request: usual ones, and those on inputs of stress cases, hidden among them."""

    indices: list[int]
    """Their places."""
    numbers: list[int]
    hidden: list[int]
    """The positions of those on inputs of stress cases."""
    names: list[str]
    """The cases of these."""
    inputs: list[list[Any]]
    """Their inputs."""

    @property
    def usual(self) -> list[int]:
        """The positions of the others."""
        return [at for at in range(len(self.indices)) if at not in self.hidden]

    @property
    def led_as(self) -> list[int]:
        """Of each call, which of the usual ones it is led up to like: itself, or the one before it."""
        return [max(0, bisect_right(self.usual, at) - 1) for at in range(len(self.indices))]


@dataclass
class RemoteTrial:
    """What the timed calls of one job share."""

    places: CallPlaces
    contents: DealtContents
    reader: Reader
    asked: ReadingsAsked
    has_setup: bool
    returns: bool = True
    """Results of calls are copied into their output slots."""
    may_return_inputs: bool = False
    """Results may lie in the memory of the inputs."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Samples of `setup`, if the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """Time of each call by the session's clock, `setup` and all that goes before a call included: its share of the
    time from a request to its answer."""
    schedule: StressSchedule | None = None
    """Which calls get inputs of stress cases; None if none does."""
    chance: random.Random = field(default_factory=random.SystemRandom)
    _usual: list[Iterator[int]] = field(default_factory=list)
    """The next numbers of calls on each set of inputs."""

    def __post_init__(self) -> None:
        """Number the calls, unless they are moved."""
        sets = len(self.contents)
        self._usual = self._usual or [count(at, sets) for at in range(sets)]

    def write(
        self,
        indices: Sequence[int],
        into: Sequence[Sequence[torch.Tensor] | None] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[int]:
        """Write new content into some places, and poison their outputs; return the numbers of the calls.

        Args:
            indices: the places.
            into: tensors of each input, one a call, to write to; None for the places themselves.
            numbers: the calls'; None for the next ones on all sets of inputs in turn.
        """
        self.reader.check_unchanged()
        taken = list(numbers or (next(self._usual[at % len(self._usual)]) for at in range(len(indices))))
        writer = open_writer(self.places.arena.device)
        self.contents.write_all(taken, into or self.places.input_targets(indices), writer)
        self.places.poison(indices, writer)
        writer.finish()
        self.places.synchronize()
        return taken

    def prepare(self, launches: Sequence[PlaceLaunch]) -> Request:
        """Write the inputs of a request: of the first launches that have room, and of the hidden calls that are due."""
        most = self.count_in_turn(replay=launches[0].replay)
        names = [] if self.schedule is None else self.schedule.due(len(launches), most)
        launches = launches[: most - len(names)]
        hidden = sorted(self.chance.sample(range(len(launches) + len(names)), len(names)))
        taken = {launch.index for launch in launches}
        free = (index for index in range(most) if index not in taken)
        calls = [(launch.index, next(self._usual[launch.inputs])) for launch in launches]
        made = [] if self.schedule is None else list(map(self.schedule.inputs.take, names))
        for at, (number, _) in zip(hidden, made, strict=True):
            calls.insert(at, (next(free), number))
        indices, numbers = [index for index, _ in calls], [number for _, number in calls]
        self.write(indices, numbers=numbers)
        inputs = [own for _, own in made]
        if self.schedule is not None and made:
            self._bring([indices[at] for at in hidden], inputs, self.schedule.inputs.changed)
        return Request(indices, numbers, hidden, names, inputs)

    def _bring(self, indices: Sequence[int], inputs: Sequence[list[Any]], changed: Sequence[bool]) -> None:
        """Copy what stress cases have changed into the places of their calls."""
        for at, is_changed in enumerate(changed):
            slots = [self.places.inputs(index)[at] for index in indices]
            if is_changed and slots and slots[0] is not None:
                torch._foreach_copy_([slot for slot in slots if slot is not None], [own[at] for own in inputs])
        self.places.synchronize()

    def finish(self, request: Request, setups: Sequence[Sample], spent_ns: float) -> None:
        """Keep the costs of the calls of a request, and outputs that are to be compared.

        Raises:
            SolutionFailure: INCORRECT_NUMERICAL; a hidden call has changed its inputs.
        """
        calls, usual = len(request.indices), request.usual
        self.costs_ns += [spent_ns / calls] * calls
        if self.schedule is not None:
            self.schedule.pass_by(calls, len(request.hidden))
            hidden = [request.indices[at] for at in request.hidden]
            # Outputs are copied first: a thread may still be at work.
            gave = [[copy_of(output) for output in self.places.outputs(index)] for index in hidden]
            self.schedule.made += map(StressCall, request.names, request.inputs, gave)
            self.reader.check_inputs(list(zip(request.inputs, map(self.places.inputs, hidden), strict=True)))
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
