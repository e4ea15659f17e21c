"""The problems of settings with their locations.

Problems are raised as pydantic's ValidationError. Each problem names its location (`my.yaml: op_type_config.moe.rtol
(line 4)`), and for an unknown key the nearest known key. `config.py` and `tolerances.py` know the meaning of the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from flashinfer_bench.data.names import did_you_mean

NEEDED: Final = dict.fromkeys(("model_type", "dict_type"), "a mapping of keys to values is needed")
"""Kind of a pydantic error → the words for it."""


def list_problems(
    error: ValidationError,
    *,
    known: Sequence[str] = (),
    source: str | None = None,
    lines: Mapping[tuple[str, ...], int] | None = None,
) -> list[InitErrorDetails]:
    """Return the problems of a validation error, in the form that `as_validation_error` takes.

    Args:
        error: the validation error.
        known: keys of the model, to suggest one for an unknown key.
        source: origin of the values, if problems get their location.
        lines: line of each key in the source.
    """
    problems = []
    for item in error.errors(include_url=False):
        kind, steps, context = item["type"], item["loc"], item.get("ctx", {})
        what = context.get("what", NEEDED.get(kind, item["msg"]))
        if kind == "extra_forbidden" and known:
            hint = did_you_mean(str(steps[-1]), known) or f"; known keys: {', '.join(known)}"
            kind, what = "unknown_key", f"unknown key{hint}"
        location = _locate(source, steps, lines or {}) if source is not None else context.get("location")
        reported = {"what": what} if location is None else {"location": location, "what": what}
        fault = PydanticCustomError(kind, ": ".join(f"{{{name}}}" for name in reported), reported)
        problems.append(InitErrorDetails(type=fault, loc=steps, input=item["input"]))
    return problems


def _locate(source: str, steps: tuple[int | str, ...], lines: Mapping[tuple[str, ...], int]) -> str:
    keys = tuple(str(part) for part in steps)
    line = next((lines[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in lines), None)
    return ": ".join(filter(None, [source, ".".join(keys)])) + (f" (line {line})" if line else "")


def as_validation_error(title: str, problems: Sequence[InitErrorDetails]) -> ValidationError:
    """Return problems as the exception that pydantic itself would raise."""
    return ValidationError.from_exception_data(title, list(problems))


def describe_problems(error: ValidationError) -> list[str]:
    """Return one line for each problem of a configuration: the location, the reason, the nearest known name."""
    result = [(item, item.get("ctx", {})) for item in error.errors(include_url=False)]
    return [
        f"{context.get('location') or _locate(error.title, item['loc'], {})}: {context.get('what', item['msg'])}"
        for item, context in result
    ]
