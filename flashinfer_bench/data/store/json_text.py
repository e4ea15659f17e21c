"""JSON as text: parsing it with its repeated keys, and finding the line of a field so that an issue can point at it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from json.decoder import JSONDecoder
from typing import Final

_SEPARATORS: Final = re.compile(r"[ \t\r\n,:]*")
_HALF_CHARACTER: Final = re.compile(r"\\u[dD][89a-fA-F]")
_DECODER: Final = JSONDecoder()
MOST_JSON_BYTES: Final = 32 << 20
"""Largest JSON file or line, in bytes."""
MOST_SEARCHED: Final = 1 << 18
"""Longest text in which the line of a field is looked up, in characters: each issue searches it again."""
MOST_VALUES: Final = 1_000_000
"""Most values of one JSON text: each may become an issue."""
DEEPEST: Final = 200
"""Deepest nesting of JSON, as pydantic allows it: Python recurses through it in many places."""


def find_line(text: str, place: Sequence[str]) -> int:
    """Return the line (from 1) of the deepest part of `place` that the JSON text has.

    Args:
        text: one valid JSON value.
        place: keys of objects and indices of lists, from the outside in.
    """
    position = _skip(text, 0)
    for step in place if len(text) <= MOST_SEARCHED else ():
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
    opener, index = text[position], 0
    if opener not in "{[":
        return None
    position = _skip(text, position + 1)
    while text[position] not in "}]":
        key: object = str(index)
        if opener == "{":
            key, position = _DECODER.raw_decode(text, position)
            position = _skip(text, position)
        if key == step:
            return position
        _, position = _DECODER.raw_decode(text, position)
        position, index = _skip(text, position), index + 1
    return None


def _skip(text: str, position: int) -> int:
    return _SEPARATORS.match(text, position).end()  # type: ignore[union-attr] # the pattern always matches


def parse_json(text: str) -> tuple[object, list[str]]:
    """Parse JSON, and name the keys that stand twice in one object (the last one counts).

    Raises:
        ValueError: it is no JSON; a `json.JSONDecodeError` if the place is known.
    """
    repeated: list[str] = []

    def build(pairs: list[tuple[str, object]]) -> dict[str, object]:
        built = dict(pairs)
        if len(built) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend(sorted(key for key, count in counts.items() if count > 1))
        return built

    try:
        parsed = json.loads(text, object_pairs_hook=build)
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
    level, count, depth = [parsed], 1, 0
    while level:
        below: list[object] = []
        for value in level:
            below += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        count, depth, level = count + len(below), depth + 1, below
        if count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES:,} values")
        if depth > DEEPEST:
            raise ValueError("nested too deeply")
