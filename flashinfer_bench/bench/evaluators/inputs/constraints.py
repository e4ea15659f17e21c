"""Check the constraints of a definition on real axes and inputs. The syntax tree is walked; no code is executed.

A constraint may use axes, inputs, numbers, arithmetic, comparisons, and/or/not, subscripts, `.shape`, `.ndim`, `len`
and the methods in `METHODS`. Any other constraint cannot be checked: it is noted, and the workload is
used nevertheless. So it is with a constraint that the axes of a workload break, whatever the inputs are: its author
chose these sizes, and published references cope with them. Imports no torch: `validate` tells of such workloads, too.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.expression import parse_expression
from flashinfer_bench.data.workload import Workload
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


_TURNED: Final[Mapping[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Gt: ast.Lt,
    ast.GtE: ast.LtE,
}


class Uncheckable(Exception):
    """The constraint has an expression that is not supported here, or uses an input that is not given."""


_FAILURES: Final = (*(Uncheckable, TypeError, AttributeError, IndexError, ZeroDivisionError, RuntimeError, ValueError),)


@dataclass(frozen=True, eq=False)
class Shape:
    """Stands for a tensor of which only the shape is known: whatever asks for its values raises."""

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

    def __bool__(self) -> bool:
        raise Uncheckable("its values are not known")

    def __eq__(self, other: object) -> bool:
        raise Uncheckable("its values are not known")

    __hash__ = None  # type: ignore[assignment]  # as of all that is equal to nothing


class Bounds(NamedTuple):
    """Between which numbers constraints keep the values of an input."""

    least: float = -math.inf
    most: float = math.inf

    @property
    def are_free(self) -> bool:
        """Whether there are none."""
        return self == Bounds()


def find_bounds(constraints: Sequence[str], name: str, axes: Mapping[str, int]) -> Bounds | None:
    """Return the bounds that constraints put on the values of an input.

    Args:
        constraints: Python expressions.
        name: the input's name.
        axes: the size of every axis.

    Returns:
        The bounds; None where a constraint asks for something else of the values, or cannot be read.
    """
    bounds = Bounds()
    for constraint in constraints:
        try:
            tree = parse_expression(constraint)
            if not _asks_for_values(tree, name):
                continue
            for side, kind, limit in _list_sides(tree, name):
                number = _evaluate(limit, axes)
                match side, kind:
                    case "max" | "", ast.Lt() | ast.LtE():
                        most = math.ceil(number) - 1 if isinstance(kind, ast.Lt) else math.floor(number)
                        bounds = bounds._replace(most=min(bounds.most, most))
                    case "min" | "", ast.Gt() | ast.GtE():
                        least = math.floor(number) + 1 if isinstance(kind, ast.Gt) else math.ceil(number)
                        bounds = bounds._replace(least=max(bounds.least, least))
                    case _:
                        return None
        except _FAILURES:
            return None
    return bounds


def _asks_for_values(node: ast.AST, name: str) -> bool:
    match node:
        case ast.Name(id=found):
            return found == name
        case ast.Attribute(attr=attribute) if attribute in ATTRIBUTES:
            return False
        case ast.Call(func=ast.Attribute(attr="numel" | "dim")) | ast.Call(func=ast.Name(id="len")):
            return False
        case _:
            return any(_asks_for_values(child, name) for child in ast.iter_child_nodes(node))


def _list_sides(node: ast.expr, name: str) -> Iterator[tuple[str, ast.cmpop, ast.expr]]:
    """Yield each comparison of an input's values: "min", "max" or "" for all of them, how, and with what.

    Raises:
        Uncheckable: the constraint is no such comparison.
    """
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            for part in parts:
                if _asks_for_values(part, name):
                    yield from _list_sides(part, name)
        case ast.Call(func=ast.Attribute(value=owner, attr="all"), args=[]):
            yield from _list_sides(owner, name)
        case ast.Compare(left=left, ops=ops, comparators=others):
            for one, op, other in zip((left, *others), ops, others, strict=False):
                if _asks_for_values(one, name):
                    yield _name_side(one, name), op, other
                elif _asks_for_values(other, name):
                    yield _name_side(other, name), _TURNED.get(type(op), type(op))(), one
        case _:
            raise Uncheckable("it is no comparison")


def _name_side(node: ast.expr, name: str) -> str:
    match node:
        case ast.Name(id=found) if found == name:
            return ""
        case ast.Call(func=ast.Attribute(value=ast.Name(id=found), attr="min" | "max" as method)) if found == name:
            return method
        case ast.Call(func=ast.Attribute(value=owner, attr="item"), args=[]):
            return _name_side(owner, name)
        case _:
            raise Uncheckable("it asks for more than the bounds of values")


def find_strange_names(definition: Definition) -> dict[str, list[str]]:
    """Return the constraints that use names which are no axis and no input, each with these names in order.

    Such a constraint is never checked. The names of called functions count as names, too, except `len`.
    """
    known = {*definition.axes, *definition.inputs, "len"}
    strange = {}
    for constraint in definition.constraints:
        with suppress(ValueError):  # no expression: told when the definition is read
            names = {node.id for node in ast.walk(parse_expression(constraint)) if isinstance(node, ast.Name)}
            if names - known:
                strange[constraint] = sorted(names - known)
    return strange


def find_broken_by_axes(definition: Definition, workload: Workload) -> dict[str, str]:
    """Return the constraints that the axes of a workload break, whatever the inputs are, each with what to tell.

    Axes that cannot be bound break none: they are told elsewhere.
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
    return _sort_out(definition.constraints, values)[0]


def check_constraints(constraints: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Check constraints; return those that cannot be checked, each with the reason.

    Args:
        constraints: Python expressions.
        values: every axis and input by name; None for an input that is left out.

    Raises:
        WorkloadFault: one or more do not hold; all of them are named.
    """
    broken, unchecked = _sort_out(constraints, values)
    if broken:
        raise WorkloadFault(f"the inputs break the definition's constraints: {'; '.join(broken.values())}")
    return unchecked


def _sort_out(constraints: Sequence[str], values: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """Return the constraints that do not hold, each with what to tell, and those without an answer, with the reason."""
    broken: dict[str, str] = {}
    unchecked = []
    for constraint in constraints:
        try:
            tree = parse_expression(constraint)
            if not _is_true(_evaluate(tree, values)):
                broken[constraint] = _describe_broken(constraint, tree, values)
        except _FAILURES as error:
            unchecked.append(f"{constraint!r}: {error}")
    return broken, unchecked


def _evaluate(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() as value):
            return value
        case ast.Name(id=name):
            if values.get(name) is None:
                raise Uncheckable(f"{name} is no axis and no input that is given")
            return values[name]
        case ast.Attribute(value=owner, attr=attribute) if attribute in ATTRIBUTES:
            return getattr(_evaluate(owner, values), attribute)
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=[], keywords=[]) if method in METHODS:
            return getattr(_evaluate(owner, values), method)()
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


def _index(node: ast.expr, values: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Slice):
        return slice(*(None if end is None else _evaluate(end, values) for end in (node.lower, node.upper, node.step)))
    if isinstance(node, ast.Tuple):
        return tuple(_index(element, values) for element in node.elts)
    return _evaluate(node, values)


def _is_true(value: Any) -> bool:
    """Tell whether a result is true; a tensor is true where all its elements are."""
    return bool(value.all()) if hasattr(value, "all") else bool(value)


def _describe_broken(constraint: str, tree: ast.expr, values: Mapping[str, Any]) -> str:
    """Say that a constraint does not hold, with both sides of a comparison where they are single numbers."""
    told = f"{constraint!r} does not hold"
    if not isinstance(tree, ast.Compare) or len(tree.ops) != 1:
        return told
    sides = [_evaluate(side, values) for side in (tree.left, tree.comparators[0])]
    if any(hasattr(side, "numel") and side.numel() != 1 for side in sides):
        return told
    left, right = (side.item() if hasattr(side, "item") else side for side in sides)
    return f"{told} ({left} and {right})"
