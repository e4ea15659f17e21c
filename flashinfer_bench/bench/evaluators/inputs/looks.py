"""What a reference looks for, by its source: names and comparisons, not texts and comments.

Stress cases (`stress.py`) depend on it: a guard against infinite numbers, for example, shows only if one comes.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

INFINITE: Final = (math.inf, -math.inf)
NOT_FINITE: Final = {
    "isfinite": (math.nan, *INFINITE),
    "isnan": (math.nan,),
    "isinf": INFINITE,
    "isposinf": INFINITE,
    "isneginf": INFINITE,
    "nan_to_num": (math.nan,),
    "nan_to_num_": (math.nan,),
    "nansum": (math.nan,),
    "nanmean": (math.nan,),
}
"""Function → values that it looks for. `nan_to_num` makes infinite numbers so large that they are all of a norm."""
ZEROS: Final = frozenset({"count_nonzero", "nonzero", "heaviside"})
"""Functions to which a zero differs from a small number."""
EMPTY: Final = frozenset({"any", "all", "isnan", "nan_to_num"})
"""Functions by which a reference says what rows without a true element give."""
GATES: Final = frozenset({"sigmoid", "sigmoid_", "logsigmoid", "softplus", "hardsigmoid", "expit"})
"""Functions of a gate, which says how much of something is kept."""
SCANS: Final = frozenset({"cumsum", "cumprod", "logcumsumexp", "cumsum_", "cumprod_", "associative_scan"})
"""Functions in which the first elements count for all that follow."""
MIXES: Final = frozenset({"lerp", "mul", "addcmul", "where"})
"""Functions that keep a part of an argument."""
VIEWS: Final = frozenset(
    {
        "float",
        "double",
        "to",
        "unsqueeze",
        "view",
        "reshape",
        "transpose",
        "squeeze",
        "flip",
    }
)
"""Methods of a tensor that keep its values."""


class Looks(NamedTuple):
    """What a source looks for."""

    not_finite: tuple[float, ...] = ()
    """Values that are no finite numbers."""
    guarded: frozenset[str] = frozenset()
    """Names whose values are looked at for them."""
    zeros: bool = False
    """Whether it tells zeros from other numbers."""
    empty_rows: bool = False
    """Whether it says what rows without a true element give."""
    gates: frozenset[str] = frozenset()
    """Names that a sigmoid or softplus is applied to, if a state is carried from step to step."""


@lru_cache(maxsize=256)
def look_at(source: str) -> Looks:
    """Return what a source looks for; nothing if it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Looks()
    fields = [getattr(node, key, None) for node in nodes for key in ("id", "attr", "name")]
    names = {name for name in fields if isinstance(name, str)}
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    decays: list[Any] = [
        inner
        for call in calls
        for one in _operands(call, 1)
        if _called(call) == _called(inner := getattr(one, "operand", one)) == "exp"
    ]  # exp(-exp(x))
    gates = [call for call in calls if _called(call) in GATES] + decays
    is_carried = bool(names & SCANS) or any(map(_carries, nodes))
    return Looks(
        tuple({value: None for name in sorted(names & NOT_FINITE.keys()) for value in NOT_FINITE[name]}),
        _subjects(call for call in calls if _called(call) in NOT_FINITE),
        bool(names & ZEROS) or any(map(_compares_with_zero, nodes)),
        bool(names & EMPTY),
        _subjects(gates) if is_carried else frozenset(),
    )


def _called(node: ast.AST) -> str:
    """Return the last name of a function that is called; "" for other nodes."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name
        case _:
            return ""


def _operands(call: ast.Call, most: int | None = None) -> list[ast.expr]:
    """Return the first arguments of a call, and the object whose method it is."""
    receiver = [call.func.value] if isinstance(call.func, ast.Attribute) else []
    return call.args[:most] + receiver


def _subjects(calls: Iterable[ast.Call]) -> frozenset[str]:
    """Return the names that functions are applied to: `f(x)`, `x.f()`, `f(-x[t].float() + bias)`."""
    return frozenset(_plain_name(one) for call in calls for one in _operands(call, 1)) - {""}


def _plain_name(node: ast.expr) -> str:
    """Return the name of an input, of a part of it, or of the first term of a sum; "" for other values."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.UnaryOp(op=ast.USub(), operand=inner) | ast.Subscript(value=inner):
            return _plain_name(inner)
        case ast.BinOp(left=inner, op=ast.Add() | ast.Sub()):
            return _plain_name(inner)
        case ast.Call(func=ast.Attribute(value=inner, attr=method)) if method in VIEWS:
            return _plain_name(inner)
        case _:
            return ""


def _carries(node: ast.AST) -> bool:
    """Tell whether a loop multiplies or mixes a value and keeps it under its name. A sum over heads does not."""
    if not isinstance(node, ast.For | ast.While):
        return False
    for statement in ast.walk(node):
        match statement:
            case ast.AugAssign(target=ast.Name(), op=ast.Mult()):
                return True
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                if any(name in map(_plain_name, _mixed(part)) for part in ast.walk(value)):
                    return True
            case _:
                pass
    return False


def _mixed(node: ast.AST) -> list[ast.expr]:
    """Return the factors of a product, or the operands of a function that keeps a part of one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [node.left, node.right]
    return _operands(node) if isinstance(node, ast.Call) and _called(node) in MIXES else []


def _compares_with_zero(node: ast.AST) -> bool:
    """Tell whether values are compared with zero; shapes and sizes are no values."""
    match node:
        case ast.Compare(
            left=left,
            ops=[ast.Eq() | ast.NotEq()],
            comparators=[ast.Constant(value=value)],
        ):
            return value in (0, 0.0) and bool(_plain_name(left))
        case ast.Call(func=ast.Attribute(attr="eq" | "ne"), args=[ast.Constant(value=value)]):
            return value in (0, 0.0)
        case _:
            return False
