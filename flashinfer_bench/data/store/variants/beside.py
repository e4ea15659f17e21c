"""What the place of a file says of what the file leaves out, and texts that lie beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.solution import check_source_path

Remark = tuple[str, str]
"""The field, and what was made of it."""
MOST_SOURCE_BYTES: Final = 4 << 20
"""A source that lies beside its solution has at most this many bytes, as one that a worker gets."""
USUAL_OP_TYPE: Final = "custom"
"""The op type of a definition that has none, and lies in no folder of one."""


@dataclass(frozen=True)
class Spot:
    """Where a file lies, and what that says."""

    file: Path
    op_type: str = USUAL_OP_TYPE
    """The op type of a definition that names none."""
    definition: str | None = None
    """The definition of a solution or workload that names none; None: a workload's is the name of its file."""
    root: Path | None = None
    """The root that blob paths are relative to, where a file may give them relative to its own folder instead."""


def read_beside(file: Path, path: str, limit: int = MOST_SOURCE_BYTES) -> str:
    """Read the text of a file in the folder of another one, or below.

    Raises:
        ValueError: the path leads out of the folder, or the file cannot be read.
    """
    folder = file.parent.resolve()
    try:
        beside = (folder / check_source_path(path)).resolve()
        if beside.is_relative_to(folder):
            return read_whole(beside, limit).decode("utf-8")
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round
        raise ValueError(f"{path!r} cannot be read: {error}") from error
    raise ValueError(f"{path!r} leads out of {folder}")
