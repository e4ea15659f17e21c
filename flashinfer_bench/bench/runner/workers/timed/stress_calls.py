"""Calls on inputs of stress cases, hidden among the timed calls of a job.

A request has some of them beside its usual calls, at secret positions. Their samples are dropped. The worker is asked
for them like for any other call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan

UNTOUCHED: Final = 2
"""The first calls of a job keep their inputs: they tell how long a call takes."""
FIRST_NUMBER: Final = 1 << 30
"""No usual call has so large a number."""


@dataclass
class StressCall:
    """A call on inputs of a stress case."""

    case: str
    inputs: list[Any]
    outputs: list[torch.Tensor]
    expected: list[torch.Tensor] | None = None
    """The reference's outputs for its inputs, if they were computed ahead."""


@dataclass
class StressSchedule:
    """When the calls on inputs of stress cases come, and what they are given.

    Args:
        plan: changes the inputs.
        contents: makes usual ones.
        names: their cases, in the order in which they come.
        calls: that the job is expected to have.
    """

    plan: StressPlan
    contents: DealtContents
    names: Sequence[str]
    calls: int
    chance: random.Random = field(default_factory=random.SystemRandom)
    made: list[StressCall] = field(default_factory=list)
    _due: list[tuple[int, str]] = field(default_factory=list)
    """The number of a call among all that are made, and a case."""
    _calls: int = 0
    """All calls that were made."""

    def __post_init__(self) -> None:
        """Choose the calls."""
        self._numbers = count(FIRST_NUMBER)
        self.spread(self.names, self.calls)

    def spread(self, names: Sequence[str], calls: int) -> None:
        """Have these come, in this order, at random among this many calls that follow."""
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

    def make(self, cases: Sequence[str]) -> list[tuple[int, list[Any]]]:
        """Return the number of a call on each of these cases, and its inputs."""
        if not cases:
            return []
        numbers = [*islice(self._numbers, len(cases))]
        calls = list(zip(numbers, self.contents.make_all(numbers), strict=True))
        for case, (number, inputs) in zip(cases, calls, strict=True):
            self.plan.change(case, number, [one if isinstance(one, torch.Tensor) else None for one in inputs])
        return calls
