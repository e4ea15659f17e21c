"""How many calls are made: the two spellings of the counts in one value, and counts from a time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from flashinfer_bench.base.plain_values import to_number

MOST: Final = 10_000
"""A time never asks for more calls than this. A call of a microsecond would get a hundred thousand otherwise."""

LONGEST_S: Final = 1e6
"""A longer budget counts as this one: eleven days."""
MOST_GIVEN: Final = 10_000_000
"""A larger count is refused: no script waits for so many calls."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class WantedCount:
    """What was asked for of one kind of call: a count, or a time in milliseconds to fill."""

    count: int | None
    time_ms: float | None

    def resolve(self, per_call_ms: Callable[[], float]) -> int:
        """Return the count. The time of a call is asked for only if it is needed."""
        if self.count is not None:
            return self.count
        assert self.time_ms is not None  # one of the two is always there
        return max(1, int(min(MOST, self.time_ms / max(per_call_ms(), 1e-6))))


@dataclass(frozen=True)
class CountRule:
    """How one kind of call may be asked for: the names of its two parameters, and the bounds of the count."""

    count_name: str
    time_name: str
    fewest: int
    default: int
    """The count where neither parameter is given."""

    def want(self, count: int | None, time_ms: float | None) -> WantedCount:
        """Return what was asked for. Where both a count and a time are given, the count holds.

        Raises:
            ValueError: one of them is out of range.
        """
        count, time_ms = to_number(count), to_number(time_ms)  # scripts take them from numpy and torch
        if count is not None:
            is_whole = isinstance(count, int) and not isinstance(count, bool)
            if not is_whole or not self.fewest <= count <= MOST_GIVEN:
                bounds = f"from {self.fewest} to {MOST_GIVEN:,}"
                raise ValueError(f"{self.count_name} must be a whole number {bounds}, not {count!r}")
        if time_ms is not None and not (isinstance(time_ms, (int, float)) and time_ms > 0):
            raise ValueError(f"{self.time_name} must be above 0, not {time_ms!r}")
        if count is None and time_ms is None:
            count = self.default
        return WantedCount(count, None if count is not None else time_ms)


DRY_RUNS: Final = CountRule("dry_run_iters", "dry_run_time_ms", fewest=0, default=5)
"""The calls before the timed ones."""
ITERATIONS: Final = CountRule("num_iters", "repeat_time_ms", fewest=1, default=30)
"""The timed calls."""


def check_budget(time_budget_s: float) -> float:
    """Return a time budget in seconds as a finite number.

    Raises:
        ValueError: it is no number, or negative.
    """
    budget = to_number(time_budget_s)
    if not isinstance(budget, (int, float)) or not budget >= 0:
        raise ValueError(f"time_budget_s must be a number of seconds, not {time_budget_s!r}")
    return min(float(budget), LONGEST_S)


def choose(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    """Return what was given under either of two names of one parameter.

    Raises:
        ValueError: both were given, and differ.
    """
    if value is not None and other is not None and value != other:
        raise ValueError(f"{name}={value} and {other_name}={other} mean the same and differ: give one of them")
    return value if value is not None else other
