"""A YAML file with the line of every key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.yaml_text import MOST_YAML_BYTES, parse_yaml
from flashinfer_bench.errors import ConfigError

DEPTH_LIMIT: Final = 5
"""Deepest level of keys whose lines are recorded. No setting lies deeper."""


@dataclass(frozen=True)
class YamlFile:
    """Raw content of a file."""

    values: dict[Any, Any]
    lines: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    """Path of keys → line of the last key."""


def read_yaml_file(path: Path) -> YamlFile:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: the file is missing, is no YAML or no mapping, or has a key twice. The message names the line of
            the error if YAML gives a line.
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
        if key in lines:  # PyYAML would silently keep the last value
            twice.append(f"{path}: {'.'.join(key)} (line {line}): this key stands on line {lines[key]} already")
        lines.setdefault(key, line)
    if twice:
        raise ConfigError("\n".join(twice))
    return YamlFile(values or {}, lines)


def _walk_keys(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode) and len(path) < DEPTH_LIMIT:
        for key, value in node.value:
            here = (*path, str(key.value))
            yield here, key.start_mark.line + 1
            yield from _walk_keys(value, here)
