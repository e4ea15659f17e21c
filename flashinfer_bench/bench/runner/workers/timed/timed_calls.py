"""The timed calls of a job: their inputs, their outputs, and the choice of the compared calls. No call is judged here.

`write` puts new content into the buffers of some calls, the worker makes the calls, and `check_calls` checks their
outputs. So each timed call has inputs that no earlier call had, and any call can be compared. Calls on the evaluator's
own inputs are always kept, all other calls by chance. A few odd calls are kept too: calls with an output that was not
written, or that repeats the output of another call. Calls are chosen after they were made. `session/judged_calls.py`
judges them at the end.

A request also has hidden calls on inputs of stress cases (`prepare`, `finish`).
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
from flashinfer_bench.bench.runner.workers.timed.call_buffers import GRAPH_BUFFERS, CallBuffers, Seen, copy_rows
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall, StressSchedule
from flashinfer_bench.errors import SolutionFailure
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.settings import TimingSettings

MOST_ODD: Final = 4
"""Maximum number of odd calls that are compared for each set of inputs. Honest outputs can repeat, as masks do."""
MADE_TOGETHER_BYTES: Final = 1 << 28
"""Maximum bytes of calls whose inputs are made again together: for the reference, and to find calls that have changed
their inputs."""
TOGETHER_BYTES: Final = 1 << 22
"""Maximum bytes of calls that are copied or made again together. Larger copies gain little, and stay in memory until
the last of their calls is dropped."""

Inspected = tuple[Sequence[Any], Sequence[torch.Tensor | None]]
"""The given inputs of a call, and the inputs in its buffers afterwards."""
Mode = Literal["reading", "chain", "batch"]
"""How a compared call was timed."""


@dataclass
class ReadCall:
    """One call whose outputs are compared."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    is_base: bool
    """Whether the inputs are the evaluator's own, whose expected outputs are known."""
    mode: Mode | None = None
    """How the call was timed, if chance has chosen it. None for a base call, which a solution may recognise, and for an
    odd call, since a solution can make calls look odd."""
    trial: int = 0
    """Index of the evaluator's set of inputs from which its inputs were made."""
    expected: list[torch.Tensor] | None = None
    """The reference's outputs for its inputs, if they were computed ahead."""


LeftCall = tuple[torch.Tensor, torch.Tensor | None]
"""Copies of the outputs of a call, and of its inputs, as rows of bytes. The call may have changed the inputs. None for
inputs that were already overwritten."""


@dataclass(frozen=True)
class BufferLaunch:
    """Placeholder for a call in one buffer. The worker launches it."""

    index: int
    replay: bool = False
    inputs: int = 0
    """Index of the evaluator's set of inputs from which its inputs are made."""

    def __call__(self) -> None:
        """Never called in this process."""
        raise AssertionError("a remote call is launched by its worker")


class Request(NamedTuple):
    """The calls of one request: usual calls, and hidden calls on inputs of stress cases."""

    indices: list[int]
    """Buffer of each call."""
    numbers: list[int]
    usual: list[int]
    """Positions of the usual calls."""
    hidden: list[tuple[int, str, list[Any]]]
    """Position, stress case and inputs of each hidden call."""


def written_late() -> SolutionFailure:
    """Return the failure of a solution that writes an output after its call has ended."""
    said = "an output was written after its call had ended; what a call starts has to be done when it returns"
    return SolutionFailure("RUNTIME_ERROR", said)


@dataclass
class TimedCalls:
    """The timed calls of one job.

    Args:
        buffers: memory of their inputs and outputs.
        contents: the inputs of each call.
        wanted: number of calls to keep, besides base calls and odd calls.
        check_inputs: raises if one of several calls has changed its inputs.
    """

    buffers: CallBuffers
    contents: DealtContents
    wanted: int
    check_inputs: Callable[[Sequence[Inspected]], None]
    timing: TimingSettings | None = None
    """How a GPU is timed; None on a CPU."""
    is_idle: bool = False
    """The calls are not compared, so their outputs are neither read nor kept."""
    has_setup: bool = False
    returns: bool = True
    """Results of calls are copied into their output slots."""
    may_return_inputs: bool = False
    """Results can lie in the memory of the inputs."""
    schedule: StressSchedule | None = None
    """Which calls get inputs of stress cases; None without stress cases."""
    is_huge: bool = False
    """Few calls fit into memory. The inputs of a compared call are checked at once, and not copied. Calls on the
    evaluator's own inputs are kept by chance, like all calls, and at most one odd call is kept."""
    setup_samples: list[Sample] = field(default_factory=list)
    """Samples of `setup`, if the solution has one."""
    costs_ns: list[float] = field(default_factory=list)
    """Time of each call: its share of the time from the request to the answer, including `setup` and preambles."""
    launches: dict[str, dict[str, int]] = field(default_factory=dict)
    """Digest of a call's operations → launches of each operation by name, as the worker reports them."""
    chance: random.Random = field(default_factory=lambda: random.Random(random.SystemRandom().getrandbits(256)))
    """Source of every random choice. No worker can know its state."""
    _numbers: list[Iterator[int]] = field(default_factory=list)
    """The next call numbers for each set of inputs."""
    _left: dict[int, LeftCall] = field(default_factory=dict, init=False)
    """Number of each kept call → its copies."""
    _kept: list[int] = field(default_factory=list, init=False)
    """Numbers of the calls that are kept by chance."""
    _others: set[int] = field(default_factory=set, init=False)
    """Numbers of the base calls and the odd calls."""
    _odd: int = field(default=0, init=False)
    _seen: int = field(default=0, init=False)
    _digests: set[int] = field(default_factory=set, init=False)
    """Digests of the words that were read from each call's outputs."""
    _secret: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32), init=False)
    _latest: tuple[list[int], Seen] | None = field(default=None, init=False)
    """The buffers of the latest calls, and the words read from them when the calls were over."""

    def __post_init__(self) -> None:
        """Number the calls, unless `moved_to` has passed on their numbers."""
        sets = len(self.contents)
        self._numbers = self._numbers or [count(at, sets) for at in range(sets)]

    def moved_to(self, buffers: CallBuffers, wanted: int) -> TimedCalls:
        """Return the calls for other buffers. At most `wanted` calls are kept, and no content repeats."""
        return replace(self, buffers=buffers, wanted=wanted)

    # Inputs of calls.

    def write(
        self,
        indices: Sequence[int],
        into: Sequence[torch.Tensor | None] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> list[int]:
        """Write new content into some buffers, and fill their outputs with the sentinel; return the calls' numbers.

        Args:
            into: each input's memory, [buffers, *shape]; None for the buffers themselves.
            numbers: numbers of the calls; None for the next numbers, interleaved over all sets of inputs.
        """
        self.check_unchanged()
        sets = len(self._numbers)
        taken = list(numbers or (next(self._numbers[at % sets]) for at in range(len(indices))))
        writer = open_writer(self.buffers.arena.device)
        self.contents.write_all(taken, into or self.buffers.input_rows, indices, writer)
        self.buffers.fill_outputs(indices, writer)
        writer.finish()
        self.buffers.synchronize()
        return taken

    def prepare(self, launches: Sequence[BufferLaunch]) -> Request:
        """Write the inputs of a request: the first launches that fit, and the hidden calls that are due."""
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
        slots = [self.buffers.inputs(indices[at]) for at in at_hidden]
        for at, can_change in enumerate([] if schedule is None else schedule.plan.free):
            targets = [slot for own in slots if (slot := own[at]) is not None]
            if can_change is not None and targets:
                torch._foreach_copy_(targets, [inputs[at] for _, inputs in made])
        if slots:
            self.buffers.synchronize()
        hidden = [(at, case, own) for at, case, (_, own) in zip(at_hidden, cases, made, strict=True)]
        return Request(indices, numbers, [at for at in range(len(calls)) if at not in at_hidden], hidden)

    def supply(self, index: int, *, replay: bool = False) -> BufferLaunch:
        """Return the launch of the i-th call. Calls rotate through the buffers and through the sets of inputs."""
        return BufferLaunch(index % self.count_in_turn(replay=replay), replay, index % len(self.contents))

    def count_in_turn(self, *, replay: bool) -> int:
        """Return the number of buffers that calls rotate through."""
        return min(len(self.buffers), GRAPH_BUFFERS) if replay else len(self.buffers)

    @property
    def part(self) -> str:
        """Value of the field `part` in requests for whole calls, which include `setup`."""
        return "both" if self.has_setup else "run"

    # Outputs of calls.

    def finish(self, request: Request, setups: Sequence[Sample], spent_ns: float) -> None:
        """Store the costs of a request's calls, and the outputs to compare.

        Raises:
            SolutionFailure: a hidden call has changed its inputs (INCORRECT_NUMERICAL).
        """
        calls, usual, buffers = len(request.indices), request.usual, self.buffers
        self.costs_ns += [spent_ns / calls] * calls
        if self.schedule is not None:
            self.schedule.pass_by(calls, len(request.hidden))
            hidden = [(request.indices[at], case, inputs) for at, case, inputs in request.hidden]
            # Copy the outputs first: a thread may still be running.
            gave = [[copy_of(output) for output in buffers.outputs(index)] for index, *_ in hidden]
            self.schedule.made += [StressCall(*call[1:], own) for call, own in zip(hidden, gave, strict=True)]
            self.check_inputs([(inputs, buffers.inputs(index)) for index, _, inputs in hidden])
        self.setup_samples += [setups[at] for at in usual if setups]
        self.check_calls([request.indices[at] for at in usual], [request.numbers[at] for at in usual])

    @property
    def setup_ns(self) -> float | None:
        """The median time of `setup`, without warm-up calls; None if the solution has no `setup`."""
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
        """Check the outputs of the latest calls in some buffers; copy calls to compare.

        Calls that are kept by chance are copied first. A call is over when the worker answers, but a thread of the
        solution may still be running.

        Args:
            numbers: number of the call in each buffer.
            chooses: whether to keep calls by chance, besides the odd calls.
            outputs: existing copies of all buffers' outputs, as rows of bytes; None to copy them now.
            has_inputs: the buffers still hold the calls' inputs.
        """
        if self.is_idle:
            return
        calls = list(zip(indices, numbers, strict=True))
        bases = {number for number in numbers if self.contents.is_base(number) and not self.is_huge}
        chosen = bases | self._choose([number for number in numbers if number not in bases]) if chooses else set()
        left = self._copy([call for call in calls if call[1] in chosen], outputs, has_inputs=has_inputs)
        seen, odd = self.buffers.read_spots(indices, self._secret), set[int]()
        most_odd = 1 if self.is_huge else MOST_ODD * len(self.contents)
        self._latest = ([*indices], seen)
        for number, words, is_unwritten in zip(numbers, seen, self.buffers.find_unwritten(seen), strict=True):
            digest = hash((self._secret, words.tobytes()))
            # A call is odd if it repeats an output although the inputs differ. The inputs are checked last, since this
            # check can take a second.
            is_odd = is_unwritten or (digest in self._digests and self.contents.differs)
            self._digests.add(digest)
            if is_odd and number not in bases and self._odd + len(odd) < most_odd:
                odd.add(number)
        further = odd - chosen
        left |= self._copy([call for call in calls if call[1] in further], outputs, has_inputs=has_inputs)
        self._left |= left
        self._odd += len(odd)
        self._others |= odd | (bases & chosen)

    @property
    def missing(self) -> int:
        """Number of further calls to keep until the wanted number is reached."""
        return max(0, self.wanted - self._seen)

    def begin(self) -> None:
        """Forget the calls kept by chance. Only later calls can be chosen."""
        self._kept, self._seen = [], 0

    def check_unchanged(self) -> None:
        """Check that the outputs of the latest calls have not changed since the calls were over.

        Raises:
            SolutionFailure: an output has changed (RUNTIME_ERROR).
        """
        latest, self._latest = self._latest, None
        if latest is not None and not np.array_equal(self.buffers.read_spots(latest[0], self._secret), latest[1]):
            raise written_late()

    def reads(self, mode: Mode | None = None) -> list[ReadCall]:
        """Return the calls to compare, in random order, and forget them, since they can hold gigabytes.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        self.check_unchanged()
        left, kept, found = self._forget_displaced(), {*self._kept}, []
        self._left, self._kept, self._others, self._odd = {}, [], set(), 0
        for numbers in self._chunks([*left], MADE_TOGETHER_BYTES):
            given = self.contents.make_all(numbers)
            calls = [(number, own, *left.pop(number)) for number, own in zip(numbers, given, strict=True)]
            self.check_inputs([(own, self.buffers.inputs_in(row)) for _, own, _, row in calls if row is not None])
            for number, own, outputs, _ in calls:
                is_base, chosen = self.contents.is_base(number), mode if number in kept else None
                of_set = self.contents.set_of(number)
                found.append(ReadCall(own, self.buffers.outputs_in(outputs), is_base, chosen, of_set))
        self.chance.shuffle(found)
        return found

    def _choose(self, numbers: Sequence[int]) -> set[int]:
        """Return which of these calls are kept by chance. The chosen calls can displace earlier calls."""
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
        """Copy the calls in some buffers; return the copies by number. Inputs and outputs can be freed separately."""
        copied: dict[int, LeftCall] = {}
        held = self.buffers.held_outputs() if outputs is None else outputs
        for some in self._chunks(calls, TOGETHER_BYTES):
            indices = [index for index, _ in some]
            own, is_copied = copy_rows(held, indices), has_inputs and not self.is_huge
            given = copy_rows(self.buffers.held_inputs(), indices) if is_copied else [None] * len(some)
            copied |= {number: (row, left) for (_, number), row, left in zip(some, own, given, strict=True)}
            for index, number in some if has_inputs and self.is_huge else []:
                self.check_inputs([(self.contents.make(number), self.buffers.inputs(index))])
        return copied

    def _chunks(self, calls: Sequence[Any], most_bytes: int) -> list[Sequence[Any]]:
        """Return the calls in batches that are copied or made again together."""
        most = max(1, most_bytes // max(self.buffers.stride, 1))
        return [calls[start : start + most] for start in range(0, len(calls), most)]
