"""The timed calls of a job: what they are given, what they leave, and which of them are compared. It judges nothing.

`write` puts new content into the places of some calls; the worker makes them; `check_calls` checks their outputs. So
each timed call has inputs that no call had before, and any of them may be compared. Some are kept by chance, those on
the evaluator's own inputs always, and a few that look odd: an output was not written, or repeats another call's. They
are chosen after they were made. `session/judged_calls.py` judges them when all are over.

A request has calls on inputs of stress cases beside its usual calls (`prepare`, `finish`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from statistics import median
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.arena import copy_of
from flashinfer_bench.bench.runner.workers.timed.call_places import GRAPH_PLACES, CallPlaces, Seen, copy_rows
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall, StressSchedule
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.settings import TimingSettings

MOST_ODD: Final = 4
"""Odd calls on each set of inputs that are compared: honest outputs may repeat, as masks do, so this is bounded."""
MADE_TOGETHER_BYTES: Final = 1 << 28
"""Bytes of calls whose inputs are made again together, to be compared with those that a call has left."""
TOGETHER_BYTES: Final = 1 << 22
"""Most bytes of calls that are copied or made again together. Larger copies gain little, and stay until the last of
their calls is dropped."""

Inspected = tuple[Sequence[Any], Sequence[torch.Tensor | None]]
"""The inputs that a call was given, and those in its place since."""
Mode = Literal["reading", "chain", "batch"]
"""How a call that is compared was timed."""


@dataclass
class ReadCall:
    """One call whose outputs are compared."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    is_base: bool
    """Its inputs are the evaluator's own, whose expected outputs are known."""
    mode: Mode | None = None
    """Chance chose it among all calls that were timed in this mode. None for the base, which a solution may recognise,
    and for a call that merely looks odd, which a solution may make."""
    trial: int = 0
    """Number of the evaluator's set of inputs that its own were made of."""
    expected: list[torch.Tensor] | None = None
    """The reference's outputs for its inputs, if they were computed ahead."""


LeftCall = tuple[torch.Tensor, torch.Tensor | None]
"""Copies of the outputs that a call left, and of its inputs, which it may have changed: rows of bytes. None for inputs
that were overwritten already."""


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


def written_late() -> SolutionFailure:
    """Return the failure of a solution whose call has left work that writes an output."""
    said = "an output was written after its call had ended; what a call starts has to be done when it returns"
    return SolutionFailure("RUNTIME_ERROR", said)


@dataclass
class TimedCalls:
    """The timed calls of one job.

    Args:
        places: where their inputs and outputs lie.
        contents: the inputs of each call.
        wanted: calls to keep, beside those on a base and those that look odd.
        check_inputs: raises if one of some calls has changed its inputs.
    """

    places: CallPlaces
    contents: DealtContents
    wanted: int
    check_inputs: Callable[[Sequence[Inspected]], None]
    timing: TimingSettings | None = None
    """How a GPU is timed; None on a CPU."""
    is_idle: bool = False
    """They are not compared: nothing is read, and nothing kept."""
    has_setup: bool = False
    returns: bool = True
    """Results of calls are copied into their output slots."""
    may_return_inputs: bool = False
    """Results may lie in the memory of the inputs."""
    schedule: StressSchedule | None = None
    """Which calls get inputs of stress cases; None if none does."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Samples of `setup`, if the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """Share of each call in the time from its request to the answer, `setup` and preambles included."""
    chance: random.Random = field(default_factory=lambda: random.Random(random.SystemRandom().getrandbits(256)))
    """The source of each choice; no worker can know its state."""
    _numbers: list[Iterator[int]] = field(default_factory=list)
    """The next numbers of calls on each set of inputs."""
    _left: dict[int, LeftCall] = field(default_factory=dict, init=False)
    """The number of each call that is kept."""
    _kept: list[int] = field(default_factory=list, init=False)
    """Numbers of those that are kept by chance."""
    _others: set[int] = field(default_factory=set, init=False)
    """Numbers of those on a base and of odd ones."""
    _odd: int = field(default=0, init=False)
    _seen: int = field(default=0, init=False)
    _digests: set[int] = field(default_factory=set, init=False)
    """Of the words that were read of each call's outputs."""
    _secret: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32), init=False)
    _latest: tuple[list[int], Seen] | None = field(default=None, init=False)
    """The places of the latest calls, and the words that were read there when they were over."""

    def __post_init__(self) -> None:
        """Number the calls, unless they are moved."""
        sets = len(self.contents)
        self._numbers = self._numbers or [count(at, sets) for at in range(sets)]

    def moved_to(self, places: CallPlaces, wanted: int) -> TimedCalls:
        """Return the calls in other places, of which this many are kept; no content comes again."""
        return replace(self, places=places, wanted=wanted)

    # What calls are given.

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
        self.check_unchanged()
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

    def supply(self, index: int, *, replay: bool = False) -> PlaceLaunch:
        """Give the launch of the i-th call: in the places in turn, on the sets of inputs in turn."""
        return PlaceLaunch(index % self.count_in_turn(replay=replay), replay, index % len(self.contents))

    def count_in_turn(self, *, replay: bool) -> int:
        """Return how many of the places calls take in turn."""
        return min(len(self.places), GRAPH_PLACES) if replay else len(self.places)

    @property
    def part(self) -> str:
        """The part of a call that a request asks for which makes whole calls, each with its `setup`."""
        return "both" if self.has_setup else "run"

    # What they leave.

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
            self.check_inputs([(inputs, places.inputs(index)) for index, _, inputs in hidden])
        self.setup_samples += [setups[at] for at in usual if setups]
        self.check_calls([request.indices[at] for at in usual], [request.numbers[at] for at in usual])

    @property
    def setup_ns(self) -> float | None:
        """The usual time of `setup`, warm-up calls included; None if the solution has none."""
        spans = [sample.span_ns for sample in self.setup_samples]
        return median(spans[len(spans) // 4 :]) if spans else None

    def check_calls(
        self,
        indices: Sequence[int],
        numbers: Sequence[int],
        *,
        chooses: bool = True,
        outputs: torch.Tensor | None = None,
        has_inputs: bool = True,
    ) -> None:
        """Check the outputs of the calls that some places just had; copy calls that are to be compared.

        Calls that are kept by chance are copied before anything else: a call is over when the worker answers, and a
        thread of the solution may still be at work.

        Args:
            indices: the places.
            numbers: the number of each place's call.
            chooses: False keeps none of them by chance, only those that look odd.
            outputs: copies of all places' outputs that were made already, as rows of bytes; None to make them now.
            has_inputs: the places hold the calls' inputs still.
        """
        if self.is_idle:
            return
        calls, bases = list(zip(indices, numbers, strict=True)), {*filter(self.contents.is_base, numbers)}
        chosen = bases | self._choose([number for number in numbers if number not in bases]) if chooses else set()
        left = self._copy([call for call in calls if call[1] in chosen], outputs, has_inputs=has_inputs)
        seen, odd = self.places.read_spots(indices, self._secret), set[int]()
        self._latest = ([*indices], seen)
        for number, words, is_unwritten in zip(numbers, seen, self.places.find_unwritten(seen), strict=True):
            digest = hash((self._secret, words.tobytes()))
            # Outputs repeat that other inputs gave. To find out whether inputs differ may take a second.
            is_odd = is_unwritten or (digest in self._digests and self.contents.differs)
            self._digests.add(digest)
            if is_odd and number not in bases and self._odd + len(odd) < MOST_ODD * len(self.contents):
                odd.add(number)
        further = odd - chosen
        left |= self._copy([call for call in calls if call[1] in further], outputs, has_inputs=has_inputs)
        self._left |= left
        self._odd += len(odd)
        self._others |= odd | (bases & chosen)

    @property
    def missing(self) -> int:
        """Number of calls that are wanted beyond those that were there to be chosen from."""
        return max(0, self.wanted - self._seen)

    def begin(self) -> None:
        """Forget the calls that are kept by chance: only later calls are chosen from."""
        self._kept, self._seen = [], 0

    def check_unchanged(self) -> None:
        """Check that the outputs of the latest calls are as they were when these were over.

        Raises:
            SolutionFailure: RUNTIME_ERROR; an output has changed since.
        """
        latest, self._latest = self._latest, None
        if latest is not None and not np.array_equal(self.places.read_spots(latest[0], self._secret), latest[1]):
            raise written_late()

    def reads(self, mode: Mode | None = None) -> list[ReadCall]:
        """Return the calls to compare, in a random order, and forget them: they may hold gigabytes.

        Args:
            mode: how the calls were timed.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        self.check_unchanged()
        left, kept, found = self._forget_displaced(), {*self._kept}, []
        self._left, self._kept, self._others, self._odd = {}, [], set(), 0
        for numbers in self._portions([*left], MADE_TOGETHER_BYTES):
            given = self.contents.make_all(numbers)
            calls = [(number, own, *left.pop(number)) for number, own in zip(numbers, given, strict=True)]
            self.check_inputs([(own, self.places.inputs_in(row)) for _, own, _, row in calls if row is not None])
            for number, own, outputs, _ in calls:
                is_base, chosen = self.contents.is_base(number), mode if number in kept else None
                of_set = self.contents.set_of(number)
                found.append(ReadCall(own, self.places.outputs_in(outputs), is_base, chosen, of_set))
        self.chance.shuffle(found)
        return found

    def _choose(self, numbers: Sequence[int]) -> set[int]:
        """Return which of these calls are kept by chance; they may displace earlier ones."""
        for number in numbers:
            self._seen += 1
            if len(self._kept) < self.wanted:
                self._kept.append(number)
            elif self.chance.random() < self.wanted / self._seen:
                self._kept[self.chance.randrange(self.wanted)] = number
        self._left = self._forget_displaced()
        return {*self._kept}.intersection(numbers)

    def _forget_displaced(self) -> dict[int, LeftCall]:
        """Return the calls that are still kept."""
        wanted = self._others.union(self._kept)
        return {number: call for number, call in self._left.items() if number in wanted}

    def _copy(
        self, calls: Sequence[tuple[int, int]], outputs: torch.Tensor | None, *, has_inputs: bool
    ) -> dict[int, LeftCall]:
        """Copy the calls of some places and numbers; return them by number. Inputs and outputs are freed apart."""
        copied: dict[int, LeftCall] = {}
        held = self.places.held_outputs() if outputs is None else outputs
        for some in self._portions(calls, TOGETHER_BYTES):
            indices = [index for index, _ in some]
            given = copy_rows(self.places.held_inputs(), indices) if has_inputs else [None] * len(some)
            rows = zip(copy_rows(held, indices), given, strict=True)
            copied |= {number: row for (_, number), row in zip(some, rows, strict=True)}
        return copied

    def _portions(self, calls: Sequence[Any], most_bytes: int) -> list[Sequence[Any]]:
        """Return calls in portions that are copied or made again together."""
        most = max(1, most_bytes // max(self.places.stride, 1))
        return [calls[start : start + most] for start in range(0, len(calls), most)]
