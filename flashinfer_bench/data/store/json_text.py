"""JSON as text: parsing it with its repeated keys, and finding the line of a field so that an issue can point at it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from json.decoder import JSONDecoder
from typing import Final

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER: Final = JSONDecoder()
MOST_JSON_BYTES: Final = 32 << 20
"""A JSON file, or a line of JSON, of more bytes is refused."""
MOST_VALUES: Final = 1_000_000
"""JSON with more values than this is refused: no file of a set has so many, and each may become an issue."""
MOST_MEMBERS: Final = 10_000
"""A field is looked up among so many members of an object; an issue about a later one names the object's line."""
DEEPEST: Final = 200
"""JSON that is nested deeper than this is refused, as pydantic does: Python recurses through it in many places."""


def find_line(text: str, place: Sequence[str]) -> int:
    """Return the line (from 1) of the deepest part of `place` that the JSON text has.

    Args:
        text: one valid JSON value.
        place: keys of objects and indices of lists, from the outside in.
    """
    position = _SPACE.match(text, 0).end()  # type: ignore[union-attr] # the pattern always matches
    for step in place:
        try:
            found = _find_member(text, position, step)
        except (ValueError, IndexError, RecursionError):
            break
        if found is None:
            break
        position = found
    return text.count("\n", 0, position) + 1


def _find_member(text: str, position: int, step: str) -> int | None:
    """Return where the value of one key or index of the object or list at `position` starts."""
    if text[position] not in "{[":
        return None
    is_object = text[position] == "{"
    index = 0
    position = _skip_space(text, position + 1)
    while text[position] not in "}]" and index < MOST_MEMBERS:
        key = str(index)
        if is_object:
            key, position = _DECODER.raw_decode(text, position)
            position = _skip_space(text, _skip_space(text, position) + 1)
        if key == step:
            return position
        _, position = _DECODER.raw_decode(text, position)
        position = _skip_space(text, position)
        if text[position] == ",":
            position = _skip_space(text, position + 1)
        index += 1
    return None


def _skip_space(text: str, position: int) -> int:
    return _SPACE.match(text, position).end()  # type: ignore[union-attr] # the pattern always matches


def parse_json(text: str) -> tuple[object, list[str]]:
    """Parse JSON, and name the keys that stand twice in one object (the last one counts).

    Raises:
        ValueError: it is no JSON; a `json.JSONDecodeError` where the place is known.
    """
    repeated: list[str] = []

    def _build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        built = dict(pairs)
        if len(built) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend(sorted(key for key, count in counts.items() if count > 1))
        return built

    try:
        parsed = json.loads(text, object_pairs_hook=_build)
        check_extent(parsed)
        if _HALF_CHARACTER.search(text):
            json.dumps(parsed, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    except UnicodeEncodeError as error:
        raise ValueError("it has half of a surrogate pair, which no file can hold") from error
    return parsed, repeated


def check_extent(parsed: object) -> None:
    """Raise ValueError for parsed JSON with too many values, or that is nested too deeply."""
    layer, count, depth = [parsed], 1, 0
    while layer:
        below: list[object] = []
        for value in layer:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list):
                below += value
        count, depth = count + len(below), depth + 1
        if count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
        layer = below
