"""The base of every data-set model: frozen, keeps keys it does not know, writes only what was given.

Unknown keys are kept so that files of a newer or foreign schema survive a round trip; `store.read` warns about those
that look like a misspelt known key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict


class DataModel(BaseModel):
    """A noun of the trace-set format."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")

    always_written: ClassVar[frozenset[str]] = frozenset()
    """Fields with a default that the format requires: written even when nobody set them."""
    known_extras: ClassVar[frozenset[str]] = frozenset()
    """Keys seen in public files that are kept and mean nothing here: never reported as misspelt."""

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002 - pydantic's signature
        """Count the fields that the format requires as set, so that they are written."""
        if self.always_written:
            self.model_fields_set.update(self.always_written)

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the model as JSON: what was given and what the format requires, NaN and infinities as strings."""
        return self.model_dump_json(exclude_unset=True, indent=indent)

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON of `to_json` as plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(self.to_json())
        return plain

    def has_unknown_keys(self) -> bool:
        """Tell whether `unknown_keys` may yield anything; quick, for the many lines that have none."""
        return bool(self.model_extra) or any(
            child.has_unknown_keys() for value in self.__dict__.values() for _, child in _children(value)
        )

    def unknown_keys(self) -> Iterator[tuple[tuple[str, ...], type[DataModel]]]:
        """Yield the place of every key that no field of its model has, and that model."""
        for key in self.model_extra or ():
            if key not in self.known_extras:
                yield (key,), type(self)
        for name, value in self.__dict__.items():
            for step, child in _children(value):
                for place, model in child.unknown_keys():
                    yield (name, *step, *place), model


def _children(value: object) -> Iterator[tuple[tuple[str, ...], DataModel]]:
    if isinstance(value, DataModel):
        yield (), value
    elif isinstance(value, dict):
        yield from (((str(key),), item) for key, item in value.items() if isinstance(item, DataModel))
    elif isinstance(value, list):
        yield from (((str(index),), item) for index, item in enumerate(value) if isinstance(item, DataModel))
