"""Parses YAML that somebody else may have written: aliases and merge keys may unfold to billions of values.

Imports nothing of ours.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

MOST_YAML_BYTES: Final = 1 << 19
"""A YAML file of more bytes is refused; one of this size takes some ten seconds to parse."""
MOST_VALUES: Final = 100_000
"""YAML that unfolds to more keys and values than this is refused."""


def parse_yaml(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a YAML document, with the places of all keys, and what it holds.

    Raises:
        yaml.YAMLError: it is no YAML, or unfolds to too much.
    """
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        _check_values(root)
        return root, loader.construct_document(root)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except (ValueError, OverflowError) as error:  # a date that is none, a number with thousands of digits
        raise yaml.YAMLError(str(error)) from error
    finally:
        loader.dispose()


def _check_values(root: yaml.Node) -> None:
    """Raise YAMLError where aliases unfold to too many values, or a value contains itself."""
    values: dict[int, int] = {}
    open_nodes: set[int] = set()
    waiting: list[tuple[yaml.Node, bool]] = [(root, False)]
    while waiting:
        node, is_counted = waiting.pop()
        below = _children(node)
        if is_counted:
            open_nodes.discard(id(node))
            values[id(node)] = 1 + sum(values[id(child)] for child in below)
            if values[id(node)] > MOST_VALUES:
                raise yaml.YAMLError(f"it unfolds to more than {MOST_VALUES:,} values")
        elif id(node) in open_nodes:
            raise yaml.YAMLError("a value contains itself")
        elif id(node) not in values:
            open_nodes.add(id(node))
            waiting += [(node, True), *((child, False) for child in below)]


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []
