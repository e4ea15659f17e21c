"""A folder of sources to a solution and back, from a script."""

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
    """Make a solution of all sources in a folder; a manifest among them is left out.

    Args:
        path: the folder.
        spec: how the solution is built and called.
        name: its name.
        definition: the name of its definition.
        author: who wrote it.
        description: what a reader should know.

    Raises:
        ValueError: there is no such folder, no source in it, or something that is no solution.
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
    """Write the sources of a solution into a folder of its name below another one; return its path.

    The folders are made. Files that are there already are replaced. A source never lands outside of the folder: no
    link below `base_path` is followed.

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
