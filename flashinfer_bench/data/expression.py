"""Small expressions in definitions: the syntax of constraints, and the value of an axis given as an expression.

Axis expressions are evaluated here, over integers and exact fractions. The syntax tree is interpreted, so no code of a
data set runs. The size of an axis is a whole number: a division must be exact, or rounded by `//`, `int`, `ceil` or
`floor`. Constraints are only parsed here. Constraints may use tensors, so the judge evaluates them when the inputs
exist.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

MAX_EXPRESSION_LENGTH: Final = 1_000
"""Longest expression, in characters."""
KEPT: Final = 256
"""Number of cached parsed expressions. Every workload of a definition needs the expressions of the definition's
axes."""
MAX_AXIS_VALUE: Final = 2**63 - 1
"""Largest value of an axis. It also limits the cost of `**` and `<<`."""

Number = int | Fraction
"""The exact value of a part of an expression."""


def _ceil_div(value: Number, by: Number) -> Number:
    return -(-value // by)


def _power(base: Number, exponent: Number) -> Number:
    if not isinstance(exponent, int) or not 0 <= exponent < 64:
        raise ValueError(f"exponent {exponent} is not a whole number between 0 and 63")
    result: Number = base**exponent
    return result


_BINARY: Final[Mapping[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: Fraction(left) / right,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_COMPARED: Final[Mapping[type[ast.cmpop], Callable[[Number, Number], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "min": lambda *values: min(values),
    "max": lambda *values: max(values),
    "abs": abs,
    "int": int,
    "ceil": math.ceil,
    "floor": math.floor,
    "ceil_div": _ceil_div,
    "cdiv": _ceil_div,
}
_MODULE: Final = "math"
"""`math.ceil` is read as `ceil`. Expressions may call only the functions of `_CALLS`."""


@lru_cache(KEPT)
def parse_expression(text: str) -> ast.expr:
    """Parse one Python expression; raise ValueError with the reason if it is invalid."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"longer than {MAX_EXPRESSION_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python expression: {error} in {text[:200]!r}") from error


def names_in(text: str) -> frozenset[str]:
    """Return the names in an expression, except the names of known functions."""
    tree = parse_expression(text)
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name)) - {*_CALLS, _MODULE}


def order_axes(expressions: Mapping[str, str]) -> Sequence[str]:
    """Return the names of expression axes. Each axis comes after the axes in its expression.

    Raises:
        ValueError: some axes form a cycle.
    """
    uses = {name: names_in(text) & expressions.keys() for name, text in expressions.items()}
    try:
        return tuple(TopologicalSorter(uses).static_order())
    except CycleError as error:
        circle = ", ".join(sorted(set(error.args[1])))
        raise ValueError(f"the axes {circle} depend on each other, so their sizes are undefined") from None


def evaluate_axis(text: str, values: Mapping[str, int]) -> int:
    """Evaluate an axis expression over known axes; raise ValueError if the result is not a whole number of elements."""
    try:
        value = _evaluate(parse_expression(text), values)
    except (ZeroDivisionError, TypeError, RecursionError) as error:
        raise ValueError(f"axis expression {text!r} cannot be evaluated: {error}") from error
    if value.denominator != 1:
        raise ValueError(f"axis expression {text!r} gives {value}, which is not whole; use // or ceil_div")
    if value < 0:
        raise ValueError(f"axis expression {text!r} gives {value}; an axis is not negative")
    return int(value)


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> Number:
    match node:
        case ast.Constant(value=int() as value):
            result: Number = value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            result = Fraction(repr(value))  # exact: 0.1 is 1/10
        case ast.Name(id=name):
            if name not in values:
                raise ValueError(f"axis {name!r} has no value")
            result = values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_evaluate(operand, values)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.IfExp(test=ast.Compare(left=left, ops=[op], comparators=[right]), body=body, orelse=orelse) if (
            type(op) in _COMPARED
        ):
            holds = _COMPARED[type(op)](_evaluate(left, values), _evaluate(right, values))
            result = _evaluate(body if holds else orelse, values)
        case ast.Call(
            func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="math"), attr=name), args=arguments, keywords=[]
        ) if name in _CALLS:
            result = _CALLS[name](*(_evaluate(argument, values) for argument in arguments))
        case _:
            raise ValueError(
                f"{ast.unparse(node)!r} is not allowed in an axis expression; use axes, numbers, "
                f"+ - * // / % **, `a if b > c else d` and {', '.join(sorted(_CALLS))}"
            )
    if max(abs(result.numerator), result.denominator) > MAX_AXIS_VALUE:
        raise ValueError(f"{ast.unparse(node)!r} is larger than {MAX_AXIS_VALUE}")
    return result
