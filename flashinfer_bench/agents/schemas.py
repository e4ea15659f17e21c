"""Functions as tool schemas: JSON of the form that interfaces of models share, read from signature and docstring."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from flashinfer_bench.agents.tools import (
    flashinfer_bench_list_ncu_options,
    flashinfer_bench_run_ncu,
    flashinfer_bench_run_sanitizer,
)

TOOLS: Final[tuple[Callable[..., str], ...]] = (
    flashinfer_bench_list_ncu_options,
    flashinfer_bench_run_ncu,
    flashinfer_bench_run_sanitizer,
)
NAMES: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
    Path: "string",
}
"""Python type → JSON type."""
ARGUMENT: Final = re.compile(r"^(\w+)(?:\s*\([^)]*\))?:\s*(.*)$")
TYPED: Final = re.compile(r"^(\w+)\s*:\s")
"""An argument where sections are underlined: its name and its type, what is said of it below."""
UNDERLINE: Final = re.compile(r"^-{3,}\s*$")
SECTION: Final = re.compile(r"^(Args|Returns|Raises|Example|Examples|Note|Notes|Yields):\s*$")


def get_all_tool_schemas() -> list[dict[str, Any]]:
    """Return the schema of every function here that a model may call."""
    return [function_to_schema(function) for function in TOOLS]


def function_to_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool: name, description, and its parameters as a JSON schema.

    Args:
        function: its parameters need annotations; its docstring may have a section `Args:`, or `Parameters` underlined.
    """
    summary, described = read_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        schema = type_to_schema(hints.get(name, str))
        if name in described:
            schema["description"] = described[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is None or isinstance(parameter.default, (str, int, float, bool, list, dict)):
            schema["default"] = parameter.default
        properties[name] = schema
    parameters = {"type": "object", "properties": properties, "required": required}
    described_function = {"name": function.__name__, "description": summary, "parameters": parameters}
    return {"type": "function", "function": described_function}


def type_to_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of a Python type. A model can write no object of ours, only its name."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        options = [type_to_schema(one) for one in arguments if one is not type(None) and not _is_model(one)]
        return _join(options) if options else {"type": "object"}
    if origin is typing.Literal:
        return {"type": NAMES[type(arguments[0])], "enum": list(arguments)}
    if annotation is list or (isinstance(origin, type) and issubclass(origin, Sequence)):
        return {"type": "array", "items": type_to_schema(arguments[0]) if arguments else {}}
    if isinstance(origin, type) and issubclass(origin, dict):
        return {"type": "object"}
    if _is_model(annotation):
        return {"type": "object"}
    return {"type": NAMES[annotation]} if annotation in NAMES else {}


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return what a docstring says before its first section, and of each argument."""
    before: list[str] = []
    described: dict[str, str] = {}
    section, last = "", ""
    for line, following in pairwise([*text.splitlines(), ""]):
        heading = SECTION.match(line)
        if heading:
            section = heading[1]
        elif UNDERLINE.match(following):
            section = line.strip()
        elif UNDERLINE.match(line):
            continue
        elif not section:
            before.append(line.strip())
        elif section == "Parameters" and line.strip():
            argument = TYPED.match(line)
            if argument:
                last = argument[1]
                described[last] = ""
            elif last:
                described[last] = f"{described[last]} {line.strip()}".strip()
        elif section == "Args" and line.strip():
            argument = ARGUMENT.match(line.strip())
            if argument and len(line) - len(line.lstrip()) <= 4:
                last = argument[1]
                described[last] = argument[2]
            elif last:
                described[last] += f" {line.strip()}"
    return " ".join(filter(None, before)), described


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _join(options: list[dict[str, Any]]) -> dict[str, Any]:
    unique = [one for index, one in enumerate(options) if one not in options[:index]]
    return unique[0] if len(unique) == 1 else {"anyOf": unique}
