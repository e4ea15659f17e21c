"""Takes one function out of a module of `routines.code`, with all that it uses, and makes a source file of it.

The module is read, never imported: code that needs torch or flashinfer runs in the judge's or a worker's process. A
constant (a name in capitals) may get another value. The function is renamed to `run`. Where there is a function of its
name with `_setup` behind it, that comes along as `setup`, which prepares what `run` takes by keyword.

The text of a reference decides the name of its definition, comments apart. So a change to a docstring in `*_torch.py`
gives every case of that function another name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

CODE: Final = Path(__file__).parents[1] / "code"
ENTRY: Final = "run"
SETUP: Final = "setup"


def lift(file: str, function: str, constants: Mapping[str, Any], *, parameters: Iterable[str] | None = None) -> str:
    """Return the source of a file that defines `run`, and `setup` where the function has one.

    Args:
        file: a module of `routines.code`, without its suffix.
        function: a top-level function of it.
        constants: values for its top-level constants.
        parameters: the names of the parameters that the function has to have, in this order; None allows any.

    Raises:
        ValueError: the module has no such function or constant, or the function takes other parameters.
    """
    bodies = _top_level(file)
    unknown = sorted({function, *constants} - set(bodies))
    if unknown:
        raise ValueError(f"{file}.py has no {', '.join(unknown)}")
    entry = bodies[function]
    assert isinstance(entry, ast.FunctionDef)  # constants are in capitals
    taken = [argument.arg for argument in (*entry.args.posonlyargs, *entry.args.args)]
    if parameters is not None and taken != list(parameters):
        raise ValueError(f"{file}.{function} takes {', '.join(taken)}; it should take {', '.join(parameters)}")
    setup = f"{function}_{SETUP}"
    named = {name: new for name, new in ((setup, SETUP), (function, ENTRY)) if name in bodies}
    wanted = {name for one in named for name in _closure(one, bodies)}
    kept = [name for name in bodies if name in wanted and name not in named]
    parts = [_render(name, bodies[name], constants) for name in kept if not _is_import(bodies[name])]
    parts += [_renamed(bodies[name], new) for name, new in named.items()]
    imports = list(dict.fromkeys(_imports(wanted, bodies)))
    future = "from __future__ import annotations"
    return "\n\n".join(["\n".join([future, "", *imports]), *parts]) + "\n"


def _renamed(function: ast.stmt, name: str) -> str:
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, ast.FunctionDef)  # it was one
    copy.name = name
    return ast.unparse(copy)


@lru_cache(maxsize=64)
def _top_level(file: str) -> Mapping[str, ast.stmt]:
    tree = ast.parse((CODE / f"{file}.py").read_text(encoding="utf-8"))
    return dict(_bindings(tree.body))


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and getattr(node, "module", "") != "__future__":
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)


def _closure(function: str, bodies: Mapping[str, ast.stmt]) -> set[str]:
    """Return every top-level name that a function uses, directly or through others."""
    found, waiting = set(), [function]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        used = {node.id for node in ast.walk(bodies[name]) if isinstance(node, ast.Name)}
        waiting += [other for other in used if other in bodies]
    return found


def _imports(wanted: set[str], bodies: Mapping[str, ast.stmt]) -> Iterator[str]:
    for name, node in bodies.items():
        if name in wanted and _is_import(node):
            yield ast.unparse(node)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def _render(name: str, node: ast.stmt, constants: Mapping[str, Any]) -> str:
    return f"{name} = {constants[name]!r}" if name in constants else ast.unparse(node)
