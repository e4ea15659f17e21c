"""Loose definitions: those in another layout than ours, in a folder of their own or dumped from a library.

    <name>/definition.json         SOL-ExecBench's problem; beside it workload.jsonl, reference.py and solutions with
                                   their sources
    <group>/<name>/…               several of them, which may stand in groups
    <name>.json                    a definition dumped from a library, alone; in the root or right below it

A root with `definitions/` has our layout (`layout.py`), and nothing else is looked for. In any other root these are,
down to DEEPEST folders; its `solutions/`, `workloads/`, `traces/` and `blob/` are read as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic_core import from_json

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.issue import USUAL_OP_TYPE, Place
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES
from flashinfer_bench.data.store.layout import DEFINITIONS, FOLDERS, SOLUTIONS, WORKLOADS

DEFINITION_FILE: Final = "definition.json"
WORKLOAD_FILES: Final = ("workload.jsonl", "workloads.jsonl", "workload.json", "workloads.json")
DEEPEST: Final = 4
"""Loose definitions are looked for in folders down to this depth below the root."""
MOST_FILES: Final = 100_000
"""The search ends after this many files: the root is no folder of definitions."""


def find_loose(root: Path) -> dict[str, list[Place]]:
    """Return the loose files of a root by the folder of our layout that such files lie in."""
    found: dict[str, list[Place]] = {DEFINITIONS: [], SOLUTIONS: [], WORKLOADS: []}
    if (root / DEFINITIONS).is_dir() or root.absolute().name in FOLDERS:  # somebody named a folder of a set
        return found
    walk = walk_files(root, lambda *_: None, passes_over=lambda name: name.startswith(".") or name in FOLDERS)
    folders: dict[Path, list[Path]] = {}
    for file in islice(walk, MOST_FILES):
        if len(file.relative_to(root).parts) <= DEEPEST + 1:
            folders.setdefault(file.parent, []).append(file)
    problems = {folder for folder, files in folders.items() if folder / DEFINITION_FILE in files}
    for folder, files in folders.items():
        below = folder.relative_to(root).parts
        if folder in problems:
            definition = folder / DEFINITION_FILE
            name = str(_read(definition).get("name") or folder.name)
            op_type = below[-2] if len(below) > 1 else USUAL_OP_TYPE
            found[DEFINITIONS].append(Place(definition, op_type=op_type))
            others = [file for file in files if file.name not in (DEFINITION_FILE, *WORKLOAD_FILES)]
            for file in (*others, *sorted((folder / SOLUTIONS).glob("*.json"))):
                if _read(file).keys() >= {"sources", "spec"}:
                    found[SOLUTIONS].append(Place(file, definition=name))
            lines = [file for file in files if file.name in WORKLOAD_FILES]
            found[WORKLOADS] += [Place(file, definition=name, root=root) for file in lines]
        elif len(below) < 2 and not problems.intersection(folder.parents):
            dumps = (file for file in files if _read(file).keys() >= {"axes", "inputs", "outputs"})
            found[DEFINITIONS] += map(Place, dumps)
    return found


def find_loose_folders(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return the folders of those files of sets that lie in none of the folders of our layout."""
    ours = [root / name for root in roots for name in FOLDERS]
    return {file.parent for file in files if not any(file.is_relative_to(folder) for folder in ours)}


def _read(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds; nothing if it is no JSON file, or holds no object."""
    if file.suffix != ".json":
        return {}
    try:
        held = from_json(read_whole(file, MOST_JSON_BYTES))
    except (OSError, ValueError):
        return {}
    return held if isinstance(held, dict) else {}
