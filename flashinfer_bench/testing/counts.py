"""How many calls are made: the two spellings of the counts in one value, and counts from a time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

DEFAULT_DRY_RUNS: Final = 5
DEFAULT_ITERATIONS: Final = 30
MOST: Final = 10_000
"""A time never asks for more calls than this: a microsecond's call would get a hundred thousand."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class WantedCount:
    """What was asked for of one kind of call: a count, or a time in milliseconds to fill."""

    count: int | None
    time_ms: float | None

    def resolve(self, per_call_ms: Callable[[], float]) -> int:
        """Return the count; the time of a call is only asked for where it is needed."""
        if self.count is not None:
            return self.count
        assert self.time_ms is not None  # one of the two is always there
        return max(1, min(MOST, int(self.time_ms / max(per_call_ms(), 1e-6))))


def choose(name: str, value: Value | None, other_name: str, other: Value | None) -> Value | None:
    """Return what was given under either of two names of one parameter.

    Raises:
        ValueError: both were given, and differ.
    """
    if value is not None and other is not None and value != other:
        raise ValueError(f"{name}={value} and {other_name}={other} mean the same and differ: give one of them")
    return value if value is not None else other


def wanted_dry_runs(count: int | None, time_ms: float | None) -> WantedCount:
    """Return how many calls are made before the timed ones; a count goes before a time.

    Raises:
        ValueError: one of them is out of range.
    """
    return _wanted("dry_run_iters", count, "dry_run_time_ms", time_ms, fewest=0, default=DEFAULT_DRY_RUNS)


def wanted_iterations(count: int | None, time_ms: float | None) -> WantedCount:
    """Return how many calls are timed; a count goes before a time.

    Raises:
        ValueError: one of them is out of range.
    """
    return _wanted("num_iters", count, "repeat_time_ms", time_ms, fewest=1, default=DEFAULT_ITERATIONS)


def _wanted(
    name: str, count: int | None, time_name: str, time_ms: float | None, *, fewest: int, default: int
) -> WantedCount:
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < fewest):
        raise ValueError(f"{name} must be a whole number of at least {fewest}, not {count!r}")
    if time_ms is not None and not time_ms > 0:
        raise ValueError(f"{time_name} must be above 0, not {time_ms!r}")
    if count is None and time_ms is None:
        count = default
    return WantedCount(count, None if count is not None else time_ms)
