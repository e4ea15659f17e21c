"""Loose definitions: those in another layout than ours, in a folder of their own or dumped from a library.

    <name>/definition.json         SOL-ExecBench's problem; beside it workload.jsonl, reference.py and solutions with
                                   their sources
    <group>/<name>/…               several of them, which may stand in groups
    <name>.json                    a definition dumped from a library, alone; in the root or right below it

A root with `definitions/` has our layout (`layout.py`), and nothing else is looked for. In any other root these are,
down to DEEPEST folders; its `solutions/`, `workloads/`, `traces/` and `blob/` are read as everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import GitLfsPointer, read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.store.dialects import USUAL_OP_TYPE
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES
from flashinfer_bench.data.store.layout import DEFINITIONS, FOLDERS, SOLUTIONS

DEFINITION_FILE: Final = "definition.json"
WORKLOAD_FILES: Final = ("workload.jsonl", "workloads.jsonl", "workload.json", "workloads.json")
DEEPEST: Final = 4
"""Loose definitions are looked for in folders down to this depth below the root."""
MOST_FILES: Final = 100_000
"""The search ends after this many files: the root is no folder of definitions."""
MOST_READ: Final = 2_000
"""Files of one folder that are read, to see what they hold."""


@dataclass
class LooseDefinition:
    """One definition outside our layout, and the files that belong to it."""

    definition: Path
    op_type: str = USUAL_OP_TYPE
    """Of a definition that names none: the name of its group, or the usual op type."""
    workloads: tuple[Path, ...] = ()
    solutions: tuple[Path, ...] = ()


def find_loose(root: Path) -> list[LooseDefinition]:
    """Find the definitions of a root without `definitions/`; none if it has that folder."""
    if (root / DEFINITIONS).is_dir() or root.absolute().name in FOLDERS:  # somebody named a folder of a set
        return []
    walk = walk_files(root, lambda *_: None, passes_over=lambda name: name.startswith(".") or name in FOLDERS)
    folders: dict[Path, list[Path]] = {}
    for file in islice(walk, MOST_FILES):
        if len(file.relative_to(root).parts) <= DEEPEST + 1:
            folders.setdefault(file.parent, []).append(file)
    problems = {folder for folder, files in folders.items() if folder / DEFINITION_FILE in files}
    found = []
    for folder, files in folders.items():
        below = folder.relative_to(root).parts
        if problems.intersection(folder.parents):
            continue
        if folder in problems:
            others = [file for file in files if file.name not in (DEFINITION_FILE, *WORKLOAD_FILES)]
            others += sorted(islice((folder / SOLUTIONS).glob("*.json"), MOST_READ))
            loose = LooseDefinition(folder / DEFINITION_FILE, below[-2] if len(below) > 1 else USUAL_OP_TYPE)
            loose.workloads = tuple(file for file in files if file.name in WORKLOAD_FILES)
            loose.solutions = tuple(_with_keys(others, {"sources", "spec"}))
            found.append(loose)
        elif len(below) < 2:
            found += map(LooseDefinition, _with_keys(files, {"axes", "inputs", "outputs"}))
    return found


def find_loose_folders(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return the folders of those files of sets that lie in none of the folders of our layout."""
    ours = [root / name for root in roots for name in FOLDERS]
    return {file.parent for file in files if not any(file.is_relative_to(folder) for folder in ours)}


def _with_keys(files: Iterable[Path], keys: set[str]) -> Iterator[Path]:
    """Yield the JSON files that hold an object with these keys, and git-lfs pointers in place of a file."""
    for file in islice((file for file in files if file.suffix == ".json"), MOST_READ):
        try:
            held = json.loads(read_whole(file, MOST_JSON_BYTES))
        except GitLfsPointer:
            yield file  # its reader says what it is
            continue
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(held, dict) and keys <= held.keys():
            yield file
