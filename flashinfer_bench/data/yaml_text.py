"""Parses untrusted YAML within limits, since aliases and merge keys may expand to billions of values.

A key is text, exactly as written: 1234, on and 0x12 are names. Imports no other module of the package.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

MOST_YAML_BYTES: Final = 1 << 19
"""Largest YAML file, in bytes. A file of this size takes some ten seconds to parse."""
TAGS: Final = "tag:yaml.org,2002:"
MOST_VALUES: Final = 100_000
"""Largest number of keys and values after expansion."""


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
