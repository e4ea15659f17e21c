"""Reads a definition's reference without running it: whether it has a `run`, and with which parameters."""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache
from typing import Final, NamedTuple

ENTRY_NAME: Final = "run"
"""The function of a reference that is called."""
BYTE_ORDER_MARK: Final = "\ufeff"
"""Some editors begin a file with it. Python drops it when it reads a file, and refuses it in a string."""
MOST_CHARACTERS: Final = 1 << 18
"""Source with more characters is not parsed: so many take seconds, and a thousand times as many bytes of memory."""


class ReferenceFacts(NamedTuple):
    """What the syntax tree of a reference says."""

    has_run: bool
    """A top-level name `run` is bound."""
    parameters: tuple[str, ...] | None
    """Names of the parameters of `run` in order; None when `run` cannot be called by keyword from them."""
    positions: tuple[str, ...]
    """Those that may be given by position, in order; none where `run` takes keywords of any name."""
    takes_any_keyword: bool
    """Whether `run` takes keywords of any name."""
    last_function: str | None
    """The last top-level function: the reference of definitions that were dumped from a library."""
    names: frozenset[str]
    """All names that are bound at the top level."""


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
    bound = {name for node in body for name in _bound_names(node)}
    runs = [function for function in functions if function.name == ENTRY_NAME]
    return ReferenceFacts(
        has_run=ENTRY_NAME in bound,
        parameters=_parameters(runs[-1]) if runs else None,
        positions=_positions(runs[-1]) if runs else (),
        takes_any_keyword=bool(runs) and runs[-1].args.kwarg is not None,
        last_function=functions[-1].name if functions else None,
        names=frozenset(bound),
    )


def _bound_names(node: ast.stmt) -> list[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return [name]
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [alias.asname or alias.name for alias in names]
        case _:
            return []


def _parameters(function: ast.FunctionDef) -> tuple[str, ...] | None:
    arguments = function.args
    if arguments.vararg or arguments.posonlyargs:
        return None
    return tuple(argument.arg for argument in (*arguments.args, *arguments.kwonlyargs))


def _positions(function: ast.FunctionDef) -> tuple[str, ...]:
    arguments = function.args
    return () if arguments.kwarg else tuple(argument.arg for argument in (*arguments.posonlyargs, *arguments.args))
