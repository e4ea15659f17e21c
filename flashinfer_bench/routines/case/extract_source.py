"""Makes a source file from one function in a module of `routines.code`, with all names that the function uses.

The module is parsed, never imported: code that needs torch or flashinfer runs in the process of the judge or a worker.
A constant (a name in capitals) can get another value. The new `run` takes all inputs of the definition, in order, and
passes on the inputs that are parameters of the function. A parameter `*rest` gets all remaining inputs. `setup` calls
the function NAME_setup, which prepares keyword arguments of `run`.

The text of a reference, without comments, decides the name of the definition. So a changed docstring in `*_torch.py`
changes the name of every case of that function.
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
    """Return the text of a source file that defines `run`, and also `setup` if the module has NAME_setup.

    Args:
        file: a module of `routines.code`, without its suffix.
        function: a top-level function of the module.
        constants: values for top-level constants. Names that the module lacks have no effect.
        inputs: the names of the inputs.
        outputs: the names of the outputs. If an output is a parameter of the function, `run` takes all outputs after
            the inputs.

    Returns:
        The source, and whether the function writes into given outputs.

    Raises:
        KeyError: the module lacks the function.
    """
    bodies = top_level(file)
    parameters: Any = bodies[function].args  # type: ignore[attr-defined]
    given = outputs if any(one.arg in outputs for one in parameters.args) else ()
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
    parts += [_call(new, bodies[name], inputs, given) for name, new in entries.items()]
    return "\n\n".join(parts) + "\n", bool(given)


def _call(new: str, function: Any, inputs: Collection[str], outputs: Collection[str]) -> str:
    """Return the source of a function `new`, which takes all inputs and outputs. It passes on the parameters of
    `function`."""
    parameters = function.args
    passed = [one.arg for one in parameters.args]
    prepared = [one.arg for one in parameters.kwonlyargs]
    passed += [one for one in inputs if parameters.vararg and one not in passed]
    passed += [f"{one}={one}" for one in prepared]
    taken = [*inputs, *outputs, *(["*", *prepared] if prepared else [])]
    return f"def {new}({', '.join(taken)}):\n    return {function.name}({', '.join(passed)})"


@lru_cache(maxsize=64)
def top_level(file: str) -> Mapping[str, ast.stmt]:
    """Return top-level name → statement of a module. Names from sibling modules come first.

    A second name of a function (`second = first`) has the function's statement.
    """
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((CODE / f"{file}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            found |= top_level((node.module or "").removeprefix(PACKAGE))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
        elif isinstance(node, ast.Assign):
            aliased = found.get(ast.unparse(node.value))
            value = aliased if isinstance(aliased, ast.FunctionDef) else node
            found |= {ast.unparse(target): value for target in node.targets}
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = node
    return found
