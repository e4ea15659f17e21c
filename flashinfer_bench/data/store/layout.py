r"""The layout of a set: converts an object to a path below the root, and a path to the names of objects.

    definitions/<op_type>/<definition>.json
    solutions/<author>/<op_type>/<definition>/<solution>.json
    workloads/<op_type>/<definition>.jsonl
    traces/<author>/<op_type>/<definition>.jsonl
    blob/workloads/<op_type>/<definition>/<definition>_<uuid>.safetensors

A name is never used as a path directly. `path_part` keeps plain names, and converts names that are not plain to `<plain
letters>~<digest>`. A plain name has no `~`, so two names never share a path.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.trees import Tell, walk_files
from flashinfer_bench.data.issue import Location

DEFINITIONS: Final = "definitions"
SOLUTIONS: Final = "solutions"
WORKLOADS: Final = "workloads"
TRACES: Final = "traces"
BLOB: Final = "blob"
TOLERANCES_FILE: Final = "tolerances.yaml"
"""The file of a root that has the tolerances of the root's definitions."""
WEIGHTS_FILE: Final = "weights.yaml"
"""The file of a root that has the weights of the root's workloads."""
SERVED: Final = ".serve"
"""The folder of a root for a server's accepted tasks."""
FOLDERS: Final = frozenset({DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES, BLOB})
"""The folders of a root."""

MAX_PART: Final = 200
"""Longest plain name, in characters. File systems allow 255 bytes, which leaves room for a suffix."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9 _.+=@,()-]*[A-Za-z0-9_+=@)-])?")
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]+")
_KEPT: Final = 60
"""Number of characters that stay of a name that is not plain. People recognise the name by these characters."""
_DIGEST: Final = 32
"""Hexadecimal digits of the digest in a name that is not plain. The digest keeps names distinct."""


def path_part(name: str) -> str:
    """Convert a name to one file or folder name. A plain name stays the same. Any other name becomes its plain letters
    and a digest."""
    if len(name) <= MAX_PART and _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{_NOT_PLAIN.sub('_', name[:_KEPT])}~{digest}"


def _file(root: Path, *names: str, suffix: str = ".json") -> Path:
    *folders, name = map(path_part, names)
    return root.joinpath(*folders, f"{name}{suffix}")


def definition_path(root: Path, *, op_type: str, definition: str) -> Path:
    """Return the file of a definition."""
    return _file(root, DEFINITIONS, op_type, definition)


def solution_path(root: Path, *, author: str, op_type: str, definition: str, solution: str) -> Path:
    """Return the file of a solution."""
    return _file(root, SOLUTIONS, author, op_type, definition, solution)


def workloads_path(root: Path, *, op_type: str, definition: str) -> Path:
    """Return the file of a definition's workloads."""
    return _file(root, WORKLOADS, op_type, definition, suffix=".jsonl")


def traces_path(root: Path, *, author: str, op_type: str, definition: str) -> Path:
    """Return the file of an author's traces for a definition."""
    return _file(root, TRACES, author, op_type, definition, suffix=".jsonl")


def blob_path(root: Path, *, op_type: str, definition: str, uuid: str) -> Path:
    """Return the file of a workload's tensors."""
    return _file(root, BLOB, WORKLOADS, op_type, definition, f"{definition}_{uuid}", suffix=".safetensors")


def find_files(folder: Path, suffixes: tuple[str, ...], on_skip: Tell) -> Iterator[Path]:
    """Yield the files below a folder that have one of the suffixes, in a fixed order. Hidden files are skipped.

    Args:
        folder: the folder, which may be missing.
        suffixes: suffixes with their dots.
        on_skip: callback for a skipped path and the reason, such as an unreadable folder.
    """
    with suppress(OSError):
        if not folder.exists():
            return
    for path in walk_files(folder, on_skip, follows_links=True, passes_over=lambda name: name.startswith(".")):
        if path.name.endswith(suffixes):
            yield path


def _parts_of(location: Location) -> tuple[str, ...]:
    """Return the folders between the layout's folder and a file, and the file's name; empty in a foreign layout."""
    return location.file.relative_to(location.folder).with_suffix("").parts if location.folder is not None else ()


def why_misplaced(location: Location, expected: tuple[str, ...]) -> str | None:
    """Compare the path of a file with the names inside the file, from the file's name upward. Return the first
    difference, or None.

    Args:
        expected: the name of the object, then the names of the folders around the file, innermost first. Only the
            folders in the path are compared, so flatter layouts pass.
    """
    for found, name in zip(_parts_of(location)[::-1], expected, strict=False):
        if found not in (name, path_part(name)):
            return f"the path says {found!r}, the file {name!r}; the file is believed"
    return None


def find_set_around(path: Path, known: Iterable[Path] = ()) -> tuple[Path, Path | None]:
    """Return the absolute form of a path, without `..`, and the outermost trace set around the path, or None.

    Args:
        path: the path, which may be missing.
        known: folders of sets. Any other folder is a set if it has `definitions/`, or two more of `FOLDERS`.
    """
    parts = path.absolute().parts
    last = max((index for index, part in enumerate(parts) if part == ".."), default=-1) + 1
    path = Path(os.path.realpath(Path(*parts[:last])), *parts[last:]) if last else path.absolute()
    own = [folder.stat() for folder in known if folder.is_dir()]
    for folder in reversed(path.parents):
        try:
            if any(os.path.samestat(one, folder.stat()) for one in own) or _is_set(folder):
                return path, folder
        except OSError:
            break
    return path, None


def _is_set(folder: Path) -> bool:
    there = {name for name in FOLDERS if (folder / name).is_dir()}
    return DEFINITIONS in there or len(there) > 1


def own_folders(root: Path) -> Iterator[Path]:
    """Yield the real folders that may contain a root's files: the root, and the blobs folder of a Hugging Face
    snapshot."""
    real = root.resolve()
    yield real
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots":
            yield parent.parent.parent / "blobs"


def find_foreign_folders(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return the folders of the files that are outside the layout's folders."""
    ours = [root / name for root in roots for name in FOLDERS]
    return {file.parent for file in files if not any(file.is_relative_to(folder) for folder in ours)}


def is_of_author(location: Location, *, author: str, name: str) -> bool:
    """Return whether a file is named after its solution, and is in the folder of the solution's author. All files of a
    foreign layout count as such, since it has no folders of authors.

    Args:
        author, name: the names in the file.
    """
    parts = _parts_of(location) or (author, name)
    return len(parts) > 1 and parts[-1] in (name, path_part(name)) and parts[0] in (author, path_part(author))
