"""Which timed calls are compared: chosen after they were made, and kept as they were left. It judges nothing.

Some calls are kept by chance, those on the evaluator's own inputs always, and a few that look odd: an output was not
written, or repeats another call's. `session/judged_calls.py` judges them when all are over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.runner.workers.timed.call_places import CallPlaces, Seen, copy_rows
from flashinfer_bench.errors import SolutionFailure

MOST_ODD: Final = 4
"""Odd calls on each set of inputs that are compared: honest outputs may repeat, as masks do, so this is bounded."""
MADE_TOGETHER_BYTES: Final = 1 << 28
"""Bytes of calls whose inputs are made again together, to be compared with those that a call has left."""
TOGETHER_BYTES: Final = 1 << 22
"""Most bytes of calls that are copied or made again together. Larger copies gain little, and stay until the last of
their calls is dropped."""

Inspected = tuple[Sequence[Any], Sequence[torch.Tensor | None]]
"""The inputs that a call was given, and those in its place since."""
Way = Literal["reading", "chain", "batch"]
"""How a call that is compared was timed."""


@dataclass
class ReadCall:
    """One call whose outputs are compared."""

    inputs: list[Any]
    outputs: list[torch.Tensor]
    is_base: bool
    """Its inputs are the evaluator's own, whose expected outputs are known."""
    way: Way | None = None
    """Chance chose it among all calls that were timed in this way. None for the base, which a solution may recognise,
    and for a call that merely looks odd, which a solution may make."""
    trial: int = 0
    """Number of the evaluator's set of inputs that its own were made of."""
    expected: list[torch.Tensor] | None = None
    """The reference's outputs for its inputs, if they were computed ahead."""


class LeftCall(NamedTuple):
    """Copies of what a call left, each a row of bytes."""

    outputs: torch.Tensor
    inputs: torch.Tensor | None
    """Which it may have changed; None if they were overwritten already."""


def written_late() -> SolutionFailure:
    """Return the failure of a solution whose call has left work that writes an output."""
    said = "an output was written after its call had ended; what a call starts has to be done when it returns"
    return SolutionFailure("RUNTIME_ERROR", said)


@dataclass
class Reader:
    """Chooses, after the fact and at random, which timed calls are compared.

    Args:
        places: where the calls' inputs and outputs lie.
        contents: the inputs of each call.
        wanted: calls to keep, beside those on a base and those that look odd.
        check_inputs: raises if one of some calls has changed its inputs.
        chance: the source of the choice; no worker can know its state.
    """

    places: CallPlaces
    contents: DealtContents
    wanted: int
    check_inputs: Callable[[Sequence[Inspected]], None]
    chance: random.Random = field(default_factory=lambda: random.Random(random.SystemRandom().getrandbits(256)))
    is_idle: bool = False
    """These calls are not compared: nothing is read, and nothing kept."""
    _kept: dict[int, LeftCall | None] = field(default_factory=dict)
    """The number of each call that is kept by chance; None until it is over."""
    _others: dict[int, LeftCall] = field(default_factory=dict)
    """The same of those on a base and of odd ones."""
    _odd: int = 0
    _seen: int = 0
    _digests: set[int] = field(default_factory=set)
    """Of the words that were read of each call's outputs."""
    _secret: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32))
    _latest: tuple[list[int], Seen] | None = None
    """The places of the latest calls, and the words that were read there when they were over."""

    def look(
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
        copies = self._copy([call for call in calls if call[1] in chosen], outputs, has_inputs=has_inputs)
        seen = self.places.read_spots(indices, self._secret)
        self._latest = ([*indices], seen)
        for call, words, is_unwritten in zip(calls, seen, self.places.find_unwritten(seen), strict=True):
            number, digest = call[1], hash((self._secret, words.tobytes()))
            # Outputs repeat that other inputs gave. To find out whether inputs differ may take a second.
            is_odd = is_unwritten or (digest in self._digests and self.contents.differs)
            self._digests.add(digest)
            is_odd = is_odd and number not in bases and self._odd < MOST_ODD * len(self.contents)
            if is_odd or number in chosen:
                left = copies.get(number) or self._copy([call], outputs, has_inputs=has_inputs)[number]
                self._odd += is_odd
                if is_odd or number in bases:
                    self._others[number] = left
                if number in self._kept:
                    self._kept[number] = left

    @property
    def missing(self) -> int:
        """Number of calls that are wanted beyond those that were there to be chosen from."""
        return max(0, self.wanted - self._seen)

    def begin(self) -> None:
        """Forget the calls that are kept by chance: only later calls are chosen from."""
        self._kept, self._seen = {}, 0

    def check_unchanged(self) -> None:
        """Check that the outputs of the latest calls are as they were when these were over.

        Raises:
            SolutionFailure: RUNTIME_ERROR; an output has changed since.
        """
        latest, self._latest = self._latest, None
        if latest is not None and not np.array_equal(self.places.read_spots(latest[0], self._secret), latest[1]):
            raise written_late()

    def _choose(self, numbers: Sequence[int]) -> set[int]:
        """Return which of these calls are kept by chance; they may displace earlier ones."""
        for number in numbers:
            self._seen += 1
            if len(self._kept) >= self.wanted:
                if self.chance.random() >= self.wanted / self._seen:
                    continue
                del self._kept[self.chance.choice(list(self._kept))]
            self._kept[number] = None
        return self._kept.keys() & {*numbers}

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
            copied |= {number: LeftCall(*row) for (_, number), row in zip(some, rows, strict=True)}
        return copied

    def _portions(self, calls: Sequence[Any], most_bytes: int) -> list[Sequence[Any]]:
        """Return calls in portions that are copied or made again together."""
        most = max(1, most_bytes // max(self.places.stride, 1))
        return [calls[start : start + most] for start in range(0, len(calls), most)]

    def reads(self, way: Way | None = None) -> list[ReadCall]:
        """Return the calls to compare, in a random order, and forget them: they may hold gigabytes.

        Args:
            way: how the calls were timed.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        self.check_unchanged()
        kept = {number: call for number, call in self._kept.items() if call is not None}
        left, found = kept | self._others, []
        self._kept, self._others, self._odd = {}, {}, 0
        for numbers in self._portions([*left], MADE_TOGETHER_BYTES):
            given = self.contents.make_all(numbers)
            calls = [left.pop(number) for number in numbers]
            rows = [(own, call.inputs) for own, call in zip(given, calls, strict=True)]
            self.check_inputs([(own, self.places.inputs_in(row)) for own, row in rows if row is not None])
            for number, own, call in zip(numbers, given, calls, strict=True):
                is_base, chosen = self.contents.is_base(number), way if number in kept else None
                outputs = self.places.outputs_in(call.outputs)
                found.append(ReadCall(own, outputs, is_base, chosen, self.contents.set_of(number)))
        self.chance.shuffle(found)
        return found
