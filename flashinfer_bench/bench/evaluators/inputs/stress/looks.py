"""What a reference looks for, told by its source: names and comparisons; texts and comments are none.

Each of these says which inputs beside usual ones a definition needs: a guard against infinite numbers shows only where
one comes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

NAN: Final = "nan"
INFINITE: Final = "infinite"
NOT_FINITE: Final = {
    "isfinite": (NAN, INFINITE),
    "isnan": (NAN,),
    "isinf": (INFINITE,),
    "isposinf": (INFINITE,),
    "isneginf": (INFINITE,),
    "nan_to_num": (NAN,),
    "nan_to_num_": (NAN,),
    "nansum": (NAN,),
    "nanmean": (NAN,),
}
"""Name in a reference → what it looks for. `nan_to_num` makes infinite numbers so large that they are all of a norm."""
ZEROS: Final = frozenset({"count_nonzero", "nonzero", "heaviside"})
"""Names in a reference to which a zero is another thing than a small number."""
EMPTY: Final = frozenset({"any", "all", "isnan", "nan_to_num"})
"""Names in a reference that says what rows of nothing give."""
GATES: Final = frozenset({"sigmoid", "sigmoid_", "logsigmoid", "softplus", "hardsigmoid", "expit"})
"""Functions of a gate: how much of something is kept, or let through."""
REMEMBERS: Final = frozenset({"cumsum", "cumprod", "logcumsumexp", "cumsum_", "cumprod_", "associative_scan"})
"""Functions in which what comes first counts for all that follows."""
MIXES: Final = frozenset({"lerp", "mul", "addcmul", "where"})
"""Functions that keep a part of what they are given."""
STEPS: Final = frozenset({"float", "double", "to", "unsqueeze", "view", "reshape", "transpose", "squeeze", "flip"})
"""Methods of a tensor that leave its values as they are."""


class Looks(NamedTuple):
    """What a source looks for."""

    names: frozenset[str]
    """All names in it."""
    not_finite: frozenset[str]
    """Which values that are no finite numbers: NAN, INFINITE."""
    guarded: frozenset[str]
    """Names that these guards are given as they are."""
    looks_for_zeros: bool
    gates: frozenset[str]
    """Names that a sigmoid or softplus is given, where a state is carried from step to step."""

    @property
    def tells_of_empty_rows(self) -> bool:
        """Whether it says what comes of rows in which nothing is true."""
        return bool(self.names & EMPTY)


NOTHING: Final = Looks(frozenset(), frozenset(), frozenset(), False, frozenset())


@lru_cache(maxsize=256)
def look_at(source: str) -> Looks | None:
    """Tell what a source looks for; None where it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names = frozenset(name for node in nodes for name in _names(node))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    guards = [call for call in calls if _called(call) in NOT_FINITE]
    remembers = bool(names & REMEMBERS) or any(map(_carries, nodes))
    gates = [call for call in calls if _called(call) in GATES]
    twice = [inner for call in calls if _called(call) == "exp" for inner in _find_exponentials(call)]
    return Looks(
        names,
        frozenset(what for name in names & NOT_FINITE.keys() for what in NOT_FINITE[name]),
        frozenset(_given(guards)),
        bool(names & ZEROS) or any(map(_compares_with_zero, nodes)),
        frozenset(_given([*gates, *twice], in_sums=True)) if remembers else frozenset(),
    )


def _names(node: ast.AST) -> tuple[str, ...]:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return (name,)
        case ast.alias(name=name):
            return tuple(name.split("."))
        case _:
            return ()


def _called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def _given(calls: Iterable[ast.Call], *, in_sums: bool = False) -> Iterator[str]:
    """Give the names that calls are given first: `f(x)`, `x.f()`, `f(-x[t].float())`; in sums: `f(x + bias)`, too."""
    for call in calls:
        given = [*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        yield from (name for one in given if (name := _plain_name(_first_of_sum(one) if in_sums else one)))


def _first_of_sum(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        node = node.left
    return node


def _find_exponentials(call: ast.Call) -> Iterator[ast.Call]:
    """Give the inner call of `exp(-exp(x))`."""
    for one in (*call.args[:1], *([call.func.value] if isinstance(call.func, ast.Attribute) else [])):
        match one:
            case ast.UnaryOp(op=ast.USub(), operand=ast.Call() as inner) if _called(inner) == "exp":
                yield inner
            case _:
                pass


def _plain_name(node: ast.expr) -> str | None:
    """Return the name of a value that is an input's, or a part of one, with any sign."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=inner) | ast.Subscript(value=inner):
            return _plain_name(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in STEPS:
            return _plain_name(inner)
        case _:
            return None


def _carries(node: ast.AST) -> bool:
    """Tell of a loop that multiplies a value by something, or mixes it with something, and keeps that under its name.

    A sum over heads or experts is none.
    """
    if not isinstance(node, ast.For | ast.While):
        return False
    for statement in ast.walk(node):
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(_mixes(part, name) for part in ast.walk(value)):
                    return True
            case ast.AugAssign(target=ast.Name(), op=ast.Mult()):
                return True
            case _:
                pass
    return False


def _mixes(node: ast.AST, name: str) -> bool:
    match node:
        case ast.BinOp(op=ast.Mult(), left=left, right=right):
            return name in (_plain_name(left), _plain_name(right))
        case ast.Call(args=args) if _called(node) in MIXES:
            given = [*args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
            return name in map(_plain_name, given)
        case _:
            return False


def _compares_with_zero(node: ast.AST) -> bool:
    """Tell of a comparison of equality with a zero; one with a shape or a size is none of values."""
    match node:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[ast.Constant(value=value)]):
            return isinstance(value, int | float) and value == 0 and _plain_name(left) is not None
        case ast.Call(func=ast.Attribute(attr="eq" | "ne"), args=[ast.Constant(value=value)]):
            return isinstance(value, int | float) and value == 0
        case _:
            return False
