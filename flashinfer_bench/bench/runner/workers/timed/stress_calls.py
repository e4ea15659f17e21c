"""Calls on inputs of stress cases, hidden among the timed calls of a job.

A request has some of them beside its usual calls, at secret positions. Their samples are dropped. The worker is asked
for them like for any other call.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.errors import DefinitionFault, WorkloadFault

UNTOUCHED: Final = 2
"""The first calls of a job keep their inputs: they tell how long a call takes."""
FIRST_NUMBER: Final = 1 << 30
"""No usual call has so large a number."""
AHEAD_BYTES: Final = 1 << 26
"""Most bytes of inputs that are made ahead."""


@dataclass
class StressCall:
    """A call on inputs of a stress case."""

    case: str
    inputs: list[Any]
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor] | None = None
    """The reference's outputs for its inputs, if they were computed ahead."""


MadeCall = tuple[int, list[Any]]
"""The number of a call, and its inputs."""


@dataclass
class StressSchedule:
    """When the calls on inputs of stress cases come, and what they are given.

    Args:
        plan: changes the inputs.
        contents: makes usual ones.
    """

    plan: StressPlan
    contents: DealtContents
    chance: random.Random = field(default_factory=random.SystemRandom)
    made: list[StressCall] = field(default_factory=list)
    """The calls so far."""
    _next: deque[MadeCall] = field(default_factory=deque)
    """Calls that come next, of which the first `_changed` have the inputs of their cases."""
    _changed: int = 0
    _due: list[tuple[int, str]] = field(default_factory=list)
    """The number of a call among all that are made, and a case."""
    _calls: int = 0
    """All calls that were made."""
    _numbers: count[int] = field(default_factory=lambda: count(FIRST_NUMBER))

    def make_ahead(self, is_over: Callable[[], bool]) -> None:
        """Make inputs of one case after the other until it is over; nothing of large ones.

        Call it before `spread`, while a worker is busy with something that is not timed. Its answer is still to come,
        so nothing is raised here: what fails fails again when it is taken.
        """
        names = self.plan.calls
        if bytes_of(self.contents.base) * len(names) > AHEAD_BYTES:
            return
        with suppress(DefinitionFault, WorkloadFault, torch.OutOfMemoryError, MemoryError):
            self._fill(len(names))
            while self._changed < len(names) and not is_over():
                self._change(names[self._changed], self._next[self._changed])
                self._changed += 1

    def spread(self, names: Sequence[str], calls: int) -> None:
        """Have these cases come, in this order, at random among this many calls that follow."""
        first = self._calls + min(UNTOUCHED, max(calls - len(names), 0))
        numbers = range(first, max(self._calls + calls, first + len(names)))
        self._due = list(zip(sorted(self.chance.sample(numbers, len(names))), names, strict=True))

    @property
    def left(self) -> list[str]:
        """The cases that no call was made on yet."""
        return [name for _, name in self._due]

    def due(self, calls: int, most: int) -> list[str]:
        """Return the cases that a request has.

        Args:
            calls: usual calls that are to be made.
            most: calls of a request at most.
        """
        found: list[str] = []
        for number, name in self._due:  # each makes the request longer, so that more may be due
            if len(found) == most or number >= self._calls + min(calls + len(found), most):
                break
            found.append(name)
        return found

    def pass_by(self, calls: int, taken: int) -> None:
        """Count the calls of a request, and take off what was due in it."""
        self._calls += calls
        self._due = self._due[taken:]

    def make(self, cases: Sequence[str]) -> list[MadeCall]:
        """Return the number of a call on each of these cases, which come next, and its inputs."""
        self._fill(len(cases))
        calls, changed = [self._next.popleft() for _ in cases], self._changed
        for case, call in zip(cases[changed:], calls[changed:], strict=True):
            self._change(case, call)
        self._changed = max(0, changed - len(calls))
        return calls

    def _fill(self, calls: int) -> None:
        """Have at least this many calls ready; their inputs are made together."""
        numbers = [*islice(self._numbers, max(0, calls - len(self._next)))]
        if numbers:
            self._next.extend(zip(numbers, self.contents.make_all(numbers), strict=True))

    def _change(self, case: str, call: MadeCall) -> None:
        number, inputs = call
        self.plan.change(case, number, [one if isinstance(one, torch.Tensor) else None for one in inputs])
