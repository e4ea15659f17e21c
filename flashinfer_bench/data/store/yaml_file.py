"""YAML files, read within limits, with the line of every key. Aliases and merge keys may expand to billions of values.

A key is text, exactly as written: 1234, on and 0x12 are names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.errors import ConfigError

MOST_YAML_BYTES: Final = 1 << 19
"""Largest YAML file, in bytes. A file of this size takes some ten seconds to parse."""
TAGS: Final = "tag:yaml.org,2002:"
MOST_VALUES: Final = 100_000
"""Largest number of keys and values after expansion."""
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


class _Loader(yaml.SafeLoader):
    """Reads keys as text, except merge keys."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        node = super().compose_node(parent, index)
        is_key = isinstance(parent, yaml.MappingNode) and index is None
        if not is_key or not isinstance(node, yaml.ScalarNode) or node.tag == f"{TAGS}merge":
            return node
        return yaml.ScalarNode(f"{TAGS}str", node.value, node.start_mark, node.end_mark, node.style)


def parse_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a YAML document, with the locations of all keys, and the value of the document.

    Raises:
        yaml.YAMLError: the text is not YAML, or expands to too many values.
    """
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        _count(root, {})
        return root, loader.construct_document(root)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # an invalid date, or a number with thousands of digits
        raise yaml.YAMLError(str(error)) from error
    finally:
        loader.dispose()


def _count(node: yaml.Node, counts: dict[int, int]) -> int:
    """Return the number of values that a node expands to.

    Args:
        node: a node from the parser, which limits the depth.
        counts: id of a node → number of values in the node, 0 while the count is in progress.

    Raises:
        yaml.YAMLError: aliases expand to too many values, or a value contains itself.
    """
    if id(node) not in counts:
        counts[id(node)] = 0
        below = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [part for pair in below for part in pair] if isinstance(node, yaml.MappingNode) else below
        counts[id(node)] = 1 + sum(_count(part, counts) for part in parts)
    if not counts[id(node)]:
        raise yaml.YAMLError("a value contains itself")
    if counts[id(node)] > MOST_VALUES:
        raise yaml.YAMLError(f"it unfolds to more than {MOST_VALUES:,} values")
    return counts[id(node)]
