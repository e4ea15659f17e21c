"""Calls on inputs of other regimes, hidden among the timed calls of a trial.

Some calls of a request get such inputs in place of their own. Their readings are dropped, and the calls are made once
more on usual inputs: so no time comes of them. The worker is asked for them like for any other call.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.choose import Regimes
from flashinfer_bench.bench.runner.workers.timed.call_places import CallPlaces

UNTOUCHED: Final = 2
"""The first calls of a trial keep their inputs: they tell how long a call takes."""


@dataclass(frozen=True)
class RegimeCall:
    """A call on inputs of a regime: what it was given, and what it gave."""

    regime: str
    inputs: list[Any]
    outputs: list[torch.Tensor]


@dataclass
class RegimeSchedule:
    """The calls of one trial that get inputs of other regimes.

    Args:
        regimes: change the inputs.
        names: the regimes of the trial.
        calls: how many calls the trial is expected to have.
        first: the number of the first of them.
    """

    regimes: Regimes
    names: Sequence[str]
    calls: int
    first: int = 0
    chance: random.Random = field(default_factory=random.SystemRandom)
    made: list[RegimeCall] = field(default_factory=list)
    _due: list[tuple[int, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Choose the calls."""
        names = list(self.names)
        first = min(UNTOUCHED, max(self.calls - len(names), 0))
        numbers = range(self.first + first, self.first + max(self.calls, first + len(names)))
        self._due = list(zip(sorted(self.chance.sample(numbers, len(names))), names, strict=True))

    @property
    def left(self) -> list[str]:
        """The regimes that no call was made on yet."""
        return [name for _, name in self._due]

    def count_due(self, first: int, calls: int) -> int:
        """Return how many calls a request has to make beside so many usual ones, which begin with a number."""
        more = 0
        while (due := sum(number < first + calls + more for number, _ in self._due)) > more:
            more = due
        return more

    def hide_among(self, numbers: Sequence[int]) -> None:
        """Have those that are left come among these calls."""
        self._due = [(number, name) for number, (_, name) in zip(numbers, self._due, strict=False)]

    def hide(self, places: CallPlaces, indices: Sequence[int], numbers: Sequence[int], kept: int) -> dict[int, str]:
        """Change the inputs of those of a request's calls that are due; return position among them → regime.

        Args:
            places: where the calls lie; their inputs are written.
            indices: the calls' places.
            numbers: the calls' numbers.
            kept: the number of a call that keeps its inputs.
        """
        free = [position for position, number in enumerate(numbers) if number != kept]
        hidden: dict[int, str] = {}
        while self._due and free and numbers[-1] >= self._due[0][0]:
            position = free.pop(self.chance.randrange(len(free)))
            hidden[position] = self._due.pop(0)[1]
            self.regimes.change(hidden[position], numbers[position], places.inputs(indices[position]))
        if hidden:
            places.synchronize()
        return hidden

    def take(self, name: str, inputs: list[Any], outputs: Sequence[torch.Tensor]) -> None:
        """Keep a call on inputs of a regime."""
        self.made.append(RegimeCall(name, inputs, [output.clone() for output in outputs]))
