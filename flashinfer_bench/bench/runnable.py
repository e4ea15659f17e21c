"""A solution or a reference as a callable of this process, for debugging: NOTHING IS ISOLATED.

The solution's code runs in this process with all rights of the process. The code can change the results of everything
else in the process, and crash the process. `Benchmark` never judges like this. `flashinfer_bench.compile` has these
names for scripts.

The engine builds in separate processes, and keeps the results in its cache. Only the results are loaded here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.utils import allocate_outputs, normalize_result
from flashinfer_bench.bench.machine import discover_devices
from flashinfer_bench.bench.runner.workers.calling_style import choose_style
from flashinfer_bench.compile import BuildTarget, build_solution
from flashinfer_bench.data import Definition, Solution
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import Fault, FlashInferBenchError
from flashinfer_bench.worker.load import PACKAGE, LoadedEntry, load_entry


@dataclass(frozen=True)
class RunnableMetadata:
    """The metadata of a runnable."""

    build_type: str
    """The way it was loaded: "python", "tvm-ffi", "torch", or "reference"."""
    definition_name: str
    solution_name: str
    destination_passing_style: bool
    """Whether it writes into outputs that it is given."""
    definition: Definition


@dataclass
class Runnable:
    """A function in this process, without isolation, and its metadata."""

    function: Callable[..., Any]
    metadata: RunnableMetadata

    def __call__(self, *args: Any) -> Any:
        """Call it in its own style: with the inputs, followed by the outputs if it fills them."""
        return self.function(*args)

    def call_kwargs(self, **kwargs: Any) -> Any:
        """Call it in its own style, with the names of the definition.

        Raises:
            TypeError: a name is not an input of the definition, or an input is missing.
        """
        return self(*self.metadata.definition.merge_kwargs_to_args((), kwargs))

    def call_value_returning(self, *inputs: Any) -> Any:
        """Call it with inputs alone, whatever its style; return a single output, or a tuple of several outputs."""
        definition = self.metadata.definition
        device = next((value.device for value in inputs if hasattr(value, "device")), "cpu")
        if self.metadata.destination_passing_style:
            outputs = allocate_outputs(definition, inputs, device)
            self(*inputs, *outputs)
        else:
            outputs = normalize_result(definition, self(*inputs), device)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


class BuildError(FlashInferBenchError):
    """A solution could not be built or loaded; the message has the reason, and the responsible party."""


class Builder:
    """Builds solutions in any language that this machine can build, and loads them here, unisolated.

    Args:
        cache: the folder of artifacts; the user's cache by default.
    """

    def __init__(self, cache: Path | None = None) -> None:
        self._cache = (cache or cache_root(os.environ)).resolve()

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Build a solution and load it into this process.

        Modules of a previously loaded solution are removed, since two solutions may have modules of the same name. If a
        previously loaded solution imports modules only during its call, it may get modules of another solution.

        Raises:
            BuildError: it cannot be built or loaded.
        """
        if solution.definition != definition.name:
            raise BuildError(f"solution {solution.name} is one of {solution.definition}, not of {definition.name}")
        try:
            artifact = build_solution(solution, self._cache, target=BuildTarget.of(_capabilities()))
            self.cleanup()
            entry = load_entry(artifact.directory, artifact.entry, artifact.symbol, kind=artifact.kind)
            style = choose_style(
                entry.signature,
                inputs=list(definition.inputs),
                outputs=list(definition.outputs),
                declared=solution.spec.declared_style,
                is_python=artifact.kind == "python",
            )
        except (Exception, SystemExit) as error:
            self.cleanup()
            reason = f"{type(error).__name__}: {error}"
            raise BuildError(f"solution {solution.name} cannot be built or loaded: {reason}") from error
        metadata = RunnableMetadata(artifact.kind, definition.name, solution.name, style.is_dps, definition)
        return Runnable(_with_setup(entry), metadata)

    def cleanup(self) -> None:
        """Forget the modules of built solutions, and take their folders off the import path."""
        inside = f"{self._cache}{os.sep}"
        sys.path[:] = [path for path in sys.path if not path.startswith(inside)]
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if file.startswith(inside) or name == PACKAGE or name.startswith(f"{PACKAGE}."):
                del sys.modules[name]


class BuilderRegistry:
    """Builds each solution once, and keeps the runnables of this process, unisolated."""

    def __init__(self, builder: Builder | None = None) -> None:
        self._builder = builder or Builder()
        self._kept: dict[tuple[str, ...], Runnable] = {}

    @staticmethod
    @cache
    def get_instance() -> BuilderRegistry:
        """Return the registry of this process."""
        return BuilderRegistry()

    def build(self, definition: Definition, solution: Solution) -> Runnable:
        """Return the solution as a runnable.

        Raises:
            BuildError: it cannot be built or loaded.
        """
        key = (definition.digest(), solution.digest(), solution.name)
        if key not in self._kept:
            self._kept[key] = self._builder.build(definition, solution)
        return self._kept[key]

    def build_reference(self, definition: Definition) -> Runnable:
        """Return the definition's reference as a runnable that takes inputs in the definition's order.

        Raises:
            BuildError: it cannot be compiled.
        """
        try:
            reference = Reference.compile(definition)
        except Fault as error:
            raise BuildError(str(error)) from error
        metadata = RunnableMetadata("reference", definition.name, "reference", False, definition)
        return Runnable(lambda *inputs: reference.launch(inputs), metadata)

    def cleanup(self) -> None:
        """Remove all runnables and their imported modules."""
        self._builder.cleanup()
        self._kept.clear()


@cache
def _capabilities() -> list[tuple[int, int]]:
    if not torch.cuda.is_available():
        return []
    return sorted({device.capability for device in discover_devices(None) if device.capability is not None})


def _with_setup(entry: LoadedEntry) -> Callable[..., Any]:
    """Return the entry function; if there is a `setup`, it is called first, and its result is passed to the entry."""
    setup, takes = entry.setup, entry.setup_signature
    if setup is None:
        return entry.function
    most = takes.maximum if takes is not None else None

    def call(*args: Any) -> Any:
        return entry.function(*args, **setup(*args[:most]))

    return call
