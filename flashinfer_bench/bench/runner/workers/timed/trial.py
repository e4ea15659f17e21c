"""What the timed calls of a job share: their places, their content, who looks at what they gave, what they cost.

Before the calls of a request are made, new content is written into their places. So each timed call has inputs that no
call had before, and any of them may be compared afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces
from flashinfer_bench.bench.runner.workers.timed.reader import TOGETHER_BYTES, Reader
from flashinfer_bench.bench.runner.workers.timed.readings import ReadingsAsked
from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed, slots_in
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall, StressSchedule
from flashinfer_bench.timing.measurement import Sample

HIDDEN_NUMBERS: Final = 1 << 30
"""The first number of a call on inputs of a stress case: no usual call has so large a one."""


@dataclass(frozen=True)
class PlaceLaunch:
    """Stands for a call in one place; the worker launches it."""

    index: int
    replay: bool = False
    inputs: int = 0
    """Which of the evaluator's sets of inputs its own are made of."""

    def __call__(self) -> None:
        """It is never called here."""
        raise AssertionError("a remote call is launched by its worker")


def count_taken(places: Sized, *, replay: bool) -> int:
    """Return how many of a job's places its calls take in turn."""
    return min(len(places), GRAPH_PLACES) if replay else len(places)


@dataclass(frozen=True)
class Request:
    """The calls of one request: usual ones, and those on inputs of stress cases, hidden among them."""

    indices: list[int]
    """Their places."""
    numbers: list[int]
    usual: list[int]
    """The positions of the usual ones among them."""
    hidden: list[int]
    """The positions of the others."""
    names: list[str]
    """The cases of the others."""
    rows: torch.Tensor | None = None
    """What each of the others was given, one row of bytes for each; None where they are large."""
    inputs: Sequence[list[Any]] = ()
    """The same as tensors, and other values."""


@dataclass
class RemoteTrial:
    """What the timed calls of one job share."""

    places: CallPlaces
    contents: DealtContents
    reader: Reader
    asked: ReadingsAsked
    has_setup: bool
    returns: bool = True
    """What calls return is copied into their output slots."""
    may_return_inputs: bool = False
    """What calls return may lie in the memory of their inputs."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Readings of `setup`, where the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """What each call took by the session's clock, `setup` and all that goes before a call included: its share of the
    time from a request to its answer."""
    schedule: StressSchedule | None = None
    """Which calls get inputs of stress cases; None where none does."""
    chance: random.Random = field(default_factory=random.SystemRandom)

    def __post_init__(self) -> None:
        """Number the calls."""
        sets = len(self.contents)
        self._usual = [count(at, sets) for at in range(sets)]
        """The next numbers of calls on each set of inputs."""
        self._others = count(HIDDEN_NUMBERS)

    def write(
        self,
        indices: Sequence[int],
        into: Sequence[Sequence[torch.Tensor] | None] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[int]:
        """Write new content into some places, and poison their outputs; return the numbers of the calls.

        Args:
            indices: the places.
            into: of each input where it is written for each of the calls; None for the places themselves.
            numbers: the calls'; None for the next ones on all sets of inputs by turns.
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
        """Write the inputs of a request: of as many launches as have room, and of the hidden calls that are due."""
        most = count_taken(self.places, replay=launches[0].replay)
        names = [] if self.schedule is None else self.schedule.due(len(launches), most)
        launches = launches[: most - len(names)]
        total = len(launches) + len(names)
        hidden = sorted(self.chance.sample(range(total), len(names)))
        usual = [at for at in range(total) if at not in hidden]
        taken = {launch.index for launch in launches}
        free = [index for index in range(most) if index not in taken]
        calls = {
            at: (launch.index, next(self._usual[launch.inputs])) for at, launch in zip(usual, launches, strict=True)
        }
        calls |= {at: (index, next(self._others)) for at, index in zip(hidden, free, strict=False)}
        indices, numbers = [calls[at][0] for at in range(total)], [calls[at][1] for at in range(total)]
        request = Request(indices, self.write(indices, numbers=numbers), usual, hidden, names)
        return self._change(request) if names else request

    def _change(self, request: Request) -> Request:
        """Give the hidden calls of a request their inputs; return it with what they were given."""
        assert self.schedule is not None
        at = [request.indices[position] for position in request.hidden]
        for name, index, position in zip(request.names, at, request.hidden, strict=True):
            self.schedule.plan.change(name, request.numbers[position], self.places.inputs(index))
        self.places.synchronize()
        if self.places.stride > TOGETHER_BYTES:
            clones = [[None if one is None else one.clone() for one in self.places.inputs(index)] for index in at]
            return replace(request, inputs=[self._given_in(slots) for slots in clones])
        rows = copy_rows(self.places.rows_of_inputs(), at)
        return replace(request, rows=rows, inputs=[self._given_in(self.places.inputs_in(row)) for row in rows.unbind()])

    def _given_in(self, slots: Sequence[torch.Tensor | None]) -> list[Any]:
        """Return the inputs of a call, given those that are tensors."""
        return [value if slot is None else slot for slot, value in zip(slots, self.contents.base, strict=True)]

    def finish(self, request: Request, setups: Sequence[Sample], spent_ns: float) -> None:
        """Keep what the calls of a request gave and took.

        Raises:
            SolutionFailure: INCORRECT_NUMERICAL; a hidden call has changed its inputs.
        """
        calls = len(request.indices)
        self.costs_ns += [spent_ns / calls] * calls
        if self.schedule is not None:
            self.schedule.pass_by(calls, len(request.hidden))
            self._take_hidden(request, self.schedule)
        self.setup_samples += [setups[at] for at in request.usual if setups]
        self.reader.look([request.indices[at] for at in request.usual], [request.numbers[at] for at in request.usual])

    def _take_hidden(self, request: Request, schedule: StressSchedule) -> None:
        """Keep what the hidden calls gave."""
        places, at = self.places, [request.indices[position] for position in request.hidden]
        if not at:
            return
        # What they gave is copied first: a thread may still be at work.
        if request.rows is None:
            gave = [[output.clone() for output in places.outputs(index)] for index in at]
        else:
            gave = [places.outputs_in(row) for row in copy_rows(places.rows_of_outputs(), at).unbind()]
        schedule.made += map(StressCall, request.names, request.inputs, gave)
        is_suspect = [True] * len(at)
        if request.rows is not None:
            held = places.rows_of_inputs()
            slots = [slot for slot in slots_in(places.arena.block, places.inputs(0)) if slot is not None]
            is_suspect = find_changed([held[index] for index in at], request.rows, slots, len(at))
        now = zip(request.inputs, map(places.inputs, at), strict=True)
        self.reader.check_inputs([one for one, looks_changed in zip(now, is_suspect, strict=True) if looks_changed])

    def make_hidden(self, schedule: StressSchedule) -> tuple[str, list[Any]]:
        """Return the first case that no call was made on, and inputs of it."""
        name, number = schedule.left[0], next(self._others)
        inputs = self.contents.make(number)
        schedule.plan.change(name, number, [one if isinstance(one, torch.Tensor) else None for one in inputs])
        return name, inputs

    def moved_to(self, places: CallPlaces, wanted: int) -> RemoteTrial:
        """Return the calls in other places, with a reader of its own for so many of them; no content comes again."""
        reader = Reader(places, self.contents, wanted, self.reader.check_inputs, is_idle=self.reader.is_idle)
        moved = replace(self, places=places, reader=reader)
        moved._usual, moved._others = self._usual, self._others
        return moved

    def supply(self, index: int) -> PlaceLaunch:
        """Give the launch of the i-th call: in the places in turn, on the sets of inputs by turns."""
        return PlaceLaunch(index % len(self.places), inputs=index % len(self.contents))

    @property
    def setup_ns(self) -> float | None:
        """The usual time of `setup`, its warm-up calls among it; None where the solution has none."""
        spans = [sample.span_ns for sample in self.setup_samples]
        return median(spans[len(spans) // 4 :]) if spans else None
