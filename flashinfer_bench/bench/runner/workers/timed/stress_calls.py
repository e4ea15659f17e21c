"""Calls on inputs of stress cases, hidden among the timed calls of a job.

A request has some stress calls at secret positions, and drops their samples. The worker's requests do not show which
calls are stress calls.
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
"""Number of a job's first calls that get no stress inputs. These calls show how long a call takes."""
FIRST_NUMBER: Final = 1 << 30
"""Usual calls have lower numbers."""
AHEAD_BYTES: Final = 1 << 26
"""Maximum bytes of inputs that are made ahead."""


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
    """The positions and the inputs of the calls on stress cases.

    Args:
        plan: changes the inputs.
        contents: makes the usual inputs.
    """

    plan: StressPlan
    contents: DealtContents
    chance: random.Random = field(default_factory=random.SystemRandom)
    made: list[StressCall] = field(default_factory=list)
    """The calls so far."""
    _next: deque[MadeCall] = field(default_factory=deque)
    """The next calls. The first `_changed` calls have the inputs of their cases."""
    _changed: int = 0
    _due: list[tuple[int, str]] = field(default_factory=list)
    """Position of a call among all calls, and its case."""
    _calls: int = 0
    """Number of all calls so far."""
    _numbers: count[int] = field(default_factory=lambda: count(FIRST_NUMBER))

    def make_ahead(self, is_over: Callable[[], bool]) -> None:
        """Make inputs of one case after another until the wait is over. Large inputs are not made ahead.

        Call it before `spread`, while a worker does untimed work. The worker's answer is still due, so errors are
        suppressed here: they appear again when the call is taken.
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
        """Place these cases, in this order, at random positions among the next `calls` calls."""
        first = self._calls + min(UNTOUCHED, max(calls - len(names), 0))
        numbers = range(first, max(self._calls + calls, first + len(names)))
        self._due = list(zip(sorted(self.chance.sample(numbers, len(names))), names, strict=True))

    @property
    def left(self) -> list[str]:
        """The cases without a call so far."""
        return [name for _, name in self._due]

    def due(self, calls: int, most: int) -> list[str]:
        """Return the cases that belong to a request.

        Args:
            calls: number of usual calls to make.
            most: maximum number of calls of a request.
        """
        found: list[str] = []
        for number, name in self._due:  # each case makes the request longer, so that more cases can be due
            if len(found) == most or number >= self._calls + min(calls + len(found), most):
                break
            found.append(name)
        return found

    def pass_by(self, calls: int, taken: int) -> None:
        """Count the calls of a request, and remove its cases from the due cases."""
        self._calls += calls
        self._due = self._due[taken:]

    def make(self, cases: Sequence[str]) -> list[MadeCall]:
        """Return the numbers and the inputs of calls on these cases, which are the next cases."""
        self._fill(len(cases))
        calls, changed = [self._next.popleft() for _ in cases], self._changed
        for case, call in zip(cases[changed:], calls[changed:], strict=True):
            self._change(case, call)
        self._changed = max(0, changed - len(calls))
        return calls

    def _fill(self, calls: int) -> None:
        """Have at least this many calls ready. The inputs of these calls are made together."""
        numbers = [*islice(self._numbers, max(0, calls - len(self._next)))]
        if numbers:
            self._next.extend(zip(numbers, self.contents.make_all(numbers), strict=True))

    def _change(self, case: str, call: MadeCall) -> None:
        number, inputs = call
        self.plan.change(case, number, [one if isinstance(one, torch.Tensor) else None for one in inputs])
