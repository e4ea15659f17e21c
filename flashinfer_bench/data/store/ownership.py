"""Whose word a file is: which root of several a definition and its workloads lie in.

A set is trusted in what it says of its own definitions. Where sets are laid over each other, the first is the one that
the user judges by; those after it may come from anybody who wants to be judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol


class LaidOver(Protocol):
    """What is asked of a trace set."""

    @property
    def roots(self) -> Sequence[Path]:
        """The folders that were merged, the first one first; none for a set in memory."""

    @property
    def definition_files(self) -> Mapping[str, Path]:
        """Definition name to its file."""

    def blob_root(self, definition: str, uuid: str) -> Path | None:
        """Return the root that holds a workload."""


def is_of_one_root(trace_set: LaidOver, definition: str, uuid: str) -> bool:
    """Tell whether a workload lies in the root of its definition, so that it may say how this is judged."""
    file = trace_set.definition_files.get(definition)
    return file is None or trace_set.blob_root(definition, uuid) == _root_of(trace_set, file)


def is_of_first_root(trace_set: LaidOver, definition: str, uuid: str) -> bool:
    """Tell whether a definition and its workload really lie in the first root: no link leads out of it."""
    file = trace_set.definition_files.get(definition)
    if file is None:
        return True
    first = trace_set.roots[0]
    real = file.resolve()
    lies_inside = any(real.is_relative_to(folder) for folder in own_folders(first))
    return lies_inside and _root_of(trace_set, file) == first == trace_set.blob_root(definition, uuid)


def own_folders(root: Path) -> Iterator[Path]:
    """Yield where files of a root may really lie: in it, or in the Hugging Face cache that it is a snapshot of."""
    real = root.resolve()
    yield real
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots":
            yield parent.parent.parent / "blobs"


def _root_of(trace_set: LaidOver, file: Path) -> Path | None:
    """Return the innermost root that a file lies in: a root may lie in another."""
    holding = [root for root in trace_set.roots if file.is_relative_to(root)]
    return max(holding, key=lambda root: len(root.parts), default=None)
