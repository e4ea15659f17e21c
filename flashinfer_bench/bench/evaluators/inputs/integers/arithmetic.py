"""What arithmetic does with the values that come from inputs: sums, differences, products, quotients, remainders."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from flashinfer_bench.bench.evaluators.inputs.integers.amounts import Amount, Applied, Extent, combine
from flashinfer_bench.bench.evaluators.inputs.integers.found import (
    Found,
    Held,
    Joint,
    Mask,
    Value,
    Within,
    is_single_number,
    to_amount,
    to_value,
)

KINDS: Final[Mapping[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
MOST_PARTS: Final = 4
"""Sums of so many inputs are followed."""
METHODS: Final[Mapping[str, str]] = {
    "add": "+",
    "sub": "-",
    "subtract": "-",
    "mul": "*",
    "multiply": "*",
    "floor_divide": "//",
    "remainder": "%",
}


def compute(found: Found, kind: str, left: Value, right: Value) -> Value:
    """Return what one of + - * // % gives of two values, and note where they go if nothing is known of that."""
    result: Value = None
    if isinstance(left, Joint) or isinstance(right, Joint):
        result = _apply_to_sum(found, kind, left, right)
    elif isinstance(left, Held) and isinstance(right, Held):
        result = _start(kind, left, right) or _add(found, kind, left, right)
    elif isinstance(left, Held) and isinstance(right, Mask):
        result = _hide(kind, left, right)
    elif isinstance(left, Mask) and isinstance(right, Held):
        result = _hide(kind, right, left)
    elif isinstance(left, Held):
        result = _apply(found, kind, left, right)
    elif isinstance(right, Held):
        result = _apply_turned(found, kind, left, right)
    else:
        result = _bound(kind, left, right)
        if isinstance(result, Within):
            result = found.keep(replace(result, of=_keep_source(found, kind, left, right)), left, right)
    return found.join_masks((left, right), is_plain=False) if result is None else result


def accumulate(found: Found, held: Held, axis: int | None) -> Value:
    """Return running sums of an input along an axis."""
    if axis is None or not held.is_whole or held.applied:
        return found.take(held)
    found.refused.add(held.name)  # padding would be in all sums behind it
    extent = Extent(held.name, axis)
    return held.apply("sum", extent, extent)


def find_bounds_of(value: Value) -> tuple[Amount, Amount] | None:
    """Return the least and the most that a value may be, where that does not depend on an input's elements."""
    if isinstance(value, Within):
        return value.least, value.most
    amount = to_amount(value)
    return None if amount is None else (amount, amount)


def _apply(found: Found, kind: str, held: Held, other: Value) -> Value:
    bounds = find_bounds_of(other)
    if bounds is None:
        return None
    found.keep(None, other)
    least, most = bounds
    kept = held.part() if isinstance(other, Within) and not other.is_single else held
    match kind:
        case "-":
            return kept.apply("+", combine("-", 0, most), combine("-", 0, least))
        case "%":
            amount = to_amount(other)
            if amount is None or (isinstance(amount, int) and amount <= 0):
                return None
            found.wrap(held, amount)
            return Within(0, combine("-", amount, 1), of=held.apply(kind, amount, amount))
        case _:
            return kept.apply(kind, least, most)


def _apply_turned(found: Found, kind: str, other: Value, held: Held) -> Value:
    """Return what comes of something that is no input, and then an input."""
    if kind == "-":
        return _apply(found, "+", held.apply("negate"), other)
    return _apply(found, kind, held, other) if kind in "+*" else None


def _hide(kind: str, held: Held, mask: Mask) -> Value:
    """Return a product of an input with what tells where it is no padding."""
    is_hidden = kind == "*" and mask == held.mask and not held.applied
    return held.part()._replace(has_no_padding=True) if is_hidden else None


def _start(kind: str, ends: Held, lengths: Held) -> Value:
    """Return where parts start, given running sums of their lengths, and the lengths: no later than they end."""
    extent = ends.applied[0].least if len(ends.applied) == 1 else None
    is_start = kind == "-" and extent is not None and ends.applied == (Applied("sum", extent, extent),)
    return ends.part() if is_start and lengths.name == ends.name and lengths.is_whole and not lengths.applied else None


def _add(found: Found, kind: str, *parts: Held) -> Value:
    """Return the sum of inputs; no more is known of each than that it has to be small."""
    found.take(*parts)
    return Joint(parts) if kind == "+" and len(parts) <= MOST_PARTS and all(part.is_exact for part in parts) else None


def _apply_to_sum(found: Found, kind: str, left: Value, right: Value) -> Value:
    joint, other = (left, right) if isinstance(left, Joint) else (right, left)
    if not isinstance(joint, Joint):
        return None
    if isinstance(other, Held):
        return _add(found, kind, *joint.parts, other)
    changed = [_apply(found, kind, part, other) for part in joint.parts[: None if kind == "*" else 1]]
    if kind not in ("+", "-", "*") or (kind == "-" and joint is right):
        return None
    parts = (*changed, *joint.parts[len(changed) :])
    return Joint(tuple(part for part in parts if isinstance(part, Held))) if None not in parts else None


def _keep_source(found: Found, kind: str, left: Value, right: Value) -> Held | None:
    """Return the input behind what was brought into a range, if one of two values is such, after one step more."""
    value: Value = None
    if isinstance(left, Within) and isinstance(right, Within) and left.of is not None and right.of is not None:
        return None
    if isinstance(left, Within) and left.of is not None:
        value = _apply(found, kind, left.of, right)
    elif isinstance(right, Within) and right.of is not None:
        value = _apply_turned(found, kind, left, right.of)
    held = value.of if isinstance(value, Within) else value
    return held if isinstance(held, Held) else None


def _bound(kind: str, left: Value, right: Value) -> Value:
    one, other = find_bounds_of(left), find_bounds_of(right)
    if one is None or other is None:
        return None
    if not isinstance(left, Within) and not isinstance(right, Within):
        return to_value(combine(kind, one[0], other[0]))
    is_single = all(is_single_number(side) for side in (left, right))
    match kind:
        case "+":
            return Within(combine("+", one[0], other[0]), combine("+", one[1], other[1]), is_single)
        case "-":
            return Within(combine("-", one[0], other[1]), combine("-", one[1], other[0]), is_single)
        case "*" if not isinstance(left, Within):
            return _bound(kind, right, left)
        case "*" | "//" if not isinstance(right, Within):
            return Within(combine(kind, one[0], other[0]), combine(kind, one[1], other[0]), is_single)
        case "%" if not isinstance(right, Within):
            return Within(0, combine("-", other[0], 1), is_single)
        case _:
            return None
