"""A YAML file of settings with the line of every key, and the problems of settings with their locations.

Problems are raised as pydantic's ValidationError. Each names its location (`my.yaml: op_type_config.moe.rtol (line
4)`), and for an unknown key the nearest known key. `config.py` and `tolerances.py` know the meaning of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.yaml_text import MOST_YAML_BYTES, parse_yaml
from flashinfer_bench.errors import ConfigError

NEEDED: Final = dict.fromkeys(("model_type", "dict_type"), "a mapping of keys to values is needed")
"""Kind of a pydantic error → the words for it."""
DEPTH_LIMIT: Final = 5
"""Depth to which lines of keys are recorded. No setting lies deeper."""


@dataclass(frozen=True)
class ConfigFile:
    """Raw content of a settings file."""

    values: dict[Any, Any]
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Line of each key, by its path of keys."""


def read_config_file(path: Path) -> ConfigFile:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: the file is missing, is no YAML or no mapping, or has a key twice. The message names the line, if
            it is known.
    """
    try:
        root, values = parse_yaml(read_whole(path, MOST_YAML_BYTES).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: this is not UTF-8 text") from error
    except yaml.YAMLError as error:
        mark, reason = getattr(error, "problem_mark", None), getattr(error, "problem", None) or error
        line_of = "" if mark is None else f": line {mark.line + 1}"
        raise ConfigError(f"{path}{line_of}: this is not YAML: {reason}") from error
    if not isinstance(values, dict | None):
        kind = type(values).__name__
        raise ConfigError(f"{path}: line 1: a mapping of keys to values is needed, this is a {kind}")
    lines: dict[tuple[str, ...], int] = {}
    twice = []
    for key, line in _walk_keys(root, ()):
        if lines.setdefault(key, line) != line:  # PyYAML would silently keep the last value
            twice.append(f"{path}: {'.'.join(key)} (line {line}): this key stands on line {lines[key]} already")
    if twice:
        raise ConfigError("\n".join(twice))
    return ConfigFile(values or {}, lines)


def _walk_keys(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode) and len(path) < DEPTH_LIMIT:
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk_keys(value, here)


def list_problems(
    error: ValidationError,
    *,
    known: Sequence[str] = (),
    source: str | None = None,
    lines: Mapping[tuple[str, ...], int] | None = None,
) -> list[InitErrorDetails]:
    """Return the problems of a validation error, for a new error by `as_validation_error`.

    Args:
        error: the validation error.
        known: keys of the model, to suggest one for an unknown key.
        source: origin of the values. With it, each problem gets its location.
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
