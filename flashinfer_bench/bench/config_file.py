"""Reads a YAML configuration file into a mapping and the line of every key. `config.py` knows what the keys mean."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.yaml_text import MOST_YAML_BYTES, parse_yaml
from flashinfer_bench.errors import ConfigError

DEPTH_LIMIT: Final = 5
"""Look for lines of keys to this depth, which no key of ours exceeds."""


@dataclass(frozen=True)
class ConfigFile:
    """The raw content of a configuration file."""

    values: dict[Any, Any]
    lines: dict[tuple[str, ...], int]
    """Line of each key, by its path of keys."""


def read_config_file(path: Path) -> ConfigFile:
    """Read a YAML file that holds a mapping.

    Raises:
        ConfigError: the file is missing or no YAML, is no mapping, or has a key twice; the message names file and line.
    """
    text = _read_text(path)
    try:
        root, values = parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_line_of(error, text)}: this is not YAML: {_what_of(error)}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        line = root.start_mark.line + 1 if root is not None else 1
        kind = type(values).__name__
        raise ConfigError(f"{path}: line {line}: a mapping of keys to values is needed, this is a {kind}")
    keys = list(_walk_keys(root, ()))
    _check_no_key_twice(path, keys)
    return ConfigFile(values, dict(keys))


def _read_text(path: Path) -> str:
    try:
        return read_whole(path, MOST_YAML_BYTES).decode("utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: there is no such file") from error
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}: line {line}: this is not UTF-8 text") from error


def _line_of(error: yaml.YAMLError, text: str) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f": line {text.count(chr(10), 0, error.position) + 1}"
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f": line {mark.line + 1}"


def _what_of(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)


def _walk_keys(node: yaml.Node | None, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if not isinstance(node, yaml.MappingNode) or len(path) >= DEPTH_LIMIT:
        return
    for key, value in node.value:
        here = (*path, str(key.value))
        yield here, key.start_mark.line + 1
        yield from _walk_keys(value, here)


def _check_no_key_twice(path: Path, keys: list[tuple[tuple[str, ...], int]]) -> None:
    # PyYAML keeps the last one in silence.
    first: dict[tuple[str, ...], int] = {}
    twice = []
    for key, line in keys:
        if first.setdefault(key, line) != line:
            twice.append(f"{path}: {'.'.join(key)} (line {line}): this key stands on line {first[key]} already")
    if twice:
        raise ConfigError("\n".join(twice))
