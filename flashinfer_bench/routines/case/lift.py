"""Takes one function out of a module of `routines.code`, with all that it uses, and makes a source file of it.

The module is read, never imported: code that needs torch or flashinfer runs in the judge's or a worker's process. A
constant (a name in capitals) may get another value. The function becomes `run`. A function with `_setup` behind its
name becomes `setup`, which prepares what `run` takes by keyword. Each names the inputs that it uses; both get all of
the definition's, in its order.

The text of a reference decides the name of its definition, comments apart. So a change to a docstring in `*_torch.py`
gives every case of that function another name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

CODE: Final = Path(__file__).parents[1] / "code"
PACKAGE: Final = "flashinfer_bench.routines.code."
ENTRY: Final = "run"
SETUP: Final = "setup"


def lift(
    file: str, function: str, constants: Mapping[str, Any], inputs: Iterable[str], outputs: Iterable[str] = ()
) -> tuple[str, bool]:
    """Return the source of a file that defines `run`, and `setup` where the function has one.

    Args:
        file: a module of `routines.code`, without its suffix.
        function: a top-level function of it.
        constants: values for its top-level constants; it need not have all of them.
        inputs: the names of the inputs.
        outputs: the names of the outputs. A function that names one gets all of them after the inputs.

    Returns:
        The source, and whether the function writes into given outputs.

    Raises:
        ValueError: the module has no such function, or the function takes something else.
    """
    bodies = _top_level(file)
    if function not in bodies:
        raise ValueError(f"{file}.py has no {function}")
    is_dps = not {*outputs}.isdisjoint(_taken(bodies[function]))
    parameters = [*inputs, *(outputs if is_dps else ())]
    entries = {name: new for name, new in ((f"{function}_setup", SETUP), (function, ENTRY)) if name in bodies}
    wanted: set[str] = set()
    waiting = list(entries)
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            used = {node.id for node in ast.walk(bodies[name]) if isinstance(node, ast.Name)}
            waiting += used & bodies.keys()
    imports, parts = ["from __future__ import annotations\n"], []
    for name, node in bodies.items():
        if isinstance(node, (ast.Import, ast.ImportFrom)) and name in wanted:
            imports.append(ast.unparse(node))
        elif name in wanted - entries.keys():
            parts.append(f"{name} = {constants[name]!r}" if name in constants else ast.unparse(node))
    parts += [_as_entry(f"{file}.{name}", bodies[name], new, parameters) for name, new in entries.items()]
    return "\n\n".join(["\n".join(imports), *parts]) + "\n", is_dps


def _taken(function: ast.stmt) -> list[str]:
    assert isinstance(function, ast.FunctionDef)  # constants are in capitals
    return [argument.arg for argument in function.args.args]


def _as_entry(place: str, function: ast.stmt, name: str, parameters: Sequence[str]) -> str:
    copy = ast.parse(ast.unparse(function)).body[0]
    assert isinstance(copy, ast.FunctionDef)  # it was one
    taken = _taken(copy)
    if not set(taken) <= set(parameters):
        raise ValueError(f"{place} takes {', '.join(taken)}; there are {', '.join(parameters)}")
    copy.name, copy.args.args = name, [ast.arg(parameter) for parameter in parameters]
    return ast.unparse(copy)


@lru_cache(maxsize=64)
def _top_level(file: str) -> Mapping[str, ast.stmt]:
    """Return the top-level names of a module with their statements; what it takes from its siblings stands in front."""
    return dict(_bindings(ast.parse((CODE / f"{file}.py").read_text(encoding="utf-8")).body))


def _bindings(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield from _top_level((node.module or "").removeprefix(PACKAGE)).items()
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
