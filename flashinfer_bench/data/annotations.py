"""Makes a definition from a reference whose `run` states shapes and dtypes in its annotations. The reference is not
run.

    def run(x: "bfloat16[rows, columns=4096]", eps: float) -> "y: bfloat16[rows, columns]":

A tensor is `dtype[axes]`. A Python scalar is a dtype alone, or one of `float`, `int` and `bool`. A name is a var axis,
`name=4096` a const axis, and `half=columns // 2` a computed axis. A number is a size without a name. An output may have
a name in front. Several outputs are a tuple of texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any, Final

from flashinfer_bench.data.dtypes import check_dtype
from flashinfer_bench.data.reference import ENTRY_NAME, parse_source, read_module

SCALARS: Final = {"float": "float32", "int": "int32", "bool": "bool"}
"""Python type → the dtype of a scalar."""
SPEC: Final = re.compile(r"\s*(?:(\w+)\s*:)?\s*(\w+)\s*(\[.*\])?\s*", re.DOTALL)
BETWEEN_AXES: Final = re.compile(r",(?![^()]*\))")
"""A comma that is not within the brackets of an expression."""
AXIS: Final = re.compile(r"\s*(\d+|[^\W\d]\w*)\s*(?:(?<!\d)=(.+))?", re.DOTALL)
VAR: Final = {"type": "var"}
Axes = dict[str, dict[str, Any]]


def make_parts(source: str, ask: Callable[[str], str] | None) -> dict[str, Any]:
    """Return the description, axes, inputs and outputs of a definition, as in a definition's file.

    Args:
        source: the reference.
        ask: takes a line that describes a missing annotation; returns the annotation. With None, a missing annotation
            is an error.

    Raises:
        ValueError: the source has no `run`, or annotations are missing or wrong; the message has a line for each.
    """
    run = _find_run(source)
    taken = run.args
    if taken.vararg or taken.kwarg:
        raise ValueError(f"{ENTRY_NAME!r} takes any number of arguments; name each input as a parameter")
    returned = run.returns
    if isinstance(returned, ast.Subscript) and ast.unparse(returned.value) in ("tuple", "Tuple"):
        returned = returned.slice
    outputs = returned.elts if isinstance(returned, ast.Tuple) else [returned]
    slots = [("inputs", one.arg, one.annotation) for one in (*taken.posonlyargs, *taken.args, *taken.kwonlyargs)]
    slots += [("outputs", f"out{index}" if len(outputs) > 1 else "out", one) for index, one in enumerate(outputs)]
    description = ast.get_docstring(run)
    axes: Axes = {}
    parts: dict[str, Any] = {"axes": axes, "inputs": {}, "outputs": {}}
    problems = []
    for kind, name, node in slots:
        text = _text_of(node)
        if text is None:
            example = f'{name}: "' if kind == "inputs" else '-> "y: '
            missing = (
                f'{kind[:-1]} {name!r} of {ENTRY_NAME} has no shape and dtype; write {example}bfloat16[rows, 4096]"'
            )
            if ask is None:
                problems.append(missing)
                continue
            text = ask(missing)
        try:
            own, spec = _read_spec(text, axes)
            parts[kind][own if own and kind == "outputs" else name] = spec
        except ValueError as error:
            problems.append(f"{name}: {text!r}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return ({"description": description} if description else {}) | parts


def _find_run(source: str) -> ast.FunctionDef:
    read_module(source)
    functions = (one for one in reversed(parse_source(source).body) if isinstance(one, ast.FunctionDef))
    run = next((one for one in functions if one.name == ENTRY_NAME), None)
    if run is None:
        raise ValueError(f"it has no function {ENTRY_NAME!r}")
    return run


def _text_of(annotation: ast.expr | None) -> str | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return annotation.id if isinstance(annotation, ast.Name) and annotation.id in SCALARS else None


def _read_spec(text: str, axes: Axes) -> tuple[str | None, dict[str, Any]]:
    """Return the name, shape and dtype of an annotation. Add its axes."""
    found = SPEC.fullmatch(text)
    if found is None:
        raise ValueError("write dtype[axes], such as bfloat16[rows, 4096], or float for a number")
    name, dtype, shape = found.groups()
    if shape is None:
        return name, {"shape": None, "dtype": check_dtype(SCALARS.get(dtype, dtype))}
    parts = BETWEEN_AXES.split(shape[1:-1]) if shape[1:-1].strip() else []
    return name, {"shape": [_read_axis(part, axes) for part in parts], "dtype": check_dtype(dtype)}


def _read_axis(part: str, axes: Axes) -> str:
    found = AXIS.fullmatch(part)
    if found is None:
        raise ValueError(f"{part.strip()!r} is no axis; write a name, name=4096, or a number")
    name, value = found[1], (found[2] or "").strip()
    if name.isdigit():
        return name
    axis = {"type": "expr", "expression": value} if value else VAR
    if value.isdigit():
        axis = {"type": "const", "value": int(value)}
    if axis is not VAR and axes.get(name, VAR) not in (VAR, axis):
        raise ValueError(f"axis {name!r} has another value before")
    axes[name] = axes.get(name, VAR) if axis is VAR else axis
    return name
