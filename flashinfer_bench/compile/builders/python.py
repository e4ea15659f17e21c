"""Python and Triton solutions: the artifact is the sources themselves, checked for syntax."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

from flashinfer_bench.compile.artifact import Artifact, BuildFailure
from flashinfer_bench.compile.cache import stored
from flashinfer_bench.data import Solution

MAX_SOURCE_BYTES: Final = 4 << 20


def build_python(solution: Solution, root: Path) -> Artifact:
    """Write the solution's sources into the cache.

    Raises:
        BuildFailure: a file is no Python, or the entry file is not among the sources.
    """
    files = {source.path: source.content.encode() for source in solution.sources}
    entry = str(solution.get_entry_path())
    if entry not in files:
        raise BuildFailure(f"the entry point names {entry}, but the sources are: {', '.join(sorted(files)) or 'none'}")
    for path, content in files.items():
        if path.endswith(".py"):
            check_syntax(path, content)

    def fill(folder: Path) -> None:
        for path, content in files.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)

    def is_whole(folder: Path) -> bool:
        try:
            return all((folder / path).read_bytes() == content for path, content in files.items())
        except OSError:
            return False

    directory = stored(root, solution.digest(), fill=fill, is_whole=is_whole)
    return Artifact(directory, entry, solution.get_entry_symbol())


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
        raise BuildFailure(
            f"{path}:{error.lineno}: {type(error).__name__}: {error.msg}\n    {(error.text or '').strip()}"
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise BuildFailure(f"{path}: cannot be parsed: {type(error).__name__}: {error}") from None
