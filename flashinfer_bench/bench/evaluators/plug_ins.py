"""Evaluators from outside this package: the plug-ins of a run, and the keys of `extra` that they declare.

`registry` imports the plug-ins, so this module needs no torch. A plug-in is named `module` or `module:name`, like the
value of an entry point. A plug-in comes from one of three locations: the configuration (`evaluator_modules`), an
installed package (entry-point group `flashinfer_bench.evaluators`), or a script that appended a class to
`registry._EVALUATORS`. The script's process does not judge, so the judge's process imports the class again.

An evaluator declares key → default, or key → type if there is no default. If all plug-ins of a run declare their keys,
the run refuses every other key as misspelt. If a plug-in declares no keys, the run refuses only a key that is similar
to a known key.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.config_sources import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import KNOWN_KEYS, list_extras
from flashinfer_bench.data.names import KEY_CUTOFF, did_you_mean, nearest_name
from flashinfer_bench.errors import ConfigError

GROUP: Final = "flashinfer_bench.evaluators"
"""Entry-point group in which an installed package lists its evaluators."""
BUILT_IN: Final = "built-in"
"""Origin of this package's evaluators."""
APPENDED: Final = "registry._EVALUATORS"
"""Origin of evaluators that were appended to the registry."""
REGISTRY: Final = "flashinfer_bench.bench.evaluators.registry"
"""Module of the registry. The registry needs torch, so it is read only if it has been imported already."""
OWN_PACKAGE: Final = "flashinfer_bench."
"""Start of the module names of this package's evaluators."""
KINDS: Final[dict[str, tuple[str, type | tuple[type, ...]]]] = {
    "bool": ("true or false", bool),
    "int": ("a whole number", int),
    "float": ("a number", (int, float)),
    "str": ("text", str),
    "list": ("a list", list),
    "dict": ("a mapping", dict),
    "NoneType": ("any value", object),
}
"""Name of a type → the words for its values in messages, and the accepted Python types."""


@dataclass(frozen=True)
class PlugIn:
    """A module with evaluators, or one evaluator of a module."""

    reference: str
    """`module` or `module:name`."""
    origin: str
    """The setting or entry point that names the plug-in, for messages."""
    is_first: bool = True
    """Whether its evaluators are asked before the built-in evaluators."""
    folder: str | None = None
    """The folder from which this process imports the module; other processes may lack it on their search path."""


@dataclass(frozen=True)
class Parameter:
    """One key of `extra` that an evaluator reads."""

    kind: str
    """A key of `KINDS`."""
    default: Any = None
    has_default: bool = False

    def accepts(self, value: Any) -> bool:
        """Return whether a value is of the declared type."""
        is_bool = isinstance(value, bool) and self.kind not in ("bool", "NoneType")
        return isinstance(value, KINDS[self.kind][1]) and not is_bool


@dataclass(frozen=True)
class EvaluatorChoice:
    """Which evaluator judges a definition, and why."""

    name: str
    """Name of the class."""
    module: str
    origin: str
    """`BUILT_IN`, or the setting or entry point that names the plug-in."""
    why: str
    """Reason why the evaluator takes the definition, in one line."""
    fingerprint: str
    """Class and revision; for a plug-in also a digest of its source file."""
    parameters: Mapping[str, Parameter] | None = None
    """The keys of `extra` that the evaluator declares; None if it declares no keys, or is built in."""


@dataclass(frozen=True)
class KnownParameters:
    """The declarations of all plug-ins of a run. All plug-ins share one `extra`, so a key of another plug-in is not
    misspelt."""

    keys: frozenset[str] = field(default_factory=frozenset)
    are_all: bool = True
    """Whether every plug-in declares its keys."""


def list_plug_ins(modules: Sequence[str]) -> list[PlugIn]:
    """Return the plug-ins in the order in which they are asked: configured, then installed, then appended plug-ins.

    Args:
        modules: the configuration's `evaluator_modules`.

    Raises:
        ConfigError: a class that was appended in this process cannot be imported by another process.
    """
    result = [PlugIn(name, f"evaluator_modules: {name}", folder=_find_folder(name)) for name in modules]
    for entry in sorted(metadata.entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value)):
        distribution = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        result.append(PlugIn(entry.value, f"entry point {entry.name}{distribution}"))
    return [*result, *(list_appended(sys.modules[REGISTRY]._EVALUATORS) if REGISTRY in sys.modules else ())]


def list_appended(evaluators: Sequence[Any]) -> list[PlugIn]:
    """Return the evaluators of a registry that are not this package's, as plug-ins in the registry's order.

    Raises:
        ConfigError: an entry is no class, or another process cannot import the class.
    """
    result, is_first = [], True
    for evaluator in evaluators:
        if not isinstance(evaluator, type):
            raise ConfigError(f"{APPENDED}: {evaluator!r} is no class; append the class itself, and no object of it")
        module, name = evaluator.__module__, evaluator.__qualname__
        if module.startswith(OWN_PACKAGE):
            is_first = False
            continue
        if module == "__main__" or "<locals>" in name:
            raise ConfigError(
                f"{APPENDED}: {name} is defined in the script or in a function of it, where the process that judges "
                "cannot import it; put it into a module, and the module into evaluator_modules"
            )
        result.append(PlugIn(f"{module}:{name}", APPENDED, is_first, _find_folder(module)))
    return result


def _find_folder(reference: str) -> str | None:
    """Return the folder from which this process would import a plug-in's module or package; import nothing."""
    spec = PathFinder.find_spec(reference.partition(":")[0].partition(".")[0])
    locations = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return next((str(Path(location).absolute().parent) for location in locations if location is not None), None)


def read_parameters(declared: Any) -> dict[str, Parameter]:
    """Read the declaration of an evaluator (`extra_keys`).

    Raises:
        ValueError: the declaration is no mapping of names to defaults or types.
    """
    if not isinstance(declared, Mapping) or not all(isinstance(key, str) for key in declared):
        raise ValueError(f"{declared!r} is no mapping of names to defaults or types")
    result = {}
    for key, value in declared.items():
        default = list(value) if isinstance(value, tuple) else value
        is_type = isinstance(value, type)
        kind = value.__name__ if is_type else type(default).__name__
        try:
            json.dumps(None if is_type else default)
        except (TypeError, ValueError):
            kind = ""
        if kind not in KINDS:
            raise ValueError(f"{value!r} is neither a default, which is a value of JSON, nor a type of such values")
        result[key] = Parameter(kind) if is_type else Parameter(kind, default, has_default=True)
    return result


def find_wrong_parameters(
    config: ResolvedEvalConfig, evaluator: str, parameters: Mapping[str, Parameter], known: KnownParameters
) -> list[str]:
    """Return a message for each key or value of `extra` that an evaluator cannot use. The message names the setting's
    origin.

    Args:
        config: the settings of a definition that this evaluator judges.
        evaluator: name of the evaluator.
        parameters: the keys that the evaluator declares.
        known: the declarations of all plug-ins of the run.
    """
    everyone = sorted({*parameters, *KNOWN_KEYS, *known.keys})

    def check(key: str, value: Any) -> str | None:
        if key in parameters and not parameters[key].accepts(value):
            return f"extra.{key} is {value!r}; {evaluator} takes {KINDS[parameters[key].kind][0]}"
        if key not in everyone and (known.are_all or nearest_name(key, everyone, cutoff=KEY_CUTOFF)):
            hint = did_you_mean(key, everyone) or f"; {evaluator} has {', '.join(parameters) or 'none'}"
            return f"extra.{key} is no parameter of {evaluator}, nor of another evaluator{hint}"
        return None

    return list_extras([config], check)
