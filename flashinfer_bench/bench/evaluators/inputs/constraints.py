"""Checks the constraints of a definition on real axes and inputs.

A constraint may use axes, inputs, numbers, arithmetic, comparisons, and/or/not, subscripts, `.shape`, `.ndim`, `len`
and the methods in `ATTRIBUTES`. Only such an expression is evaluated; no other code of a data set is executed. Any
other constraint cannot be checked: it is noted, and the workload is still used. A constraint that a workload's axes
break for all inputs is also only noted: the author chose these sizes, and published references handle them. This module
imports no torch, because `validate` also reports such workloads.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.expression import parse_expression
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import WorkloadFault

ATTRIBUTES: Final = frozenset({"item", "max", "min", "sum", "all", "any", "numel", "dim", "shape", "ndim"})
"""Attributes of a tensor that a constraint may use, and methods that it may call without arguments."""
UNDERSTOOD: Final = (
    *(ast.Name, ast.Load, ast.Subscript, ast.Slice, ast.Tuple, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.unaryop, ast.operator, ast.boolop, ast.cmpop),
)
"""AST nodes that are allowed. `_evaluate` checks constants, attributes and calls."""
REFUSED: Final = (ast.Pow, ast.LShift, ast.MatMult, ast.In, ast.NotIn, ast.Is, ast.IsNot)
"""Operators that are not allowed: they make huge numbers, or compare no numbers."""


class Uncheckable(Exception):
    """The constraint has an expression that is not supported here, or uses an input that is not given."""


_FAILURES: Final = (Uncheckable, TypeError, AttributeError, IndexError, ArithmeticError, RuntimeError, ValueError)


@dataclass(frozen=True, eq=False)
class Shape:
    """Stands for a tensor with a known shape and no values; reading its values raises an error."""

    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def dim(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    def numel(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        raise Uncheckable("its values are not known")

    __hash__ = None  # type: ignore[assignment]  # a class without equality has no hash


def asking_for(constraints: Sequence[str], name: str) -> list[str]:
    """Return the constraints that use an input's values, not only its shape."""
    value = re.compile(rf"\b{re.escape(name)}\b(?!\.(shape|ndim|numel|dim)\b)")
    return [text for text in constraints if value.search(re.sub(rf"\blen\({re.escape(name)}\)", "", text))]


def find_strange_names(definition: Definition) -> dict[str, list[str]]:
    """Return the constraints that use unknown names (neither an axis nor an input), each with these names in order.

    Such a constraint is never checked. The names of called functions count as names, too, except `len`.
    """
    known = {*definition.axes, *definition.inputs, "len"}
    strange = {}
    for constraint in definition.constraints:
        with suppress(ValueError):  # a constraint that is no expression is reported when the definition is read
            names = {node.id for node in ast.walk(parse_expression(constraint)) if isinstance(node, ast.Name)}
            if names - known:
                strange[constraint] = sorted(names - known)
    return strange


def find_broken_by_axes(definition: Definition, workload: Workload) -> dict[str, str]:
    """Return the constraints that the axes of a workload break for all inputs, each with a message.

    Axes that `bind_axes` rejects give no message here, since they are reported elsewhere.
    """
    if not definition.constraints:
        return {}
    try:
        values: dict[str, Any] = {**definition.bind_axes(workload.axes)}
        shapes = definition.get_input_shapes(workload.axes)
    except ValueError:
        return {}
    for (name, spec), shape in zip(definition.inputs.items(), shapes, strict=True):
        if shape is not None and not (spec.optional and name not in workload.inputs):
            values.setdefault(name, Shape(shape))
    return find_broken(definition.constraints, values)[0]


def check_constraints(constraints: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Check constraints; return the constraints that cannot be checked, each with the reason.

    Args:
        constraints: Python expressions.
        values: every axis and input by name; None for an omitted input.

    Raises:
        WorkloadFault: a constraint does not hold; the message names all such constraints.
    """
    broken, unchecked = find_broken(constraints, values)
    if broken:
        raise WorkloadFault(f"the inputs break the definition's constraints: {'; '.join(broken.values())}")
    return unchecked


def find_broken(constraints: Sequence[str], values: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the broken constraints, each with a message, and the constraints that cannot be checked, each with the
    reason."""
    broken: dict[str, str] = {}
    unchecked = []
    for constraint in constraints:
        try:
            if not _evaluate(parse_expression(constraint), values):
                broken[constraint] = f"{constraint!r} does not hold{_describe_sides(constraint, values)}"
        except _FAILURES as error:
            unchecked.append(f"{constraint!r}: {error}")
    return broken, unchecked


class _Names(dict[str, Any]):
    """Axes and inputs by name. A tensor, and every tensor computed from it, is true if all elements are true."""

    def __getitem__(self, name: str) -> Any:
        value = self.get(name)
        if value is None:
            raise Uncheckable(f"{name} is no axis and no input that is given")
        kind: Any = type(value)
        return value.as_subclass(_find_whole(kind)) if hasattr(value, "as_subclass") else value


@cache
def _find_whole(kind: type) -> type:
    return type("Whole", (kind,), {"__bool__": lambda one: bool(one.all().item())})


def _evaluate(tree: ast.expr, values: Mapping[str, Any]) -> Any:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=bool() | int() | float()) | ast.Call(func=ast.Attribute(), args=[], keywords=[]):
                is_understood = True
            case ast.Call(func=ast.Name(id="len"), args=[_], keywords=[]):
                is_understood = True
            case _:
                is_understood = isinstance(node, UNDERSTOOD) or getattr(node, "attr", "") in ATTRIBUTES
                is_understood &= not isinstance(node, REFUSED)
        if not is_understood:
            raise Uncheckable(f"{ast.unparse(node)!r} is not understood in a constraint")
    return eval(compile(ast.Expression(tree), "constraint", "eval"), {"__builtins__": {}}, _Names(values, len=len))


def _describe_sides(constraint: str, values: Mapping[str, Any]) -> str:
    """Return both sides of a broken comparison, in parentheses, if they are single numbers."""
    tree = parse_expression(constraint)
    with suppress(*_FAILURES):
        left, right = (_evaluate(side, values) for side in (tree.left, *tree.comparators))  # type: ignore[attr-defined]
        left, right = (side.item() if hasattr(side, "item") else side for side in (left, right))
        return f" ({left} and {right})"
    return ""
