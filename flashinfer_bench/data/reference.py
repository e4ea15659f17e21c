"""Reads Python source without running it: which names a module binds, and what parameters a function has.

`parse_reference` reads a definition's reference: whether it has a `run`, and how that is called.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Final, NamedTuple

ENTRY_NAME: Final = "run"
"""The function of a reference that is called."""
BYTE_ORDER_MARK: Final = "\ufeff"
"""Some editors begin a file with it. Python drops it when it reads a file, and refuses it in a string."""
SAME_ARGUMENTS: Final = frozenset({"no_grad", "inference_mode", "compile", "cache", "lru_cache"})
"""Decorators that leave a function's arguments as they are."""
MOST_CHARACTERS: Final = 1 << 18
"""Longest source that is parsed, in characters: parsing takes seconds, and a thousand times as many bytes of memory."""
MAIN_TESTS: Final = ("__name__ == '__main__'", "'__main__' == __name__")
"""Conditions that never hold here."""


class ReferenceFacts(NamedTuple):
    """What the syntax tree of a reference says."""

    signature: inspect.Signature | None
    """Of `run`, if that is a function whose arguments no decorator changes."""
    last_function: str | None
    """The last top-level function: the reference of definitions that were dumped from a library."""
    names: Mapping[str, str | None]
    """Each name that is bound at the top level, and why no call of it gives tensors; None if a call may."""


def parse_module(source: str) -> ast.Module:
    """Parse Python source; raise ValueError with the reason if it does not parse."""
    if len(source) > MOST_CHARACTERS:
        raise ValueError(f"it has more than {MOST_CHARACTERS:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in a docstring are the author's, and harmless
            return ast.parse(source.removeprefix(BYTE_ORDER_MARK))
    except SyntaxError as error:
        where = f" (line {error.lineno} of the source)" if error.lineno is not None else ""
        raise ValueError(f"not Python: {error.msg}{where}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"not Python: {error}") from error


@lru_cache(maxsize=1024)
def parse_reference(source: str) -> ReferenceFacts:
    """Read the facts off a reference; raise ValueError if it does not parse."""
    body = parse_module(source).body
    bound = dict(find_bindings(body))
    run = bound.get(ENTRY_NAME)
    is_plain = isinstance(run, ast.FunctionDef) and all(map(keeps_arguments, run.decorator_list))
    return ReferenceFacts(
        signature=signature_of(run) if is_plain and isinstance(run, ast.FunctionDef) else None,
        last_function=next((node.name for node in reversed(body) if isinstance(node, ast.FunctionDef)), None),
        names={name: why_not_called(node) for name, node in bound.items()},
    )


def find_bindings(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield every name that a module binds when it is imported, with the statement; "*" for an import of everything."""
    for node in body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name, node
            case ast.Assign(targets=targets):
                names = [item for target in targets for item in ast.walk(target) if isinstance(item, ast.Name)]
                yield from ((item.id, node) for item in names if isinstance(item.ctx, ast.Store))
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
                yield name, node
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name, node) for alias in aliases)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                never_holds = isinstance(node, ast.If) and ast.unparse(node.test) in MAIN_TESTS
                blocks = [] if never_holds else [node.body]
                blocks += [getattr(node, "orelse", []), *(one.body for one in getattr(node, "handlers", ()))]
                for block in (*blocks, getattr(node, "finalbody", [])):
                    yield from find_bindings(block)
            case _:
                pass


def why_not_called(node: ast.stmt | None) -> str | None:
    """Say why no call of what a statement binds gives tensors; None if a call may, or a decorator may change it."""
    if getattr(node, "decorator_list", None):
        return None
    match node:
        case ast.AsyncFunctionDef():
            return "is async; it is called, not awaited"
        case ast.FunctionDef() if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in own_nodes(node)):
            return "is a generator; it has to return its outputs"
        case ast.ClassDef(bases=[], keywords=[], body=body) if "__new__" not in dict(find_bindings(body)):
            return f"is a class; it has to be a function, or an instance ({node.name} = YourClass())"
        case ast.Import():
            return "is a module; it has to be a function"
        case ast.Assign(value=ast.Constant()):
            return "is a constant; it has to be a function"
        case _:
            return None


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function's body, without those of functions inside it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            left += ast.iter_child_nodes(node)


def keeps_arguments(decorator: ast.expr) -> bool:
    """Tell whether a decorator is known to leave a function's arguments as they are."""
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in SAME_ARGUMENTS


def signature_of(function: ast.FunctionDef) -> inspect.Signature:
    """Return a function's parameters. A default is None or absent: its expression is never evaluated.

    Raises:
        ValueError: two parameters have one name.
    """
    nothing, arguments = ast.Constant(None), copy(function.args)
    arguments.defaults = [nothing] * len(arguments.defaults)
    arguments.kw_defaults = [default and nothing for default in arguments.kw_defaults]
    plain = ast.Expression(ast.Lambda(arguments, nothing))
    try:
        code = compile(ast.fix_missing_locations(plain), "<parameters>", "eval")
    except SyntaxError as error:
        raise ValueError(f"not Python: {error.msg}") from error
    return inspect.signature(eval(code))
