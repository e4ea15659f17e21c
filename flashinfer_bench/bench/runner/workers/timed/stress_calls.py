"""Calls on inputs of stress cases, hidden among the timed calls of a job.

A request has some of them beside its usual calls, at secret positions. Their samples are dropped. The worker is asked
for them like for any other call.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.contents import DealtContents
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.stress import StressPlan
from flashinfer_bench.errors import DefinitionFault, WorkloadFault

UNTOUCHED: Final = 2
"""The first calls of a job keep their inputs: they tell how long a call takes."""
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


class StressInputs:
    """Inputs of a job's calls on stress cases, made ahead if there is time.

    Args:
        plan: changes the inputs.
        contents: makes usual ones.
    """

    def __init__(self, plan: StressPlan, contents: DealtContents) -> None:
        self._plan = plan
        self._contents = contents
        self._numbers = count(1 << 30)
        """Of the calls: no usual call has so large a number."""
        self._usual: deque[tuple[int, list[Any]]] = deque()
        """Numbers of calls, with inputs that no case has changed yet."""
        self._ahead: deque[tuple[str, int, list[Any]]] = deque()
        self._has_failed = False

    @property
    def cases(self) -> list[str]:
        """The case of each call, in the order in which they come."""
        return self._plan.calls

    @property
    def changed(self) -> list[bool]:
        """Which inputs any case changes; the others are those of the call's number."""
        return [free is not None for free in self._plan.free]

    def make_ahead(self, is_over: Callable[[], bool]) -> None:
        """Make inputs of the calls that come first, until it is over; nothing of large ones.

        A worker's answer is still to come, so nothing is raised here: what fails fails again when it is taken.
        """
        cases = self.cases
        if self._has_failed or bytes_of(self._contents.base) * len(cases) > AHEAD_BYTES:
            return
        try:
            if not self._usual and not self._ahead:
                numbers = [next(self._numbers) for _ in cases]
                self._usual.extend(zip(numbers, self._contents.make_all(numbers), strict=True))
            while self._usual and not is_over():
                self._ahead.append(self._make(cases[len(self._ahead)]))
        except (DefinitionFault, WorkloadFault, torch.OutOfMemoryError, MemoryError):
            self._has_failed = True
            self._usual.clear()

    def take(self, case: str) -> tuple[int, list[Any]]:
        """Return the number of the next call on a case, and its inputs."""
        is_ahead = bool(self._ahead) and self._ahead[0][0] == case
        _, number, inputs = self._ahead.popleft() if is_ahead else self._make(case)
        return number, inputs

    def _make(self, case: str) -> tuple[str, int, list[Any]]:
        if not self._usual:
            number = next(self._numbers)
            self._usual.append((number, self._contents.make(number)))
        number, inputs = self._usual.popleft()
        self._plan.change(case, number, [one if isinstance(one, torch.Tensor) else None for one in inputs])
        return case, number, inputs


@dataclass
class StressSchedule:
    """When the calls on inputs of stress cases come.

    Args:
        inputs: makes their inputs.
        names: their cases, in the order in which they come.
        calls: that the job is expected to have.
    """

    inputs: StressInputs
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
