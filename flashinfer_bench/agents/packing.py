"""Packs a folder of sources into a solution, and unpacks a solution into a folder, for scripts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashinfer_bench.data import BuildSpec, Solution, SourceFile
from flashinfer_bench.data.solution import check_source_path
from flashinfer_bench.data.store.jsonl import write_whole
from flashinfer_bench.data.store.layout import path_part
from flashinfer_bench.data.store.pack import read_sources


def pack_solution_from_files(
    path: str | Path,
    spec: BuildSpec | Mapping[str, Any],
    name: str,
    definition: str,
    author: str,
    description: str = "",
) -> Solution:
    """Make a solution of all sources in a folder, except a manifest.

    Args:
        path: the folder.
        spec: the build spec of the solution.
        name: name of the solution.
        definition: name of the definition.
        author: author of the solution.
        description: description for a reader.

    Raises:
        ValueError: the folder does not exist or has no source, or the solution is invalid.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder")
    sources, problems = read_sources(folder)
    if problems or not sources:
        raise ValueError("; ".join(problems) or f"{folder} holds no source")
    return Solution(
        name=name,
        definition=definition,
        author=author,
        description=description or None,
        spec=spec if isinstance(spec, BuildSpec) else BuildSpec.model_validate(spec),
        sources=[SourceFile(path=file, content=content) for file, content in sources.items()],
    )


def extract_solution_to_files(solution: Solution, base_path: str | Path) -> str:
    """Write the sources of a solution into a new folder below `base_path`, named after the solution; return its path.

    Missing folders are made. Existing files are replaced. A source is never written outside of the folder: no link
    below `base_path` is followed.

    Raises:
        ValueError: a file cannot be written.
    """
    base = Path(base_path) / path_part(solution.name)
    for source in solution.sources:
        target = base / check_source_path(source.path)
        try:
            write_whole(target, source.content.encode("utf-8"), root=Path(base_path))
        except OSError as error:
            raise ValueError(f"{target} cannot be written: {error.strerror}") from None
    return str(base)
