"""Turns functions into tool schemas, in the common JSON form of model APIs, from signature and docstring."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Collection
from textwrap import dedent
from typing import Annotated, Any, ClassVar, Final

from pydantic import BaseModel, Field, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

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


class UntitledSchema(GenerateJsonSchema):
    """Makes schemas without the titles that pydantic forms from names. A default that JSON lacks is omitted."""

    ignored_warning_kinds: ClassVar[Any] = {"non-serializable-default"}  # type: ignore[misc]

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - the base's signature
        """Return False."""
        return False


def function_to_schema(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function as a tool: name, description, and its parameters as a JSON schema.

    Args:
        function: a function with annotated parameters. Its docstring may have a section `Args:`, or `Parameters`
            underlined.
    """

    def call() -> None:
        """Take the function's parameters."""

    typed: Any = call
    text = take_parameters(typed, function)
    schema = {"required": [], **TypeAdapter(typed).json_schema(schema_generator=UntitledSchema)}
    del schema["additionalProperties"]
    for one in schema["properties"].values():
        one.pop("title", None)  # which pydantic before 2.12 always forms
    return {"type": "function", "function": {"name": function.__name__, "description": text, "parameters": schema}}


def take_parameters(
    call: Any,
    function: Callable[..., Any],
    *first: inspect.Parameter,
    hidden: Collection[str] = (),
    is_nullable: bool = False,
) -> str:
    """Give a call the parameters of a function, as a language model writes them. Return the function's description.

    Args:
        call: gets the parameters as keywords.
        function: has annotated parameters and a docstring.
        first: parameters of the call that the function lacks.
        hidden: names of parameters that the call lacks.
        is_nullable: whether a parameter whose default is None takes None.
    """
    text, described = read_docstring(inspect.getdoc(function) or "")
    hints, parameters = typing.get_type_hints(function), list(first)
    for name, one in inspect.signature(function).parameters.items():
        if name in hidden or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            continue
        kind = to_written_type(hints.get(name, str))
        kind = kind | None if is_nullable and one.default is None else kind
        kind = Annotated[kind, Field(description=described.get(name))]
        parameters.append(one.replace(annotation=kind, kind=one.KEYWORD_ONLY))
    call.__signature__ = inspect.Signature(parameters)
    call.__annotations__ = {one.name: one.annotation for one in parameters}
    return text


def to_written_type(annotation: Any) -> Any:
    """Return the part of a Python type that a language model can write, `Any` if it has no schema. A model cannot write
    an object of this package, only the object's name."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    options = [
        one
        for one in (typing.get_args(annotation) if is_union else [annotation])
        if one is not type(None) and not (isinstance(one, type) and issubclass(one, BaseModel))
    ]
    written: Any = typing.Union[tuple(options)] if options else dict  # noqa: UP007 - only known at run time
    try:
        TypeAdapter(written).json_schema()
    except PydanticUserError:
        return Any
    return written


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
