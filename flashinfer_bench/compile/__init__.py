"""Build: sources become an artifact, which is files in a cache. Nothing here imports or runs what it builds.

    table.py, builders/             a solution → its recipe: commands, products, the digest of what decides them
    toolchain.py, dependencies.py   what this machine has, and what a solution lacks here
    flags.py, includes.py           what a solution may ask for and read
    farm.py                         which build begins next, and which precompiled header it takes (headers.py)
    building.py                     one build in its thread: lock, cache, compilers, who is to blame, publication
    compilers.py, step_runner.py    the sandbox of its commands, their time, memory, hold and end
    cache.py                        where artifacts lie, which of them are in use, and which go first

The last names of `__all__` are for debugging: they load what was built into the caller's process, where nothing is
isolated. They are another package's (`bench.runnable`), and are imported when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names
from flashinfer_bench.compile.artifact import Artifact, BuildFailure, Built
from flashinfer_bench.compile.farm import BuildFarm, build_solution, default_jobs
from flashinfer_bench.compile.recipe import BuildTarget
from flashinfer_bench.compile.table import find_unavailable_languages, why_not_buildable
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.errors import BuildFault

if TYPE_CHECKING:
    from flashinfer_bench.bench.runnable import Builder, BuilderRegistry, BuildError, Runnable, RunnableMetadata

__all__ = [
    "Artifact",
    "BuildFailure",
    "BuildFarm",
    "BuildFault",
    "BuildTarget",
    "Built",
    "Toolchain",
    "build_solution",
    "default_jobs",
    "find_toolchain",
    "find_unavailable_languages",
    "unavailable_languages",
    "why_not_buildable",
    "BuildError",
    "Builder",
    "BuilderRegistry",
    "Runnable",
    "RunnableMetadata",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    {"flashinfer_bench.bench.runnable": ("BuildError", "Builder", "BuilderRegistry", "Runnable", "RunnableMetadata")},
)


def unavailable_languages() -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built on this machine, or None where it can."""
    return find_unavailable_languages(find_toolchain())
