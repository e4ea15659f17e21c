"""Build: sources become an artifact, which is files. Nothing here imports what it builds."""

from __future__ import annotations

from flashinfer_bench.compile.artifact import Artifact, BuildFailure, Built
from flashinfer_bench.compile.farm import BuildFarm, build_solution, default_jobs
from flashinfer_bench.compile.recipe import BuildTarget
from flashinfer_bench.compile.table import find_unavailable_languages, why_not_buildable
from flashinfer_bench.compile.toolchain import Toolchain, find_toolchain
from flashinfer_bench.errors import BuildFault

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
]


def unavailable_languages() -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built on this machine, or None where it can."""
    return find_unavailable_languages(find_toolchain())
