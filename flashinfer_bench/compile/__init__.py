"""Builds: sources become an artifact, a folder of files in a cache. Nothing here imports or runs the result.

    builders/                      a solution → its recipe: commands, products, the digest of what decides them
    toolchain.py, requirements.py  the compilers and libraries of this machine, and which of them a solution lacks
    flags.py                       the flags that a solution may ask for
    build_pool.py                  all builds of a run: their order, and the headers that are precompiled for them
    building.py, diagnostics.py    one build in its thread: lock, cache, compilers, blame, publication
    run_compiler.py                 the sandbox of one command, its time and memory, and its end
    cache.py                       the folder of artifacts, and which of them are removed first

The last names of `__all__` are for debugging: they load an artifact into the caller's process, without isolation. They
belong to another package (`bench.runnable`), and are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names
from flashinfer_bench.compile.artifact import Artifact, BuildFailure, BuildTarget, Built
from flashinfer_bench.compile.build_pool import BuildPool, build_solution, default_jobs
from flashinfer_bench.compile.requirements import find_unavailable_languages, why_not_buildable
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.errors import BuildFault

if TYPE_CHECKING:
    from flashinfer_bench.bench.runnable import Builder, BuilderRegistry, BuildError, Runnable, RunnableMetadata

__all__ = [
    "Artifact",
    "BuildFailure",
    "BuildPool",
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
    """Return each language that solutions may name → why it cannot be built on this machine, or None if it can."""
    return find_unavailable_languages(find_toolchain())
