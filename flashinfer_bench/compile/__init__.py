"""Build: sources become an artifact, which is files. Nothing here imports what it builds."""

from __future__ import annotations

from flashinfer_bench.compile.artifact import Artifact, BuildFailure
from flashinfer_bench.compile.table import build_solution, unavailable_languages

__all__ = ["Artifact", "BuildFailure", "build_solution", "unavailable_languages"]
