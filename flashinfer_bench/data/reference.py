"""Reads Python source without running it: the names that a module binds, and the parameters of its functions."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

ENTRY_NAME: Final = "run"
"""The entry function of a reference."""
BYTE_ORDER_MARK: Final = "\ufeff"
"""Some editors write this mark at the start of a file. Python ignores the mark in a file, but refuses it in a
string."""
SAME_ARGUMENTS: Final = frozenset({"no_grad", "inference_mode", "compile", "cache", "lru_cache"})
"""Decorators that do not change a function's arguments."""
OF_DEVICES: Final = frozenset({"jit", "kernel", "prim_func"})
"""Decorators of device functions, such as those of Triton and CuTe DSL."""
A_CLASS: Final = "is a class; it has to be a function, or an instance"
MOST_CHARACTERS: Final = 1 << 18
"""Longest source that is parsed, in characters. Above this limit, parsing takes seconds, and a thousand times the
source's size in memory."""


class ModuleMetadata(NamedTuple):
    """The facts from the syntax tree of a module."""

    names: Mapping[str, str | None]
    """Top-level name ("*": a star import) → why a call of the object never returns tensors; None if a call may return
    tensors."""
    functions: Sequence[str]
    """Names of the top-level functions except device functions, in their order."""
    signatures: Mapping[str, inspect.Signature]
    """Parameters of the functions whose arguments no decorator changes."""
    packages: frozenset[str]
    """The imported modules and their parents, from anywhere in the source. `from a import b` counts as an import
    of the module `a.b`."""
    imported: frozenset[str] = frozenset()
    """The top-level names that imports bind."""


@lru_cache(maxsize=1024)
def read_module(source: str) -> ModuleMetadata:
    """Parse a module; raise ValueError with the reason if it does not parse."""
    tree = parse_source(source)
    bound = dict(_find_bindings(tree.body))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(*(_with_parents(alias.name) for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            packages.update(*(_with_parents(f"{node.module}.{alias.name}") for alias in node.names))
    return ModuleMetadata(
        names={name: _why_not_called(node) for name, node in bound.items()},
        functions=[one.name for one in functions if OF_DEVICES.isdisjoint(map(_name_of, one.decorator_list))],
        signatures={
            name: _signature_of(node)
            for name, node in bound.items()
            if isinstance(node, ast.FunctionDef) and SAME_ARGUMENTS.issuperset(map(_name_of, node.decorator_list))
        },
        packages=frozenset(packages),
        imported=frozenset(name for name, node in bound.items() if isinstance(node, (ast.Import, ast.ImportFrom))),
    )


def _with_parents(module: str) -> Iterator[str]:
    return accumulate(module.split("."), "{}.{}".format)


def parse_source(source: str) -> ast.Module:
    """Return the syntax tree of a module; raise ValueError with the reason if it does not parse."""
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a docstring are harmless
            return ast.parse(source.removeprefix(BYTE_ORDER_MARK))
    except SyntaxError as error:
        where = f" (line {error.lineno} of the source)" if error.lineno is not None else ""
        raise ValueError(f"not Python: {error.msg}{where}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not Python: {error}") from error


def _find_bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every name that a module binds at import, with the binding statement."""
    left = list(reversed(body))
    while left:
        match node := left.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=targets):
                names = [item for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)]
                yield from ((item.id, node) for item in names if isinstance(item.ctx, ast.Store))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name, node
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, node) for alias in aliases)
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__")), orelse=others):
                left += reversed(others)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                handled = [one for handler in getattr(node, "handlers", ()) for one in handler.body]
                further = [*handled, *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
                left += reversed([*node.body, *further])
            case _:
                pass


def _why_not_called(node: ast.stmt) -> str | None:
    """Return why a call of the bound object never returns tensors; None if a call may return tensors, or if the name
    has decorators."""
    if getattr(node, "decorator_list", None):
        return None
    match node:
        case ast.AsyncFunctionDef():
            return "is async; it is called, not awaited"
        case ast.FunctionDef() if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in _own_nodes(node)):
            return "is a generator; it has to return its outputs"
        case ast.ClassDef(bases=[], keywords=[], body=body) if "__new__" not in dict(_find_bindings(body)):
            return A_CLASS
        case ast.Import():
            return "is a module; it has to be a function"
        case ast.Assign(value=ast.Constant()):
            return "is a constant; it has to be a function"
        case _:
            return None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without nested functions."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


def _name_of(decorator: ast.expr) -> str:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _signature_of(function: ast.FunctionDef) -> inspect.Signature:
    """Return a function's parameters. All defaults become None, because their expressions must not be evaluated.

    Raises:
        ValueError: two parameters have the same name, or an annotation is nested too deeply.
    """
    nothing, arguments = ast.Constant(None), copy(function.args)
    arguments.defaults = [nothing] * len(arguments.defaults)
    arguments.kw_defaults = [default and nothing for default in arguments.kw_defaults]
    plain = ast.Expression(ast.Lambda(arguments, nothing))
    try:
        code = compile(ast.fix_missing_locations(plain), "<parameters>", "eval")
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"not Python: {getattr(error, 'msg', error)}") from error
    return inspect.signature(eval(code))
