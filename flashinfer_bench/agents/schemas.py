"""Turns functions into tool schemas, in the common JSON form of model APIs, from signature and docstring."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from textwrap import dedent
from typing import Any, Final

from pydantic import BaseModel, PydanticUserError, TypeAdapter

from flashinfer_bench.agents.tools import (
    flashinfer_bench_list_ncu_options,
    flashinfer_bench_run_ncu,
    flashinfer_bench_run_sanitizer,
)

TOOLS: Final = (flashinfer_bench_list_ncu_options, flashinfer_bench_run_ncu, flashinfer_bench_run_sanitizer)
UNDERLINED: Final = re.compile(r"^(\w+)\n-{3,} *$", re.MULTILINE)
"""Heading of a section in numpy style."""
SECTION: Final = re.compile(
    r"^(Args|Parameters|Returns|Raises|Examples?|Notes?|Yields|See Also|References): *$", re.MULTILINE
)
ARGUMENT: Final = re.compile(r"(\w+)(?: *\([^)]*\))?(?: *:(.*))?")
"""First line of an argument: name, perhaps its type in brackets, description. Numpy style has the type after the
colon."""


def get_all_tool_schemas() -> list[dict[str, Any]]:
    """Return the schema of every function in this package that a model may call."""
    return [function_to_schema(function) for function in TOOLS]


def function_to_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool: name, description, and its parameters as a JSON schema.

    Args:
        function: a function with annotated parameters. Its docstring may have a section `Args:`, or `Parameters`
            underlined.
    """
    summary, described = read_docstring(inspect.getdoc(function) or "")
    hints = typing.get_type_hints(function)
    properties: dict[str, Any] = {}
    required = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        schema = properties[name] = type_to_schema(hints.get(name, str))
        if name in described:
            schema["description"] = described[name]
        if parameter.default is parameter.empty:
            required.append(name)
        elif parameter.default is None or isinstance(parameter.default, (str, int, float, bool, list, dict)):
            schema["default"] = parameter.default
    parameters = {"type": "object", "properties": properties, "required": required}
    whole = {"name": function.__name__, "description": summary, "parameters": parameters}
    return {"type": "function", "function": whole}


def type_to_schema(annotation: Any) -> dict[str, Any]:
    """Return the JSON schema of the part of a Python type that a language model can write."""
    try:
        return TypeAdapter(to_written_type(annotation)).json_schema()
    except PydanticUserError:
        return {}


def to_written_type(annotation: Any) -> Any:
    """Return the part of a Python type that a language model can write. A model cannot write an object of this package,
    only the object's name."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = [
        one
        for one in (typing.get_args(annotation) if is_union else [annotation])
        if one is not type(None) and not (isinstance(one, type) and issubclass(one, BaseModel))
    ]
    return typing.Union[tuple(options)] if options else dict  # noqa: UP007 - only known at run time


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """Return the docstring's text before its first section, and the description of each argument."""
    before, *rest = SECTION.split(UNDERLINED.sub(r"\1:", text))
    sections = dict(zip(rest[::2], rest[1::2], strict=True))
    described = {}
    for heading in ("Args", "Parameters"):
        for block in re.split(r"\n(?=\S)", dedent(sections.get(heading, "")).strip()):
            first, _, more = block.partition("\n")
            if argument := ARGUMENT.fullmatch(first.strip()):
                own = (argument[2] or "") if heading == "Args" else ""  # in numpy style, argument[2] is the type
                described[argument[1]] = " ".join(f"{own} {more}".split())
    return " ".join(before.split()), described
