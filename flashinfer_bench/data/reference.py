"""Reads a definition's reference without running it: whether it has a `run`, and with which parameters."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from inspect import Parameter
from typing import Final, NamedTuple

ENTRY_NAME: Final = "run"
"""The function of a reference that is called."""
BYTE_ORDER_MARK: Final = "\ufeff"
"""Some editors begin a file with it. Python drops it when it reads a file, and refuses it in a string."""
SAME_ARGUMENTS: Final = frozenset({"no_grad", "inference_mode", "compile", "cache", "lru_cache"})
"""Decorators that leave a function's arguments as they are."""
MOST_CHARACTERS: Final = 1 << 18
"""Source with more characters is not parsed: so many take seconds, and a thousand times as many bytes of memory."""


class ReferenceFacts(NamedTuple):
    """What the syntax tree of a reference says."""

    has_run: bool
    """A top-level name `run` is bound."""
    parameters: tuple[str, ...] | None
    """Names of the parameters of `run` in order; None when `run` cannot be called by keyword from them."""
    signature: inspect.Signature | None
    """Of `run`, where that is a function."""
    is_decorated: bool
    """A decorator may change the parameters of `run`."""
    takes_any_keyword: bool
    """Whether `run` takes keywords of any name."""
    last_function: str | None
    """The last top-level function: the reference of definitions that were dumped from a library."""
    names: Mapping[str, str | None]
    """Each name that is bound at the top level, and why no call of it gives tensors; None where one may."""


def parse_module(source: str) -> ast.Module:
    """Parse Python source; raise ValueError with the reason when it does not parse."""
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
    """Read the facts off a reference; raise ValueError when it does not parse."""
    body = parse_module(source).body
    functions = [node for node in body if isinstance(node, ast.FunctionDef)]
    bound = dict(find_bindings(body))
    run = bound.get(ENTRY_NAME)
    function = run if isinstance(run, ast.FunctionDef) else None
    return ReferenceFacts(
        has_run=ENTRY_NAME in bound,
        parameters=_parameters(function) if function else None,
        signature=_signature(function) if function else None,
        is_decorated=function is not None and not all(map(keeps_arguments, function.decorator_list)),
        takes_any_keyword=function is not None and function.args.kwarg is not None,
        last_function=functions[-1].name if functions else None,
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
            case ast.If() if _is_main(node.test):
                yield from find_bindings(node.orelse)
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                blocks = (getattr(node, field, []) for field in ("body", "orelse", "finalbody"))
                yield from (item for block in blocks for item in find_bindings(block))
                for handler in getattr(node, "handlers", []):
                    yield from find_bindings(handler.body)
            case _:
                pass


def _is_main(test: ast.expr) -> bool:
    """Tell whether a condition is `__name__ == "__main__"`, which never holds here."""
    return isinstance(test, ast.Compare) and ast.unparse(test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def why_not_called(node: ast.stmt | None) -> str | None:
    """Say why no call of what a statement binds gives tensors; None where one may, or a decorator may change it."""
    if getattr(node, "decorator_list", None):
        return None
    match node:
        case ast.AsyncFunctionDef():
            return "is async; it is called, not awaited"
        case ast.FunctionDef() if any(isinstance(one, (ast.Yield, ast.YieldFrom)) for one in _own_nodes(node)):
            return "is a generator; it has to return its outputs"
        case ast.ClassDef(bases=[], keywords=[], body=body) if not any(
            isinstance(item, ast.FunctionDef) and item.name == "__new__" for item in body
        ):
            return f"is a class; it has to be a function, or an instance ({node.name} = YourClass())"
        case ast.Import():
            return "is a module; it has to be a function"
        case ast.Assign(value=ast.Constant()):
            return "is a constant; it has to be a function"
        case _:
            return None


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
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


def _parameters(function: ast.FunctionDef) -> tuple[str, ...] | None:
    arguments = function.args
    if arguments.vararg or arguments.posonlyargs:
        return None
    return tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))


def _signature(function: ast.FunctionDef) -> inspect.Signature:
    """Return a function's parameters; a default is there or not, its value is never used."""
    arguments = function.args
    first_default = len(arguments.posonlyargs) + len(arguments.args) - len(arguments.defaults)
    kinds = [
        *((one, Parameter.POSITIONAL_ONLY) for one in arguments.posonlyargs),
        *((one, Parameter.POSITIONAL_OR_KEYWORD) for one in arguments.args),
    ]
    parameters = [
        Parameter(one.arg, kind, default=Parameter.empty if at < first_default else None)
        for at, (one, kind) in enumerate(kinds)
    ]
    if arguments.vararg:
        parameters.append(Parameter(arguments.vararg.arg, Parameter.VAR_POSITIONAL))
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        needed = Parameter.empty if default is None else None
        parameters.append(Parameter(one.arg, Parameter.KEYWORD_ONLY, default=needed))
    if arguments.kwarg:
        parameters.append(Parameter(arguments.kwarg.arg, Parameter.VAR_KEYWORD))
    return inspect.Signature(parameters)
