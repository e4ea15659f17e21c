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
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import GitLfsPointer, read_whole
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES
from flashinfer_bench.data.store.layout import DEFINITIONS, FOLDERS, SOLUTIONS
from flashinfer_bench.data.store.variants.beside import USUAL_OP_TYPE

DEFINITION_FILE: Final = "definition.json"
WORKLOAD_FILES: Final = ("workload.jsonl", "workloads.jsonl", "workload.json", "workloads.json")
DEEPEST: Final = 4
"""Loose definitions are looked for in folders down to this depth below the root."""
MOST_ENTRIES: Final = 100_000
"""The search ends after so many files and folders: the root is no folder of definitions."""
MOST_FILES: Final = 2_000
"""Files of one folder that are looked into, to see what they hold."""
_DEFINITION_KEYS: Final = frozenset({"axes", "inputs", "outputs"})
_SOLUTION_KEYS: Final = frozenset({"sources", "spec"})


@dataclass
class LooseDefinition:
    """One definition outside our layout, and the files that belong to it."""

    definition: Path
    op_type: str
    """Of a definition that names none: the name of its group, or the usual one."""
    workloads: list[Path] = field(default_factory=list)
    solutions: list[Path] = field(default_factory=list)


def find_loose(root: Path) -> list[LooseDefinition]:
    """Find the definitions of a root without `definitions/`; none where it has that folder."""
    if (root / DEFINITIONS).is_dir() or root.absolute().name in FOLDERS:  # somebody named a folder of a set
        return []
    found: list[LooseDefinition] = []
    waiting, left = [(root, 0)], MOST_ENTRIES
    while waiting and left > 0:
        folder, depth = waiting.pop()
        folders, files = _list(folder, left)
        left -= len(folders) + len(files)
        if (folder / DEFINITION_FILE) in files:
            found.append(_read_folder(folder, files, op_type=_group_of(folder, root)))
            continue
        if depth < 2:
            found += [LooseDefinition(file, USUAL_OP_TYPE) for file in _of_kind(files, _DEFINITION_KEYS)]
        if depth < DEEPEST:
            below = [path for path in folders if depth > 0 or path.name not in FOLDERS]
            waiting += [(path, depth + 1) for path in reversed(below)]
    return found


def find_loose_folders(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return the folders of those files of sets that lie in none of the folders of our layout."""
    ours = [root / name for root in roots for name in FOLDERS]
    return {file.parent for file in files if not any(file.is_relative_to(folder) for folder in ours)}


def _read_folder(folder: Path, files: list[Path], *, op_type: str) -> LooseDefinition:
    others = [file for file in files if file.name not in (DEFINITION_FILE, *WORKLOAD_FILES)]
    more = _list(folder / SOLUTIONS, MOST_FILES)[1] if (folder / SOLUTIONS).is_dir() else []
    return LooseDefinition(
        folder / DEFINITION_FILE,
        op_type,
        workloads=[file for file in files if file.name in WORKLOAD_FILES],
        solutions=list(_of_kind([*others, *more], _SOLUTION_KEYS)),
    )


def _group_of(folder: Path, root: Path) -> str:
    above = folder.relative_to(root).parts[:-1]
    return above[-1] if above else USUAL_OP_TYPE


def _list(folder: Path, most: int) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files of a folder, in order; links to folders and hidden names are passed over."""
    folders: list[Path] = []
    files: list[Path] = []
    with suppress(OSError):
        for path in sorted(islice(folder.iterdir(), most)):
            if path.name.startswith("."):
                continue
            if path.is_dir():
                folders += [] if path.is_symlink() else [path]
            else:
                files.append(path)
    return folders, files


def _of_kind(files: list[Path], keys: frozenset[str]) -> Iterator[Path]:
    """Yield the JSON files that hold an object with these keys, and git-lfs pointers in place of a file."""
    for file in islice((file for file in files if file.suffix == ".json"), MOST_FILES):
        try:
            held = json.loads(read_whole(file, MOST_JSON_BYTES))
        except GitLfsPointer:
            yield file  # who reads it says what it is
            continue
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(held, dict) and keys <= held.keys():
            yield file
