"""Small expressions in definitions: the syntax of constraints, and the value of an axis given as an expression.

Axis expressions are evaluated here over integers only, by walking the syntax tree: no code of a data set is run.
Constraints are only parsed here; they may speak of tensors, so the judge checks them when the inputs exist.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

MAX_EXPRESSION_LENGTH: Final = 10_000
"""A longer expression, in characters, is refused: no person wrote it."""
MAX_AXIS_VALUE: Final = 2**63 - 1
"""Largest value of an axis. It also limits the cost of `**` and `<<`."""

_BINARY: Final[Mapping[type[ast.operator], Callable[[int, int], int]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_CALLS: Final[Mapping[str, Callable[..., int]]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "int": int,
    "ceil_div": lambda value, by: -(-value // by),
    "cdiv": lambda value, by: -(-value // by),
}


def parse_expression(text: str) -> ast.expr:
    """Parse one Python expression; raise ValueError with the reason when it is none."""
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise ValueError(f"longer than {MAX_EXPRESSION_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not a Python expression: {error} in {text[:200]!r}") from error


def names_in(text: str) -> set[str]:
    """Return the names that an expression uses, without those of known functions."""
    tree = parse_expression(text)
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - _CALLS.keys()


def evaluate_axis(text: str, values: Mapping[str, int]) -> int:
    """Evaluate an axis expression over known axes; raise ValueError where it is not whole-number arithmetic."""
    try:
        value = _evaluate(parse_expression(text), values)
    except (ZeroDivisionError, TypeError, RecursionError) as error:
        raise ValueError(f"axis expression {text!r} cannot be evaluated: {error}") from error
    if value < 0:
        raise ValueError(f"axis expression {text!r} gives {value}; an axis is not negative")
    return value


def _evaluate(node: ast.expr, values: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int() as value):
            result = int(value)
        case ast.Name(id=name):
            if name not in values:
                raise ValueError(f"axis {name!r} has no value")
            result = values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_evaluate(operand, values)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            result = _divide_exactly(_evaluate(left, values), _evaluate(right, values))
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            result = _power(_evaluate(left, values), _evaluate(right, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            result = _BINARY[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _CALLS:
            result = _CALLS[name](*(_evaluate(argument, values) for argument in arguments))
        case _:
            raise ValueError(
                f"{ast.unparse(node)!r} is not allowed in an axis expression; use axes, whole numbers, "
                f"+ - * // / % ** and {', '.join(sorted(_CALLS))}"
            )
    if abs(result) > MAX_AXIS_VALUE:
        raise ValueError(f"{ast.unparse(node)!r} is larger than {MAX_AXIS_VALUE}")
    return result


def _divide_exactly(left: int, right: int) -> int:
    if left % right:
        raise ValueError(f"{left} / {right} is not whole; use // or ceil_div")
    return left // right


def _power(base: int, exponent: int) -> int:
    if not 0 <= exponent < 64:
        raise ValueError(f"exponent {exponent} is not between 0 and 63")
    return int(base**exponent)
