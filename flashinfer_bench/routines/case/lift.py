"""Takes one function out of a module of `routines.code`, with all that it uses, and makes a source file of it.

The module is read, never imported: code that needs torch or flashinfer runs in the judge's or a worker's process. A
constant (a name in capitals) may get another value. The function becomes `run`. A function with `_setup` behind its
name becomes `setup`, which prepares what `run` takes by keyword. Each names the inputs that it uses; `*rest` stands for
all others, and `**outputs` for the outputs by name. The made functions get all inputs of the definition, in its order.

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
SETUP: Final = "setup"


def lift(
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
        ValueError: the function takes something else.
    """
    bodies = top_level(file)
    main: Any = bodies[function]
    is_dps = main.args.kwarg is not None or any(one.arg in outputs for one in main.args.args)
    given = list(outputs) if is_dps else []
    entries = {name: new for name, new in ((f"{function}_setup", SETUP), (function, ENTRY)) if name in bodies}
    wanted: set[str] = set()
    waiting = set(entries)
    while waiting:
        wanted |= waiting
        used = {node.id for name in waiting for node in ast.walk(bodies[name]) if isinstance(node, ast.Name)}
        waiting = (used & bodies.keys()) - wanted
    imports, parts = ["from __future__ import annotations\n"], []
    for name, node in bodies.items():
        if isinstance(node, (ast.Import, ast.ImportFrom)) and name in wanted:
            imports.append(ast.unparse(node))
        elif name in wanted - entries.keys():
            parts.append(f"{name} = {constants[name]!r}" if name in constants else ast.unparse(node))
    parts += [_as_entry(bodies[name], new, list(inputs), given) for name, new in entries.items()]
    return "\n\n".join(["\n".join(imports), *parts]) + "\n", is_dps


def _as_entry(function: ast.stmt, name: str, inputs: list[str], outputs: list[str]) -> str:
    """Return the text of a function with another name, which takes all inputs and outputs."""
    copy: Any = ast.parse(ast.unparse(function)).body[0]
    taken = [argument.arg for argument in copy.args.args]
    if not {*taken} <= {*inputs, *outputs}:
        raise ValueError(f"{copy.name} takes {', '.join(taken)}; there are {', '.join([*inputs, *outputs])}")
    rest, named = copy.args.vararg, copy.args.kwarg
    bound = [f"{rest.arg} = [{', '.join(one for one in inputs if one not in taken)}]"] if rest else []
    bound += [f"{named.arg} = {{{', '.join(f'{one!r}: {one}' for one in outputs)}}}"] if named else []
    copy.name, copy.args.args = name, [ast.arg(parameter) for parameter in (*inputs, *outputs)]
    copy.args.vararg = copy.args.kwarg = None
    copy.body[1:1] = ast.parse("\n".join(bound)).body  # behind the docstring
    return ast.unparse(copy)


@lru_cache(maxsize=64)
def top_level(file: str) -> Mapping[str, ast.stmt]:
    """Return the top-level names of a module with their statements; what it takes from its siblings stands in front."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse((CODE / f"{file}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            found |= top_level((node.module or "").removeprefix(PACKAGE))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {alias.asname or alias.name.partition(".")[0]: node for alias in node.names}
    return found
