"""Parameters of an evaluator from outside: the keys of `extra` that it declares, and what is given for them.

An evaluator declares key → default, or key → type where there is no default. Where all plug-ins of a run declare
theirs, every other key is a slip; where one declares nothing, only a key that is nearly a known one is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import known_keys
from flashinfer_bench.data.names import KEY_CUTOFF, did_you_mean, nearest_name

WORDS: Final[dict[str, str]] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
    "NoneType": "any value",
}
"""Name of a type → what a value of it is called in a configuration."""
TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "bool": bool,
    "int": int,
    "float": (int, float),
    "str": str,
    "list": list,
    "dict": dict,
}


@dataclass(frozen=True)
class Parameter:
    """One key of `extra` that an evaluator reads."""

    kind: str
    """A key of `WORDS`."""
    default: Any = None
    has_default: bool = False

    @classmethod
    def of(cls, declared: Any) -> Parameter:
        """Read what an evaluator declares for a key.

        Raises:
            ValueError: it is neither a type of JSON values nor a value of JSON.
        """
        if isinstance(declared, type):
            kind, parameter = declared.__name__, cls(declared.__name__)
        else:
            kind = "list" if isinstance(declared, tuple) else type(declared).__name__
            parameter = cls(kind, list(declared) if isinstance(declared, tuple) else declared, has_default=True)
        try:
            json.dumps(parameter.default)
        except (TypeError, ValueError):
            kind = ""
        if kind not in WORDS:
            raise ValueError(f"{declared!r} is neither a default, which is a value of JSON, nor a type of such values")
        return parameter

    def accepts(self, value: Any) -> bool:
        """Tell whether a value is of the type that was declared."""
        if self.kind not in TYPES:
            return True
        is_bool = isinstance(value, bool)
        return is_bool if self.kind == "bool" else isinstance(value, TYPES[self.kind]) and not is_bool


Parameters = Mapping[str, Parameter]


@dataclass(frozen=True)
class KnownParameters:
    """What the plug-ins of a run declare together. `extra` is one for all of them, so a key of another is no slip."""

    keys: frozenset[str] = field(default_factory=frozenset)
    are_all: bool = True
    """Whether every plug-in declares its keys."""


def read_parameters(declared: Any) -> dict[str, Parameter]:
    """Read what an evaluator declares (`extra_keys`).

    Raises:
        ValueError: it is no mapping of names to defaults or types.
    """
    if not isinstance(declared, Mapping) or not all(isinstance(key, str) for key in declared):
        raise ValueError(f"{declared!r} is no mapping of names to defaults or types")
    return {key: Parameter.of(value) for key, value in declared.items()}


def find_wrong_parameters(
    config: ResolvedEvalConfig, evaluator: str, parameters: Parameters, known: KnownParameters
) -> list[str]:
    """Return a line for each key and value of `extra` that an evaluator cannot use, with the place that gave it.

    Args:
        config: the settings of a definition that it judges.
        evaluator: its name.
        parameters: what it declares.
        known: what all plug-ins of the run declare.
    """
    wrong = _wrong(config.extra, evaluator, parameters, known)
    return [f"{config.origins.get(f'extra.{key}', 'the configuration')}: {reason}" for key, reason in wrong]


def _wrong(
    extra: Mapping[str, Any], evaluator: str, parameters: Parameters, known: KnownParameters
) -> Iterator[tuple[str, str]]:
    everyone = sorted({*parameters, *known_keys(), *known.keys})
    for key, value in extra.items():
        if key in parameters and not parameters[key].accepts(value):
            yield key, f"extra.{key} is {value!r}; {evaluator} takes {WORDS[parameters[key].kind]}"
        elif key not in everyone and (known.are_all or nearest_name(key, everyone, cutoff=KEY_CUTOFF)):
            hint = did_you_mean(key, everyone) or f"; {evaluator} has {', '.join(parameters) or 'none'}"
            yield key, f"extra.{key} is no parameter of {evaluator}, nor of another evaluator{hint}"
