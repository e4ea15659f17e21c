"""Which timed calls are compared: chosen after they were made, and kept as they were left. It judges nothing.

Some calls are kept by chance, those on the evaluator's own inputs always, and a few that look odd: an output was not
written, or repeats another call's. `session/reads.py` judges them when all are over.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal

import numpy as np
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer
from flashinfer_bench.bench.runner.workers.timed.call_places import CallPlaces, Seen, digest_rows
from flashinfer_bench.bench.runner.workers.timed.rows import copy_rows, find_changed
from flashinfer_bench.errors import SolutionFailure

MOST_ODD: Final = 4
"""Odd calls on each set of inputs that are compared: honest outputs may repeat, as masks do, so this is bounded."""
LARGE_BYTES: Final = 1 << 26
"""Bytes of a call's inputs and outputs from which on its inputs are not copied."""
TOGETHER_BYTES: Final = 1 << 22
"""Most bytes of calls that are copied or compared together. Larger copies gain little, and stay until the last of their
calls is dropped."""

Inspected = tuple[Sequence[Any], Sequence[torch.Tensor | None]]
"""The inputs that a call was given, and those in its place since."""
Outputs = Callable[[int], list[torch.Tensor]]
"""Place → copies of its outputs."""
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


@dataclass(frozen=True)
class LeftCall:
    """Copies of a call's outputs, and of its inputs, which it may have changed."""

    outputs: Callable[[], list[torch.Tensor]]
    inputs: torch.Tensor | None
    """A row of bytes, which begins with them; None for a large call, and if they were overwritten already."""
    given: list[Any] | None = None
    """The inputs that a large call was given, which are checked at once. Those of others are made again at the end."""


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
    _odd: dict[int, LeftCall] = field(default_factory=dict)
    _bases: dict[int, LeftCall] = field(default_factory=dict)
    _seen: int = 0
    _looks: set[int] = field(default_factory=set)
    """Digests of the bytes that were read of each call's outputs."""
    _look_secret: int = field(default_factory=lambda: random.SystemRandom().getrandbits(32))
    _latest: tuple[list[int], list[Seen]] | None = None
    """The places of the latest calls, and the bytes that were read there when they were over."""

    def look(
        self,
        indices: Sequence[int],
        numbers: Sequence[int],
        *,
        chooses: bool = True,
        outputs: Outputs | None = None,
        has_inputs: bool = True,
    ) -> None:
        """Check the outputs of the calls that some places just had; copy calls that are to be compared.

        Calls that are kept by chance are copied before anything else: a call is over when the worker answers, and a
        thread of the solution may still be at work.

        Args:
            indices: the places.
            numbers: the number of each place's call.
            chooses: False keeps none of them by chance, only those that look odd.
            outputs: copies that were made already; None to make them now.
            has_inputs: the places hold the calls' inputs still.
        """
        if self.is_idle:
            return
        chosen = self._choose(numbers) if chooses else set()
        kept = [index for index, number in zip(indices, numbers, strict=True) if number in chosen]
        copies = self._copy(kept, outputs, has_inputs=has_inputs)
        seen = self.places.read_spots(indices, self._look_secret)
        self._latest = (list(indices), seen)
        looks_odd = self.places.find_unwritten(seen, self._look_secret) or [False] * len(indices)
        for at, digest in enumerate(digest_rows(seen, self._look_secret)):
            # Outputs repeat that other inputs gave. To find out whether inputs differ may take a second.
            looks_odd[at] |= digest in self._looks and self.contents.differs
            self._looks.add(digest)
        is_checked = has_inputs and not self._takes_inputs  # a copy of them would take too much memory
        for at, (index, number) in enumerate(zip(indices, numbers, strict=True)):
            is_base = self.contents.is_base(number)
            is_odd = looks_odd[at] and not is_base and len(self._odd) < MOST_ODD * len(self.contents)
            if number not in chosen and not is_odd:
                continue
            left = copies.get(index) or self._copy([index], outputs, has_inputs=has_inputs)[index]
            if is_checked:
                given = self.contents.make(number)
                self.check_inputs([(given, self.places.inputs(index))])
                left = replace(left, given=given)
            if is_base:
                self._bases[number] = left
            if is_odd:
                self._odd[number] = left
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
        if latest is None:
            return
        now = self.places.read_spots(latest[0], self._look_secret)
        if not all(np.array_equal(one, then) for one, then in zip(now, latest[1], strict=True)):
            raise written_late()

    def _choose(self, numbers: Sequence[int]) -> set[int]:
        """Return the calls that are kept: the bases, and some by chance, which may displace earlier ones."""
        bases = {number for number in numbers if self.contents.is_base(number)}
        for number in numbers:
            if number in bases:
                continue
            self._seen += 1
            if len(self._kept) >= self.wanted:
                if self.chance.random() >= self.wanted / self._seen:
                    continue
                del self._kept[self.chance.choice(list(self._kept))]
            self._kept[number] = None
        return bases | self._kept.keys() & {*numbers}

    def _copy(self, indices: Sequence[int], made: Outputs | None, *, has_inputs: bool) -> dict[int, LeftCall]:
        """Copy the calls of some places; return them by place."""
        if not indices:
            return {}
        places, takes_inputs = self.places, has_inputs and self._takes_inputs
        begin = 0 if takes_inputs else places.inputs_end
        held = places.held_bytes(len(places), begin, places.outputs_end if made is None else places.inputs_end)
        copied = {}
        for start in range(0, len(indices), self._most_together):
            some = indices[start : start + self._most_together]
            for index, row in zip(some, copy_rows(held, some).unbind(), strict=True):
                own = partial(CallPlaces.outputs_in, places, row[places.inputs_end - begin :])
                copied[index] = LeftCall(partial(made, index) if made else own, row if takes_inputs else None)
        return copied

    @property
    def _takes_inputs(self) -> bool:
        """Whether inputs of calls are copied: those of large ones are not."""
        return self.places.stride <= LARGE_BYTES

    @property
    def _most_together(self) -> int:
        """Calls that are copied or compared together."""
        return max(1, TOGETHER_BYTES // max(self.places.stride, 1))

    def reads(self, way: Way | None = None) -> list[ReadCall]:
        """Return the calls to compare, in a random order, and forget them: they may hold gigabytes.

        Args:
            way: how the calls were timed.

        Raises:
            SolutionFailure: an output has changed since its call was over, or a call has changed its inputs.
        """
        self.check_unchanged()
        left = {number: call for number, call in self._kept.items() if call is not None} | self._odd | self._bases
        given = self._make_again({number: call for number, call in left.items() if call.given is None})
        found = []
        for number, call in left.items():
            inputs = given[number] if call.given is None else call.given
            chosen, trial = way if number in self._kept else None, self.contents.set_of(number)
            found.append(ReadCall(inputs, call.outputs(), number in self._bases, chosen, trial))
        self._kept, self._odd, self._bases = {}, {}, {}  # the functions that make outputs may refer to this reader
        self.chance.shuffle(found)
        return found

    def _make_again(self, left: Mapping[int, LeftCall]) -> dict[int, list[Any]]:
        """Make the inputs of some calls again, and check that the calls have left them as they were.

        Raises:
            SolutionFailure: a call has changed its inputs.
        """
        if not left:
            return {}
        places, base = self.places, self.contents.base
        numbers = sorted(left, key=lambda number: left[number].inputs is None)
        rows, views = places.own_inputs(len(numbers))
        writer = open_writer(rows.device)
        self.contents.write_all(numbers, views, range(len(numbers)), writer)
        writer.finish()
        given = {
            number: [value if own is None else own[at] for value, own in zip(base, views, strict=True)]
            for at, number in enumerate(numbers)
        }
        found = [row[: places.inputs_end] for number in numbers if (row := left[number].inputs) is not None]
        slots = [slot for slot in places.input_slots if slot is not None]
        changed = find_changed(found, rows, slots, self._most_together)
        for number, row, is_changed in zip(numbers, found, changed, strict=False):
            if is_changed:
                self.check_inputs([(given[number], places.inputs_in(row))])
        return given
