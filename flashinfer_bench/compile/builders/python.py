"""Solutions in Python (Triton, TileLang, CuTe DSL, calls of FlashInfer): the artifact is the sources themselves.

Nothing is compiled here. These languages compile in the worker, when a function is first called.
"""

from __future__ import annotations

import ast
from typing import Final

from flashinfer_bench.compile.artifact import BuildFailure, BuildRecipe, BuildTarget
from flashinfer_bench.compile.toolchain import Toolchain
from flashinfer_bench.data import Solution

MAX_SOURCE_BYTES: Final = 4 << 20
"""A larger source file is refused, because every source is parsed here."""


def make_recipe(solution: Solution, _toolchain: Toolchain, _target: BuildTarget) -> BuildRecipe:
    """Return how a solution in Python is laid out. Its syntax is checked, and none of it is run.

    Raises:
        BuildFailure: a .py file does not parse.
    """
    files = {source.path: source.content.encode() for source in solution.sources}
    for path, content in files.items():
        if path.endswith(".py"):
            check_syntax(path, content)
    digest, entry, symbol = solution.digest(), str(solution.get_entry_path()), solution.get_entry_symbol()
    return BuildRecipe("python", entry, symbol, files, made_from={"solution": digest}, products=tuple(files))


def check_syntax(path: str, content: bytes) -> None:
    """Parse a source file without running any of it.

    Raises:
        BuildFailure: it does not parse, or is too large to be looked at.
    """
    if len(content) > MAX_SOURCE_BYTES:
        raise BuildFailure(f"{path} has {len(content)} bytes; the limit for a source file is {MAX_SOURCE_BYTES}")
    try:
        ast.parse(content, filename=path)
    except SyntaxError as error:
        location = path if error.lineno is None else f"{path}:{error.lineno}"
        line = (error.text or "").strip()
        raise BuildFailure(f"{type(error).__name__}: {error.msg}, at {location}\n    {line}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BuildFailure(f"{path}: cannot be parsed: {type(error).__name__}: {error}") from None
