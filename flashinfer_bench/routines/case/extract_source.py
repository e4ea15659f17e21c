"""Takes one function out of a module of `routines.code`, with all that it uses, and makes a source file of it.

The module is read, never imported: code that needs torch or flashinfer runs in the judge's or a worker's process. A
constant (a name in capitals) may get another value. The source's `run` gets all inputs of the definition, in order, and
calls the function with those that it names; `*rest` stands for all others, and `**outputs` for the outputs
by name. A function with `_setup` behind its name is called by `setup`, which prepares what `run` takes by keyword.

The text of a reference decides the name of its definition, comments apart. So a change to a docstring in `*_torch.py`
gives every case of that function another name.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

CODE: Final = Path(__file__).parents[1] / "code"
PACKAGE: Final = "flashinfer_bench.routines.code."
ENTRY: Final = "run"


def extract_source(
    file: str, function: str, constants: Mapping[str, Any], inputs: Collection[str], outputs: Collection[str] = ()
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
        KeyError: the module has no such function.
    """
    bodies = top_level(file)
    parameters: Any = bodies[function].args  # type: ignore[attr-defined]
    is_dps = parameters.kwarg is not None or any(one.arg in outputs for one in parameters.args)
    entries = {name: new for name, new in ((f"{function}_setup", "setup"), (function, ENTRY)) if name in bodies}
    wanted: set[str] = set()
    waiting = {*entries}
    while waiting:
        wanted |= waiting
        used = {node.id for name in waiting for node in ast.walk(bodies[name]) if isinstance(node, ast.Name)}
        waiting = (used & bodies.keys()) - wanted
    parts = [
        f"{name} = {constants[name]!r}" if name in constants else ast.unparse(node)
        for name, node in bodies.items()
        if name in wanted
    ]
    given = outputs if is_dps else ()
    parts += [_call(new, name, bodies[name], inputs, given) for name, new in entries.items()]
    return "\n\n".join(parts) + "\n", is_dps


def _call(new: str, name: str, function: Any, inputs: Collection[str], outputs: Collection[str]) -> str:
    """Return a function of all inputs and outputs that calls another with those that it takes."""
    parameters = function.args
    passed = [one.arg for one in parameters.args]
    prepared = [one.arg for one in parameters.kwonlyargs]
    passed += [one for one in inputs if parameters.vararg and one not in passed]
    passed += [f"{one}={one}" for one in (*(outputs if parameters.kwarg else ()), *prepared)]
    taken = [*inputs, *outputs, *(["*", *prepared] if prepared else [])]
    return f"def {new}({', '.join(taken)}):\n    return {name}({', '.join(passed)})"


@lru_cache(maxsize=64)
def top_level(file: str) -> Mapping[str, ast.stmt]:
    """Return the top-level names of a module with their statements; what it takes from its siblings stands in front."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((CODE / f"{file}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            found |= top_level((node.module or "").removeprefix(PACKAGE))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target): node for target in node.targets}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found
