"""The base of every data-set model: frozen, keeps keys it does not know, writes only what was given.

Unknown keys are kept so that files of a newer or foreign schema survive a round trip; `store.read` warns about them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, cast, get_args

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticSerializationError


class DataModel(BaseModel):
    """A noun of the trace-set format."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")

    always_written: ClassVar[frozenset[str]] = frozenset()
    """Fields with a default that the format requires: written even when nobody set them."""
    known_extras: ClassVar[frozenset[str]] = frozenset()
    """Keys of public files whose meaning is in other fields by now. They are kept, and nothing is said of them."""
    ignored_extras: ClassVar[frozenset[str]] = frozenset()
    """Keys of public files that have no effect here. They are kept, and reading a file with one says so."""
    tells_unknown_keys: ClassVar[bool] = True
    """Whether any unknown key is worth a warning."""

    fields_of_models: ClassVar[tuple[str, ...]] = ()
    """Fields whose values are models, or dicts or lists of them; found from the annotations."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Find the fields that hold models."""
        cls.fields_of_models = tuple(
            name for name, field in cls.model_fields.items() if _holds_models(field.annotation)
        )

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002 - pydantic's signature
        """Count the fields that the format requires as set, so that they are written."""
        if self.always_written:
            self.model_fields_set.update(self.always_written)

    def to_json(self, *, indent: int | None = None) -> str:
        """Write the model as JSON: what was given and what the format requires, NaN and infinities as strings.

        Halves of surrogate pairs, which a solution may print but no file can hold, become question marks.
        """
        try:
            return self.model_dump_json(exclude_unset=True, indent=indent)
        except PydanticSerializationError:
            plain = _writable(self.model_dump(mode="json", exclude_unset=True))
            return json.dumps(plain, indent=indent, ensure_ascii=False, allow_nan=False)

    def to_dict(self) -> dict[str, Any]:
        """Give the JSON of `to_json` as plain dicts, lists, strings and numbers."""
        plain: dict[str, Any] = json.loads(self.to_json())
        return plain

    def has_unknown_keys(self) -> bool:
        """Tell whether `unknown_keys` may yield anything. This is quick, since most lines have no such key."""
        if self.__pydantic_extra__:
            return True
        for name in self.fields_of_models:
            value = self.__dict__[name]
            children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,)
            for child in children:
                if child is not None and child.has_unknown_keys():
                    return True
        return False

    def unknown_keys(self) -> Iterator[tuple[tuple[str, ...], DataModel]]:
        """Yield the place of every key that no field of its model has, and the model that holds it."""
        for key in self.__pydantic_extra__ or ():
            if key not in self.known_extras:
                yield (key,), self
        for name in self.fields_of_models:
            for step, child in _children(self.__dict__[name]):
                for place, owner in child.unknown_keys():
                    yield (name, *step, *place), owner


def _writable(value: Any) -> Any:
    """Replace in plain data what JSON in UTF-8 cannot hold."""
    if isinstance(value, dict):
        return {_writable(key): _writable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_writable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _children(value: object) -> Iterable[tuple[tuple[str, ...], DataModel]]:
    """Pair each model in the value of a field of models with the step to it."""
    if value is None:
        return ()
    if isinstance(value, dict):
        return [((key,), child) for key, child in value.items()]
    if isinstance(value, list):
        return [((str(index),), child) for index, child in enumerate(value)]
    return (((), cast("DataModel", value)),)


def _holds_models(annotation: object) -> bool:
    if parts := get_args(annotation):
        return any(_holds_models(part) for part in parts)
    return isinstance(annotation, type) and issubclass(annotation, DataModel)
