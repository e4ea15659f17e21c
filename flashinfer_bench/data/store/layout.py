r"""Where things lie under the root of a set, both ways: the path of a thing, and what a path says of it.

    definitions/<op_type>/<definition>.json
    solutions/<author>/<op_type>/<definition>/<solution>.json
    workloads/<op_type>/<definition>.jsonl
    traces/<author>/<op_type>/<definition>.jsonl
    blob/workloads/<op_type>/<definition>/<definition>_<uuid>.safetensors

A name is never trusted as a path: `path_part` keeps plain names and turns every other into `<plain letters>~<digest>`.
A plain name has no `~`, so no two names share a part.
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

DEFINITIONS: Final = "definitions"
SOLUTIONS: Final = "solutions"
WORKLOADS: Final = "workloads"
TRACES: Final = "traces"
BLOB: Final = "blob"
TOLERANCES_FILE: Final = "tolerances.yaml"
"""The file of a root that says how its definitions are judged."""
SERVED: Final = ".serve"
"""The folder of a root in which a server keeps the tasks that it accepted."""
FOLDERS: Final = frozenset({DEFINITIONS, SOLUTIONS, WORKLOADS, TRACES, BLOB})
"""The folders of a root."""

MAX_PART: Final = 200
"""Longest plain name, in characters. It leaves room for a suffix: file systems allow 255 bytes."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9 _.+=@,()-]*[A-Za-z0-9_+=@)-])?")
_NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]+")
_KEPT: Final = 60
"""A name that is not plain keeps this many characters, for people to read."""
_DIGEST: Final = 32
"""A name that is not plain gets this many hexadecimal digits, so that no two names are equal."""


def path_part(name: str) -> str:
    """Turn a name into one file or folder name: itself when it is plain, else some of it and a digest."""
    if len(name) <= MAX_PART and _PLAIN.fullmatch(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{_NOT_PLAIN.sub('_', name[:_KEPT])}~{digest}"


def _file(root: Path, *names: str, suffix: str = ".json") -> Path:
    *folders, name = map(path_part, names)
    return root.joinpath(*folders, f"{name}{suffix}")


def definition_path(root: Path, *, op_type: str, definition: str) -> Path:
    """Give the file of a definition."""
    return _file(root, DEFINITIONS, op_type, definition)


def solution_path(root: Path, *, author: str, op_type: str, definition: str, solution: str) -> Path:
    """Give the file of a solution."""
    return _file(root, SOLUTIONS, author, op_type, definition, solution)


def workloads_path(root: Path, *, op_type: str, definition: str) -> Path:
    """Give the file that holds the workloads of a definition."""
    return _file(root, WORKLOADS, op_type, definition, suffix=".jsonl")


def traces_path(root: Path, *, author: str, op_type: str, definition: str) -> Path:
    """Give the file that holds the traces of an author's solutions for a definition."""
    return _file(root, TRACES, author, op_type, definition, suffix=".jsonl")


def blob_path(root: Path, *, op_type: str, definition: str, uuid: str) -> Path:
    """Give the file that holds the tensors of a workload."""
    return _file(root, BLOB, WORKLOADS, op_type, definition, f"{definition}_{uuid}", suffix=".safetensors")


def find_files(folder: Path, suffixes: tuple[str, ...], tell: Tell) -> Iterator[Path]:
    """Yield the files below a folder with one of the suffixes, in a fixed order; hidden ones are passed over.

    Args:
        folder: may be missing.
        suffixes: with their dots.
        tell: takes a path that is left out, and why, such as a folder that cannot be read.
    """
    with suppress(OSError):
        if not folder.exists():
            return
    for path in walk_files(folder, tell, follows_links=True, passes_over=lambda name: name.startswith(".")):
        if path.name.endswith(suffixes):
            yield path


def check_location(file: Path, folder: Path, expected: tuple[str, ...]) -> str | None:
    """Compare a path with the names inside the file, from the file name upward; return what differs.

    Args:
        file: the file.
        folder: the one of the four folders that it was found in.
        expected: the name of the thing, then of the folders around it, innermost first. As many folders as the path
            has are compared, so flatter layouts than ours pass.
    """
    parts = file.relative_to(folder).with_suffix("").parts[::-1]
    for found, name in zip(parts, expected, strict=False):
        if found not in (name, path_part(name)):
            return f"the path says {found!r}, the file {name!r}; the file is believed"
    return None


def find_set_around(path: Path, known: Iterable[Path] = ()) -> tuple[Path, Path | None]:
    """Return a path, absolute and without `..`, and the outermost folder around it that is a trace set, if any.

    Args:
        path: need not be there.
        known: folders of sets. Any other folder is one if it has `definitions/`, or two others of a set's folders.
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
    """Yield where files of a root may really lie: in it, or in the Hugging Face cache that it is a snapshot of."""
    real = root.resolve()
    yield real
    for parent in (real, *real.parents):
        if parent.parent.name == "snapshots":
            yield parent.parent.parent / "blobs"


def find_loose_folders(files: Iterable[Path], roots: Iterable[Path]) -> set[Path]:
    """Return the folders of those files of sets that lie in none of the folders of our layout."""
    ours = [root / name for root in roots for name in FOLDERS]
    return {file.parent for file in files if not any(file.is_relative_to(folder) for folder in ours)}


def is_of_author(file: Path, folder: Path, *, author: str, name: str) -> bool:
    """Tell whether a solution's file has its name, and lies in the folder of its author.

    Args:
        file: the file.
        folder: the folder of all solutions.
        author, name: what the file says.
    """
    parts = file.relative_to(folder).with_suffix("").parts
    return len(parts) > 1 and parts[-1] in (name, path_part(name)) and parts[0] in (author, path_part(author))
