"""The base of every model of the format. It is frozen, keeps unknown keys, and writes only given fields.

Unknown keys are kept, so files of a newer or foreign schema survive a round trip. `store.parse` warns about unknown
keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, ClassVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, StringConstraints

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
"""A text of at least one character."""


class DataModel(BaseModel):
    """An object of the trace-set format."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")

    always_written: ClassVar[tuple[str, ...]] = ()
    """Fields that the format requires. They are written even if they have their default."""

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002 - pydantic's signature
        """Mark the required fields as given, so that they are written."""
        if self.always_written:
            self.model_fields_set.update(self.always_written)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return the model as JSON: the given and the required fields, NaN and infinities as strings.

        A solution may print unpaired surrogates, which cannot be written to a file. They become question marks.
        """
        try:
            return self.model_dump_json(exclude_unset=True, indent=indent)
        except pydantic_core.PydanticSerializationError:
            plain = _writable(self.model_dump(exclude_unset=True))
            return pydantic_core.to_json(plain, indent=indent, inf_nan_mode="strings").decode()

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of `to_json` as plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(self.to_json())
        return plain

    def unknown_keys(self) -> Iterator[tuple[tuple[str, ...], DataModel]]:
        """Yield the location of every unknown key, and the model that holds it."""
        for key in self.__pydantic_extra__ or ():
            yield (key,), self
        for name, value in self.__dict__.items():
            for steps, child in _children(value):
                if isinstance(child, DataModel):
                    for location, owner in child.unknown_keys():
                        yield (name, *steps, *location), owner

    def fields_at_default(self) -> list[str]:
        """Return the fields that have their default value. A misspelt key may mean one of these fields."""
        fields = type(self).model_fields.items()
        optional = ((name, field.get_default(call_default_factory=True)) for name, field in fields)
        return [name for name, default in optional if getattr(self, name) == default]


class TaggedModel(DataModel):
    """One of several forms of an object. Its field `type` names the form, and is always written."""

    always_written = ("type",)


def _children(value: object) -> Iterable[tuple[tuple[str, ...], object]]:
    """Return the parts of a field's value, each with its key or index."""
    if isinstance(value, dict):
        return [((str(key),), child) for key, child in value.items()]
    if isinstance(value, list):
        return [((str(index),), child) for index, child in enumerate(value)]
    return [((), value)]


def _writable(value: Any) -> Any:
    """Return plain data in which question marks replace the characters that UTF-8 cannot encode."""
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_writable(item) for item in value]
    return value.encode("utf-8", "replace").decode() if type(value) is str else value
