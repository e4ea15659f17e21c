"""Evaluators from outside this package: which ones a run has. None is imported here; `registry` does that.

A plug-in is written as an entry point's value is, `module` or `module:name`. It comes from the configuration
(`evaluator_modules`), from an installed package (entry-point group `flashinfer_bench.evaluators`), or from a script
that has appended a class to `registry._EVALUATORS` in its own process, where no judging is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final

from flashinfer_bench.errors import ConfigError

GROUP: Final = "flashinfer_bench.evaluators"
BUILT_IN: Final = "built-in"
APPENDED: Final = "registry._EVALUATORS"
REGISTRY: Final = "flashinfer_bench.bench.evaluators.registry"
OWN_PACKAGE: Final = "flashinfer_bench."


@dataclass(frozen=True)
class PlugIn:
    """A module with evaluators, or one evaluator of it."""

    reference: str
    """`module` or `module:name`."""
    origin: str
    """Who asked for it."""
    is_first: bool = True
    """Its evaluators are asked before the built-in ones."""


@dataclass(frozen=True)
class EvaluatorChoice:
    """Which evaluator judges a definition, and why."""

    name: str
    """The class."""
    module: str
    origin: str
    """`BUILT_IN`, or where the plug-in came from."""
    why: str
    fingerprint: str
    """Class and revision; of a plug-in the digest of its source too."""


EntryPoints = Callable[..., Iterable[metadata.EntryPoint]]


def list_plug_ins(modules: Sequence[str], *, find_entry_points: EntryPoints = metadata.entry_points) -> list[PlugIn]:
    """Return the plug-ins in the order in which they are asked: the configuration's, installed ones, appended ones.

    Args:
        modules: the configuration's `evaluator_modules`.
        find_entry_points: takes `group=`.

    Raises:
        ConfigError: a class was appended in this process that no other process could import.
    """
    named = [PlugIn(reference, f"evaluator_modules: {reference}") for reference in modules]
    installed = sorted(find_entry_points(group=GROUP), key=lambda entry: (entry.name, entry.value))
    appended = list_appended(sys.modules[REGISTRY]._EVALUATORS) if REGISTRY in sys.modules else []
    return [*named, *map(_read_entry_point, installed), *appended]


def list_appended(evaluators: Sequence[Any]) -> list[PlugIn]:
    """Return the evaluators of a registry that are not ours, as plug-ins that have the same place in its order.

    Raises:
        ConfigError: one was defined where only this process can find it.
    """
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
        found.append(PlugIn(f"{evaluator.__module__}:{name}", APPENDED, is_first=is_first))
    return found


def _read_entry_point(entry: metadata.EntryPoint) -> PlugIn:
    distribution = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    reference = f"{entry.module}:{entry.attr}" if entry.attr else entry.module
    return PlugIn(reference, f"entry point {entry.name}{distribution}")
