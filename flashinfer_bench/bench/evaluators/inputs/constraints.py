"""Check the constraints of a definition on real axes and inputs. The syntax tree is walked; no code is executed.

A constraint may use axes, inputs, numbers, arithmetic, comparisons, and/or/not, subscripts, `.shape`, `.ndim`, `len`
and the methods in `METHODS`. Any other constraint cannot be checked: it is noted, and the workload is
used nevertheless.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.data.expression import parse_expression
from flashinfer_bench.errors import WorkloadFault

METHODS: Final = frozenset({"item", "max", "min", "sum", "all", "any", "numel", "dim"})
"""Methods of a tensor that a constraint may call, without arguments."""
ATTRIBUTES: Final = frozenset({"shape", "ndim"})
_OPERATORS: Final[Mapping[type[ast.AST], Callable[..., Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Uncheckable(Exception):
    """The constraint has an expression that is not supported here, or uses an input that is not given."""


def check_constraints(constraints: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Check constraints; return those that cannot be checked, each with the reason.

    Args:
        constraints: Python expressions.
        values: every axis and input by name; None for an input that is left out.

    Raises:
        WorkloadFault: one or more do not hold; all of them are named.
    """
    broken, unchecked = [], []
    for constraint in constraints:
        try:
            tree = parse_expression(constraint)
            if not _is_true(_evaluate(tree, values)):
                broken.append(f"{constraint!r} does not hold{_sides(tree, values)}")
        except (Uncheckable, TypeError, IndexError, ZeroDivisionError, RuntimeError, ValueError) as error:
            unchecked.append(f"{constraint!r}: {error}")
    if broken:
        raise WorkloadFault(f"the inputs break the definition's constraints: {'; '.join(broken)}")
    return unchecked


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            if values.get(name) is None:
                raise Uncheckable(f"{name} is no axis and no input that is given")
            return values[name]
        case ast.Attribute(value=owner, attr=attribute) if attribute in ATTRIBUTES:
            return getattr(_tensor(_evaluate(owner, values), attribute), attribute)
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]) if method in METHODS:
            return getattr(_tensor(_evaluate(owner, values), method), method)()
        case ast.Call(func=ast.Name(id="len"), args=[argument], keywords=[]):
            return len(_evaluate(argument, values))
        case ast.Subscript(value=owner, slice=index):
            return _evaluate(owner, values)[_index(index, values)]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(operand, values))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(_is_true(_evaluate(part, values)) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(_is_true(_evaluate(part, values)) for part in parts)
        case ast.Compare(left=left, ops=ops, comparators=comparators) if all(type(op) in _OPERATORS for op in ops):
            sides = [_evaluate(side, values) for side in (left, *comparators)]
            steps = zip(ops, sides, sides[1:], strict=False)
            results = [_OPERATORS[type(op)](first, second) for op, first, second in steps]
            return results[0] if len(results) == 1 else all(_is_true(result) for result in results)
    raise Uncheckable(f"{ast.unparse(node)!r} is not understood in a constraint")


def _tensor(value: Any, what: str) -> torch.Tensor:
    if not isinstance(value, torch.Tensor):
        raise Uncheckable(f"a {type(value).__name__} has no {what}")
    return value


def _index(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Slice):
        return slice(*(None if end is None else _evaluate(end, values) for end in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Tuple):
        return tuple(_index(element, values) for element in node.elts)
    return _evaluate(node, values)


def _is_true(value: Any) -> bool:
    """Tell whether a result is true; a tensor is true where all its elements are."""
    return bool(value.all()) if isinstance(value, torch.Tensor) else bool(value)


def _sides(tree: ast.expr, values: Mapping[str, Any]) -> str:
    """Give both sides of a comparison as text; empty where they are not single numbers."""
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return ""
    sides = [_evaluate(side, values) for side in (tree.left, tree.comparators[0])]
    if any(isinstance(side, torch.Tensor) and side.numel() != 1 for side in sides):
        return ""
    left, right = (side.item() if isinstance(side, torch.Tensor) else side for side in sides)
    return f" ({left} and {right})"
