"""Solutions in Python (Triton, TileLang, CuTe DSL, calls of FlashInfer): the artifact is the sources themselves.

Nothing is parsed or compiled here. A worker imports the sources; these languages compile a function at its first call.
"""

from __future__ import annotations

from flashinfer_bench.compile.artifact import BuildRecipe, BuildTarget
from flashinfer_bench.compile.toolchain import Toolchain
from flashinfer_bench.data import Solution


def make_recipe(solution: Solution, _toolchain: Toolchain, _target: BuildTarget) -> BuildRecipe:
    """Return how a solution in Python is laid out."""
    files = {source.path: source.content.encode() for source in solution.sources}
    digest, entry, symbol = solution.digest(), str(solution.get_entry_path()), solution.get_entry_symbol()
    return BuildRecipe("python", entry, symbol, files, made_from={"solution": digest}, products=tuple(files))
