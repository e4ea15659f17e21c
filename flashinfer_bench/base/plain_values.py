"""Values of numpy, torch and Python's own types as plain ones: single numbers, and trees that JSON can hold."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from collections.abc import Mapping, Sequence, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any, Final

DEEPEST: Final = 50
"""Levels of a tree."""
MOST_VALUES: Final = 100_000
"""Values in a tree."""
LARGEST_WHOLE: Final = 2**64
"""Whole numbers from this size on become text: readers of JSON have no such numbers."""
MOST_PLACE: Final = 80
"""Characters of a place in a message."""
LIBRARIES: Final = frozenset({"numpy", "torch"})
TEXTUAL: Final = (pathlib.PurePath, uuid.UUID, decimal.Decimal, complex, datetime.timedelta)


class NotPlain(ValueError):
    """A value has no form in JSON. The message names its place."""


def to_number(value: Any) -> Any:
    """Return a single number of numpy or torch as Python's own; any other value as it is."""
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value


def to_json_value(value: Any, place: str = "") -> Any:
    """Return a value as JSON has it: arrays as lists, paths and times as text, enums as their values.

    Args:
        value: made of numbers, texts, mappings, sequences, sets, dataclasses, arrays and tensors.
        place: its name in messages.

    Raises:
        NotPlain: it is of another kind, too deep, or too large.
    """
    try:
        return _convert(value, place, 0, [MOST_VALUES])
    except NotPlain:
        raise
    except Exception as error:  # of a method of the value's own
        raise NotPlain(f"{place} has a value that cannot be read: {type(error).__name__}: {error}") from error


def _convert(value: Any, place: str, depth: int, left: list[int]) -> Any:
    left[0] -= 1
    if left[0] < 0 or depth > DEEPEST:
        limit = f"more than {MOST_VALUES:,} values" if left[0] < 0 else f"more than {DEEPEST} levels"
        raise NotPlain(f"{place[:MOST_PLACE]} has {limit}; a trace holds no more")
    if isinstance(value, enum.Enum):
        return _convert(value.value, place, depth + 1, left)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) < LARGEST_WHOLE else f"{value:#x}"
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "backslashreplace").decode()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return {
            str(_convert(key, place, depth + 1, left)): _convert(item, f"{place}.{key}", depth + 1, left)
            for key, item in value.items()
        }
    if isinstance(value, (Sequence, AbstractSet, ValuesView)):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [_convert(item, f"{place}[{at}]", depth + 1, left) for at, item in enumerate(items)]
    if isinstance(value, TEXTUAL):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return _convert(fields, place, depth + 1, left)
    if hasattr(value, "model_dump"):
        return _convert(value.model_dump(), place, depth + 1, left)
    return _convert(_read_array(value, place, left[0]), place, depth + 1, left)


def _read_array(value: Any, place: str, most: int) -> Any:
    """Return an array or a tensor as a number or a list."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if not hasattr(type(value), "tolist"):
        if kind.partition(".")[0] in LIBRARIES:  # a dtype, a device
            return str(value)
        raise NotPlain(f"{place} is a {kind}, which JSON cannot hold")
    size = value.numel() if hasattr(value, "numel") else value.size
    if size > most:
        raise NotPlain(f"{place} has {size:,} elements; a trace holds {MOST_VALUES:,} values")
    return value.tolist()
