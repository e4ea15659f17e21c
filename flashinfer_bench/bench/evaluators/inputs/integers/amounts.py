"""Sizes that a reference computes, and computations that it applies to an input before the input indexes something.

A size is a formula of numbers, of the sizes of inputs, and of inputs that are single numbers: its value is known once a
workload is. `Reach` turns the computations round: it tells which values an input may have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

FAR: Final = 1 << 62
"""As good as no bound."""
ENDLESS: Final = FAR >> 20
"""Bounds above it bound nothing."""
LONGEST: Final = 64
"""Formulas of more parts have no value: each name may double them."""


class Extent(NamedTuple):
    """The size of one axis of an input."""

    name: str
    axis: int


@dataclass(frozen=True)
class Given:
    """The value of an input that is a single number."""

    name: str


@dataclass(frozen=True)
class Elements:
    """How many elements an input has."""

    name: str


@dataclass(frozen=True)
class Formula:
    """What one of + - * // % gives of two sizes."""

    kind: str
    left: Amount
    right: Amount
    parts: int = 1


NO_VALUE: Final = Formula("//", 0, 0)
Amount = int | Extent | Given | Elements | Formula
Leaf = Extent | Given | Elements


@dataclass(frozen=True)
class Applied:
    """What is done to the values of an input: each is combined with a number between two sizes, both included."""

    kind: str
    """One of + * // %; "negate"; "sum", of as many values; "least" and "most", which keep values at that or at more, or
    at that or at less."""
    least: Amount = 0
    most: Amount = 0


@dataclass(frozen=True)
class Reach:
    """What comes of an input by some computations, and has to be 0 or more, and less than a size."""

    below: Amount
    applied: tuple[Applied, ...] = ()
    takes_negative: bool = False
    """It may as well be counted from the end, as -1 for the last."""


def combine(kind: str, left: Amount, right: Amount) -> Amount:
    """Return the formula; of two numbers, their result where they have one."""
    result = _calculate(kind, left, right) if isinstance(left, int) and isinstance(right, int) else None
    if result is not None:
        return result
    parts = 1 + sum(one.parts for one in (left, right) if isinstance(one, Formula))
    return Formula(kind, left, right, parts) if parts <= LONGEST else NO_VALUE


def list_names(amount: Amount | Reach) -> list[str]:
    """List the inputs whose sizes or values a size depends on."""
    match amount:
        case int():
            return []
        case Formula(left=left, right=right):
            return list_names(left) + list_names(right)
        case Reach(below=below, applied=applied):
            return [
                name
                for one in (below, *(end for step in applied for end in (step.least, step.most)))
                for name in list_names(one)
            ]
        case _:
            return [amount.name]


def evaluate(amount: Amount, look_up: Callable[[Leaf], int | None]) -> int | None:
    """Return a size's value, given those of its parts; None where one of them has none."""
    if isinstance(amount, int):
        return amount
    if not isinstance(amount, Formula):
        return look_up(amount)
    left, right = evaluate(amount.left, look_up), evaluate(amount.right, look_up)
    return None if left is None or right is None else _calculate(amount.kind, left, right)


def find_range(
    reach: Reach,
    look_up: Callable[[Leaf], int | None],
    *,
    share: int = 1,
    dtype: tuple[int, int] = (-FAR, FAR),
    from_end: bool = False,
) -> tuple[int, int] | None:
    """Return the least and the most that an input may be, counted from 0; None where a size has no value.

    Args:
        reach: what comes of the input, and where it has to be.
        look_up: gives the value of a size.
        share: by how much the size is multiplied.
        dtype: the least and the most that all that is computed may be.
        from_end: whether what comes of the input may be negative, counted from the end.
    """
    size = evaluate(reach.below, look_up)
    if size is None:
        return None
    least, most = -size if from_end else 0, size * share - 1
    for step in reversed(reach.applied):
        least = least if least < -ENDLESS else max(least, dtype[0])
        most = most if most > ENDLESS else min(most, dtype[1])
        low, high = evaluate(step.least, look_up), evaluate(step.most, look_up)
        before = None if low is None or high is None or low > high else _undo(step.kind, (low, high), (least, most))
        if before is None:
            return None
        least, most = before
    return least, most


def _calculate(kind: str, left: int, right: int) -> int | None:
    match kind:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "//" if right:
            return left // right
        case "%" if right:
            return left % right
        case _:
            return None


def _undo(kind: str, by: tuple[int, int], to: tuple[int, int]) -> tuple[int, int] | None:
    """Return between which numbers a value has to be, so that it is between two others after a step.

    Numbers far from zero are bounds that say nothing; they may grow, and stay far.
    """
    (low, high), (least, most) = by, to
    match kind:
        case "+":
            return least - low, most - high
        case "negate":
            return -most, -least
        case "*" if low > 0:
            return -(-least // (low if least > 0 else high)), most // (high if most > 0 else low)
        case "//" if low > 0:
            return least * (high if least > 0 else low), most * (low if most > 0 else high) + low - 1
        case "sum" if low > 0:
            return max(least, 0), most // high
        case "%" if low > 0:
            if least > 0:
                return least, min(most, low - 1)
            return (-FAR, FAR) if high - 1 <= most else (0, most)
        case "least" if low <= most:
            return (-FAR if low >= least else least), most
        case "most" if high >= least:
            return least, (FAR if high <= most else most)
        case _:
            return None
