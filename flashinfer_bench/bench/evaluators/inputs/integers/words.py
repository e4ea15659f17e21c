"""Whether a reference takes an integer input apart as packed words, so that any bits may stand in it.

Names are followed through all assignments of the source, in any order. Where a part of a word may become an index, a
size or a condition, is an exponent, or is read as the bits of a float, not every word is valid: then the input is no
packed one here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

from flashinfer_bench.bench.evaluators.inputs.integers.indexing import list_parameters
from flashinfer_bench.data.reference import parse_module

FACTS: Final = frozenset({"shape", "device", "dtype", "ndim", "is_cuda", "layout"})
FACT_METHODS: Final = frozenset({"size", "numel", "nelement", "dim", "stride"})
CHOOSING: Final = re.compile(
    r"index_\w+|gather|scatter\w*|take\w*|embedding\w*|one_hot|narrow|select|split\w*|range|arange|linspace|bincount"
    r"|repeat\w*|zeros|ones|empty|full|new_\w+|view|reshape|expand|tile|int|bool|pow|float_power|ldexp|bitwise_left_shift"
)
"""Functions and methods whose arguments may be indices, sizes, conditions or exponents."""
GROWING: Final = frozenset({"exp", "exp2", "expm1", "cosh", "sinh"})
"""Functions of which large numbers make infinite ones."""
READ_OUT: Final = frozenset({"item", "tolist", "nonzero", "bincount", "unique", "numpy"})
"""Methods that bring values where they may become anything."""
ELEMENTWISE: Final = frozenset({"zeros_like", "ones_like", "empty_like"})
FLOATS: Final = re.compile(r"float|half|double|dtype|complex")
SHIFTS: Final = frozenset({"bitwise_right_shift", "__rshift__"})
ANDS: Final = frozenset({"bitwise_and", "__and__"})


class Words(NamedTuple):
    """What a reference does with the bits of an input."""

    is_masked: bool = False
    """It shifts and masks the input, one with what the other gives."""
    is_opened: bool = False
    """It looks at parts of the input at all: by shifts, masks, division or another dtype."""


@lru_cache(maxsize=256)
def find_words(source: str, name: str) -> Words:
    """Return what a reference does with the bits of an input; nothing where not every word would be valid.

    Args:
        source: the reference.
        name: the input's name.
    """
    try:
        return _read(parse_module(source), name)
    except (ValueError, RecursionError, MemoryError):
        return Words()


def _read(tree: ast.Module, name: str) -> Words:
    nodes = list(ast.walk(tree))
    functions = {node.name: node for node in nodes if isinstance(node, ast.FunctionDef)}
    links = [link for node in nodes for link in _list_links(node, functions)]
    names = _spread({name}, links)
    if any(_chooses(node, names) for node in nodes):
        return Words()
    shifts = [node for node in nodes if _is_operation(node, ast.RShift, SHIFTS) and _holds(node, names)]
    masks = [node for node in nodes if _is_operation(node, ast.BitAnd, ANDS) and _holds(node, names)]
    is_masked = _is_made_of(shifts, masks, links) or _is_made_of(masks, shifts, links)
    return Words(is_masked, bool(shifts or masks) or any(_opens(node, names) for node in nodes))


def _list_links(node: ast.AST, functions: dict[str, ast.FunctionDef]) -> Iterator[tuple[list[str], ast.expr]]:
    """Yield names that get what an expression gives."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield _names_of(targets), value
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield _names_of([target]), value
        case ast.AugAssign(target=target, value=value):
            yield _names_of([target]), value
        case ast.For(target=target, iter=value) | ast.comprehension(target=target, iter=value):
            yield _names_of([target]), value
        case ast.withitem(context_expr=value, optional_vars=ast.expr() as target):
            yield _names_of([target]), value
        case ast.Call(func=ast.Name(id=called), args=args, keywords=keywords) if called in functions:
            parameters = list_parameters(functions[called])
            is_plain = not any(isinstance(one, ast.Starred) for one in args) and len(args) <= len(parameters)
            for at, value in enumerate(args):
                yield [parameters[at]] if is_plain else parameters, value
            for keyword in keywords:
                yield parameters if keyword.arg is None else [keyword.arg], keyword.value
        case _:
            pass


def _names_of(targets: Iterable[ast.expr]) -> list[str]:
    """Return the names that targets bind or change; an index in a target is none."""
    names = []
    for target in targets:
        match target:
            case ast.Name(id=name):
                names.append(name)
            case ast.Subscript(value=owner) | ast.Attribute(value=owner) | ast.Starred(value=owner):
                names += _names_of([owner])
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                names += _names_of(parts)
            case _:
                pass
    return names


def _spread(names: set[str], links: list[tuple[list[str], ast.expr]]) -> frozenset[str]:
    """Return the names that may hold something of what some names hold."""
    found = set(names)
    while True:
        more = {one for targets, value in links if _holds(value, found) for one in targets}
        if more <= found:
            return frozenset(found)
        found |= more


def _holds(node: ast.AST, names: Iterable[str]) -> bool:
    """Tell whether an expression has values of some names, not only their shapes."""
    match node:
        case ast.Name(id=name):
            return name in names
        case ast.Attribute(attr=attribute) if attribute in FACTS:
            return False
        case ast.Call(func=ast.Attribute(attr=method)) if method in FACT_METHODS | ELEMENTWISE:
            return False
        case ast.Call(func=ast.Name(id="len")):
            return False
        case _:
            return any(_holds(child, names) for child in ast.iter_child_nodes(node))


def _is_operation(node: ast.AST, operator: type[ast.operator], functions: frozenset[str]) -> bool:
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op):
            return isinstance(op, operator)
        case ast.Call(func=ast.Attribute(attr=name)):
            return name in functions
        case _:
            return False


def _is_made_of(inner: list[ast.AST], outer: list[ast.AST], links: list[tuple[list[str], ast.expr]]) -> bool:
    """Tell whether an operation works on what another one gives, at once or by way of names."""
    made = {id(node) for node in inner}
    seeds = {
        one for targets, value in links if any(id(node) in made for node in ast.walk(value)) for one in targets
    } | {one for node in inner if isinstance(node, ast.AugAssign) for one in _names_of([node.target])}
    names = _spread(seeds, links)
    return any(
        _holds(node, names) or any(id(part) in made for part in ast.walk(node) if part is not node) for node in outer
    )


def _opens(node: ast.AST, names: frozenset[str]) -> bool:
    match node:
        case ast.BinOp(op=ast.FloorDiv() | ast.Mod(), left=left):
            return _holds(left, names)
        case ast.Call(func=ast.Attribute(value=owner, attr="view" | "remainder" | "fmod"), args=[_]):
            return _holds(owner, names)
        case _:
            return False


def _chooses(node: ast.AST, names: frozenset[str]) -> bool:
    """Tell whether values of some names may choose elements, sizes or what is executed, or be exponents or floats."""
    match node:
        case ast.Subscript(slice=index):
            return _holds(index, names)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) | ast.Assert(test=test):
            return _holds(test, names)
        case ast.BinOp(op=ast.Pow() | ast.LShift(), right=exponent):
            return _holds(exponent, names)
        case ast.comprehension(ifs=tests):
            return any(_holds(test, names) for test in tests)
        case ast.Call(func=ast.Attribute(value=owner, attr=method), args=args, keywords=keywords):
            parts = [*args, *(keyword.value for keyword in keywords)]
            held = [part for part in parts if _holds(part, names)]
            if method in READ_OUT | GROWING and (held or _holds(owner, names)):
                return True
            if method == "view" and _holds(owner, names) and any(FLOATS.search(ast.unparse(part)) for part in parts):
                return True
            return bool(held) and CHOOSING.fullmatch(method) is not None
        case ast.Call(func=ast.Name(id=function), args=args):
            return CHOOSING.fullmatch(function) is not None and any(_holds(part, names) for part in args)
        case _:
            return False
