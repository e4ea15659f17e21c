"""Makes a definition of a reference whose `run` states shapes and dtypes in its annotations. The reference is not run.

    def run(x: "bfloat16[rows, columns=4096]", eps: float) -> "y: bfloat16[rows, columns]":

A tensor is `dtype[axes]`, a Python scalar only its dtype, or `float`, `int` or `bool`. A name is a var axis,
`name=4096` a const axis, `half=columns // 2` an axis computed from others, and a number a size without a name. An
output may have a name in front. Several outputs are a tuple of such texts.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.data.dtypes import check_dtype
from flashinfer_bench.data.reference import ENTRY_NAME, parse_source, read_module

SCALARS: Final = {"float": "float32", "int": "int32", "bool": "bool"}
"""Python type → the dtype of a scalar."""
SPEC: Final = re.compile(r"\s*(?:(\w+)\s*:)?\s*(\w+)\s*(\[.*\])?\s*", re.DOTALL)
BETWEEN_AXES: Final = re.compile(r",(?![^()]*\))")
"""A comma outside of the brackets of an expression."""
AXIS: Final = re.compile(r"\s*(\w+)\s*(?:=(.+))?", re.DOTALL)
VAR: Final = {"type": "var"}


@dataclass
class Annotations:
    """The annotations of a reference's `run`."""

    inputs: dict[str, str | None]
    """Parameter → its annotation; None if it states no shape and dtype."""
    outputs: list[str | None]
    """The annotation of each output."""
    description: str
    """The docstring of `run`."""


def read_annotations(source: str) -> Annotations:
    """Return the annotations of `run` in a source; raise ValueError if the source has no such function."""
    read_module(source)
    functions = [one for one in parse_source(source).body if isinstance(one, ast.FunctionDef)]
    run = next((one for one in reversed(functions) if one.name == ENTRY_NAME), None)
    if run is None:
        raise ValueError(f"it has no function {ENTRY_NAME!r}")
    taken = run.args
    if taken.vararg or taken.kwarg:
        raise ValueError(f"{ENTRY_NAME!r} takes any number of arguments; name each input as a parameter")
    parameters = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs]
    returned = run.returns
    if isinstance(returned, ast.Subscript) and ast.unparse(returned.value) in ("tuple", "Tuple"):
        returned = returned.slice
    outputs = returned.elts if isinstance(returned, ast.Tuple) else [returned]
    inputs = {one.arg: _text_of(one.annotation) for one in parameters}
    return Annotations(inputs, list(map(_text_of, outputs)), ast.get_docstring(run) or "")


def _text_of(annotation: ast.expr | None) -> str | None:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return annotation.id if isinstance(annotation, ast.Name) and annotation.id in SCALARS else None


def make_parts(inputs: Mapping[str, str], outputs: Sequence[str]) -> dict[str, Any]:
    """Return the axes, inputs and outputs of a definition as in its file.

    Args:
        inputs: parameter → its annotation.
        outputs: the annotation of each output.

    Raises:
        ValueError: annotations are wrong; the message has a line for each.
    """
    axes: dict[str, dict[str, Any]] = {}
    parts: dict[str, Any] = {"axes": axes, "inputs": {}, "outputs": {}}
    usual = ["out"] if len(outputs) == 1 else [f"out{index}" for index in range(len(outputs))]
    given = [("inputs", *item) for item in inputs.items()]
    problems = []
    for kind, name, text in [*given, *(("outputs", *item) for item in zip(usual, outputs, strict=True))]:
        found = SPEC.fullmatch(text)
        if found is None or (found[1] and kind == "inputs"):
            problems.append(f"{name}: {text!r}: write dtype[axes], such as bfloat16[rows, 4096], or float for a number")
            continue
        try:
            shape = None if found[3] is None else _read_axes(found[3][1:-1], axes)
            dtype = check_dtype(SCALARS.get(found[2], found[2]) if shape is None else found[2])
            parts[kind][found[1] or name] = {"shape": shape, "dtype": dtype}
        except ValueError as error:
            problems.append(f"{name}: {text!r}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return parts


def _read_axes(text: str, axes: dict[str, dict[str, Any]]) -> list[str]:
    """Return the dimensions of a shape, and add its axes."""
    return [_read_axis(part, axes) for part in (BETWEEN_AXES.split(text) if text.strip() else ())]


def _read_axis(part: str, axes: dict[str, dict[str, Any]]) -> str:
    found = AXIS.fullmatch(part)
    if found is None or (found[1][0].isdigit() and (found[2] or not found[1].isdigit())):
        raise ValueError(f"{part.strip()!r} is no axis; write a name, name=4096, or a number")
    name, value = found[1], (found[2] or "").strip()
    if name.isdigit():
        return name
    axis: dict[str, Any] = {"type": "expr", "expression": value} if value else VAR
    if value.isdigit():
        axis = {"type": "const", "value": int(value)}
    if axis is not VAR and axes.get(name, VAR) not in (VAR, axis):
        raise ValueError(f"axis {name!r} has another value before")
    if axis is not VAR or name not in axes:
        axes[name] = axis
    return name


def describe_missing(names: Iterable[str]) -> list[str]:
    """Return a line with an example for each parameter, or `return`, without a shape and dtype."""
    example = {"return": '-> "y: bfloat16[rows, 4096]"'}
    written = ((name, example.get(name, f'{name}: "bfloat16[rows, 4096]"')) for name in names)
    return [f"{name!r} of {ENTRY_NAME} has no shape and dtype; write {text}" for name, text in written]
