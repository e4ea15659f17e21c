"""Evaluators from outside this package: which ones a run has. They are imported by `registry`, not here.

A plug-in is named `module` or `module:name`, as the value of an entry point. It comes from one of three places: the
configuration (`evaluator_modules`), an installed package (entry-point group `flashinfer_bench.evaluators`), or a script
that appended a class to `registry._EVALUATORS`. The script's process does not judge, so the class is imported again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.evaluators.parameters import Parameter
from flashinfer_bench.errors import ConfigError

GROUP: Final = "flashinfer_bench.evaluators"
"""Group of entry points with which an installed package names its evaluators."""
BUILT_IN: Final = "built-in"
"""Origin of this package's evaluators."""
APPENDED: Final = "registry._EVALUATORS"
"""Origin of evaluators that were appended to the registry."""
REGISTRY: Final = "flashinfer_bench.bench.evaluators.registry"
"""Module of the registry; it needs torch, so it is looked at only where something else has imported it."""
OWN_PACKAGE: Final = "flashinfer_bench."
"""Start of the module names of this package's evaluators."""


@dataclass(frozen=True)
class PlugIn:
    """A module with evaluators, or one evaluator of a module."""

    reference: str
    """`module` or `module:name`."""
    origin: str
    """Where it was named, for messages."""
    is_first: bool = True
    """Whether its evaluators are asked before the built-in ones."""
    folder: str | None = None
    """Where this process finds its module; others may not have the folder on their search path, as that of a script."""


@dataclass(frozen=True)
class EvaluatorChoice:
    """Which evaluator judges a definition, and why."""

    name: str
    """Name of the class."""
    module: str
    origin: str
    """`BUILT_IN`, or where the plug-in was named."""
    why: str
    """Why the evaluator takes the definition, in one line."""
    fingerprint: str
    """Class and revision; for a plug-in also a digest of its source file."""
    parameters: Mapping[str, Parameter] | None = None
    """What it declares of the keys of `extra` that it reads; None where it declares nothing, or is built in."""


EntryPoints = Callable[..., Iterable[metadata.EntryPoint]]


def list_plug_ins(modules: Sequence[str], *, find_entry_points: EntryPoints = metadata.entry_points) -> list[PlugIn]:
    """Return the plug-ins in the order in which they are asked: the configuration's, installed ones, appended ones.

    Args:
        modules: the configuration's `evaluator_modules`.
        find_entry_points: gives the entry points of `group=`.

    Raises:
        ConfigError: a class that was appended in this process cannot be imported by another process.
    """
    named = [
        PlugIn(reference, f"evaluator_modules: {reference}", folder=_find_folder(reference)) for reference in modules
    ]
    installed = sorted(find_entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    appended = list_appended(sys.modules[REGISTRY]._EVALUATORS) if REGISTRY in sys.modules else []
    return [*named, *map(_read_entry_point, installed), *appended]


def list_appended(evaluators: Sequence[Any]) -> list[PlugIn]:
    """Return the evaluators of a registry that are not of this package, as plug-ins with the same place in its order.

    Raises:
        ConfigError: one is no class, or was defined where only this process can find it.
    """
    for evaluator in evaluators:
        if not isinstance(evaluator, type):
            raise ConfigError(f"{APPENDED}: {evaluator!r} is no class; append the class itself, and no object of it")
    is_own = [evaluator.__module__.startswith(OWN_PACKAGE) for evaluator in evaluators]
    found = []
    for place, evaluator in enumerate(evaluators):
        if is_own[place]:
            continue
        name = evaluator.__qualname__
        if evaluator.__module__ == "__main__" or "<locals>" in name:
            raise ConfigError(
                f"{APPENDED}: {name} is defined in the script or in a function of it, where the process that judges "
                "cannot import it; put it into a module, and the module into evaluator_modules"
            )
        is_first = place < is_own.index(True) if True in is_own else True
        reference = f"{evaluator.__module__}:{name}"
        found.append(PlugIn(reference, APPENDED, is_first=is_first, folder=_find_folder(reference)))
    return found


def _find_folder(reference: str) -> str | None:
    """Return the folder that this process would import a plug-in's module or package from; nothing is imported."""
    spec = PathFinder.find_spec(reference.partition(":")[0].partition(".")[0])
    places = [] if spec is None else [*(spec.submodule_search_locations or ()), spec.origin]
    return next((str(Path(place).absolute().parent) for place in places if place is not None), None)


def _read_entry_point(entry: metadata.EntryPoint) -> PlugIn:
    distribution = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    reference = f"{entry.module}:{entry.attr}" if entry.attr else entry.module
    return PlugIn(reference, f"entry point {entry.name}{distribution}")
