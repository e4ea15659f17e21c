"""Whose word a file is: which root of several a definition and its workloads lie in.

A set is trusted in what it says of its own definitions. Where sets are laid over each other, the first is the one that
the user judges by; those after it may come from anybody who wants to be judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    lies_inside = file.resolve().is_relative_to(first.resolve())
    return lies_inside and _root_of(trace_set, file) == first == trace_set.blob_root(definition, uuid)


def _root_of(trace_set: LaidOver, file: Path) -> Path | None:
    """Return the innermost root that a file lies in: a root may lie in another."""
    holding = [root for root in trace_set.roots if file.is_relative_to(root)]
    return max(holding, key=lambda root: len(root.parts), default=None)
