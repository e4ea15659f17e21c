"""What is wrong with a configuration, and where: problems, and their way in and out of pydantic's ValidationError.

A problem keeps pydantic's location. Once its source is known its place is written out, for example
`my.yaml: op_type_config.moe.rtol (line 4)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from flashinfer_bench.data.names import did_you_mean


@dataclass(frozen=True)
class ConfigProblem:
    """One wrong key or value."""

    kind: str
    location: tuple[int | str, ...]
    message: str
    value: Any
    place: str | None = None
    """Source, dotted key and line; None while the source is not known."""

    @classmethod
    def from_details(cls, details: ErrorDetails) -> ConfigProblem:
        """Read one entry of `ValidationError.errors()`."""
        context = details.get("ctx", {})
        message = context.get("what", details["msg"])
        return cls(details["type"], details["loc"], message, details["input"], context.get("place"))

    def dotted(self) -> str:
        """Return the location as one writes it: `op_type_config.moe.rtol`."""
        return ".".join(str(part) for part in self.location)


def unknown_key(problem: ConfigProblem, known: Sequence[str]) -> ConfigProblem:
    """Return an unknown key's problem with the nearest known key in its message; any other problem as it is."""
    if problem.kind != "extra_forbidden":
        return problem
    hint = did_you_mean(str(problem.location[-1]), known) or f"; known keys: {', '.join(known)}"
    return replace(problem, kind="unknown_key", message=f"unknown key{hint}")


def placed(problem: ConfigProblem, source: str, lines: Mapping[tuple[str, ...], int]) -> ConfigProblem:
    """Return the problem with its place in a source; `lines` maps locations, or prefixes of them, to line numbers."""
    location = tuple(str(part) for part in problem.location)
    line = next((lines[location[:end]] for end in range(len(location), 0, -1) if location[:end] in lines), None)
    place = ": ".join(filter(None, [source, problem.dotted()])) + (f" (line {line})" if line else "")
    return replace(problem, place=place)


def to_validation_error(title: str, problems: Iterable[ConfigProblem]) -> ValidationError:
    """Return the problems as the exception that pydantic itself would raise."""
    return ValidationError.from_exception_data(title, [_to_details(problem) for problem in problems])


def describe_problems(error: ValidationError) -> list[str]:
    """Return one line for each problem of a configuration: the place, what is wrong, the nearest known name."""
    problems = [ConfigProblem.from_details(details) for details in error.errors(include_url=False)]
    return [f"{problem.place or f'{error.title}: {problem.dotted()}'}: {problem.message}" for problem in problems]


def _to_details(problem: ConfigProblem) -> InitErrorDetails:
    if problem.place is None:
        fault = PydanticCustomError(problem.kind, "{what}", {"what": problem.message})
    else:
        context = {"place": problem.place, "what": problem.message}
        fault = PydanticCustomError(problem.kind, "{place}: {what}", context)
    return InitErrorDetails(type=fault, loc=problem.location, input=problem.value)
