"""Folders of sources to solutions and back, byte for byte: reading one with all its faults, writing one whole.

What a folder looks like is in `data.manifest`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import remove_tree, walk_files
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.manifest import (
    MANIFEST_NAMES,
    SPEC_KEYS,
    is_passed_over,
    join_solution,
    listed_paths,
    sort_sources,
    split_solution,
)
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.solution import Solution, check_source_path
from flashinfer_bench.data.store.dialects import MOST_SOURCE_BYTES
from flashinfer_bench.data.store.json_text import MOST_JSON_BYTES, parse_json
from flashinfer_bench.data.store.parse import MISSING, Place, describe_missing, parse_raw
from flashinfer_bench.data.yaml_text import MOST_YAML_BYTES, parse_yaml
from flashinfer_bench.errors import DataSetError


class Packed(NamedTuple):
    """A folder that was read."""

    solution: Solution
    warnings: list[LoadIssue]


def pack_folder(folder: Path) -> Packed:
    """Read a folder of sources with its manifest.

    Raises:
        DataSetError: something in it is wrong; everything that is wrong is listed.
    """
    file = _find_manifest(folder)
    manifest = _read_manifest(file)
    issues: list[LoadIssue] = []
    sources = _read_sources(folder, listed_paths(manifest), file, issues)
    if listed_paths(manifest) is None:
        name = manifest.get("name")
        sources = {path: text for path, text in sources.items() if not _is_packed(path, text, name)}
    issues.extend(_misspelt(manifest, file))
    solution = parse_raw(Solution, join_solution(manifest, sources), Place(file), issues)
    errors = [str(_with_hint(_flat(issue), manifest)) for issue in issues if issue.severity == "error"]
    if errors or solution is None:
        raise DataSetError("\n".join([f"{folder} cannot be packed:", *(f"  {line}" for line in errors)]))
    return Packed(solution, issues)


def unpack_solution(solution: Solution, folder: Path, *, root: Path | None = None) -> list[Path]:
    """Write a solution's manifest and sources into a folder that is new or empty; return the files.

    Args:
        solution: the solution.
        folder: the folder.
        root: no link is followed below it.

    Raises:
        DataSetError: the folder holds something already, or a source cannot be written.
    """
    manifest, sources = split_solution(solution)
    taken = [path for path in sources if path in MANIFEST_NAMES]
    if taken:
        raise DataSetError(f"{solution.name} has a source called {taken[0]}, the name of its manifest")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise DataSetError(f"{folder} is there and not empty; name another folder with -d")
        place = folder if root is None else folder.absolute()
        with open_folder(place.parent, root) as above:
            staging = Path(tempfile.mkdtemp(prefix=f".{folder.name[:60]}.", dir=above.own_path))
            try:
                _write_sources(staging, sources)
                name, text = render_manifest(manifest)
                (staging / name).write_text(text, encoding="utf-8", newline="\n")
                staging.chmod(0o755)
                os.rename(staging, above.own_path / folder.name)  # noqa: PTH104 - hides that no full folder is replaced
            finally:
                remove_tree(staging)
    except OSError as error:
        raise DataSetError(f"{folder} cannot be written: {error.strerror}") from error
    return [folder / name, *(folder / path for path in sources)]


def render_manifest(manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Return a manifest's file name and text: YAML, or JSON where YAML would lose a character of a text."""
    text = yaml.safe_dump(dict(manifest), sort_keys=False, allow_unicode=True, width=100)
    try:
        is_kept = parse_yaml(text)[1] == manifest
    except yaml.YAMLError:
        is_kept = False
    return ("solution.yaml", text) if is_kept else ("solution.json", json.dumps(manifest, indent=2) + "\n")


def _find_manifest(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataSetError(f"{folder} is no folder; pack takes a folder with sources and a {MANIFEST_NAMES[0]}")
    found = [folder / name for name in MANIFEST_NAMES if os.path.lexists(folder / name)]
    if not found:
        raise DataSetError(f"{folder} has no {MANIFEST_NAMES[0]}; `flashinfer-bench pack --help` shows one")
    return found[0]


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        is_json = file.suffix == ".json"
        text = read_whole(file, MOST_JSON_BYTES if is_json else MOST_YAML_BYTES).decode("utf-8-sig")
        read = parse_json(text)[0] if is_json else parse_yaml(text)[1]
    except (OSError, ValueError, yaml.YAMLError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)
        raise DataSetError(f"{file} cannot be read: {' '.join(str(said).split())}") from error
    if not isinstance(read, dict):
        raise DataSetError(f"{file}: keys with values are expected, this is {type(read).__name__}")
    return {str(key): value for key, value in read.items()}


def _read_sources(folder: Path, listed: list[str] | None, file: Path, issues: list[LoadIssue]) -> dict[str, str]:
    """Read the listed files, or all; what cannot be a source becomes an issue."""

    def tell(path: Path, reason: str) -> None:
        issues.append(LoadIssue("error", path, None, "sources", reason))

    if listed is None:
        there = [path for path in walk_files(folder, tell, passes_over=is_passed_over) if path.is_file()]
        listed = sort_sources(path.relative_to(folder).as_posix() for path in there)
    sources: dict[str, str] = {}
    for path in listed:
        try:
            sources[path] = _read_source(folder, check_source_path(path))
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that lead round
            reason = error.strerror if isinstance(error, OSError) else str(error)
            issues.append(LoadIssue("error", file, None, "sources", f"{path}: {reason}"))
    return sources


def _is_packed(path: str, text: str, name: object) -> bool:
    """Tell whether a file is this solution as it was packed before, into the folder itself."""
    if not path.endswith(".json"):
        return False
    try:
        held = parse_json(text)[0]
    except ValueError:
        return False
    return isinstance(held, dict) and held.get("name") == name and {"definition", "sources", "spec"} <= held.keys()


def _read_source(folder: Path, path: str) -> str:
    file = folder / path
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError("leads out of the folder")
    try:
        return read_whole(file, MOST_SOURCE_BYTES).decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8; list the files that are sources under `sources`") from None


def _misspelt(manifest: Mapping[str, Any], file: Path) -> list[LoadIssue]:
    """Warn of keys that look like a misspelt key of the spec; those of the solution itself are warned of elsewhere."""
    free = [key for key in SPEC_KEYS if key not in manifest]
    found = []
    for key in (key for key in manifest if key not in (*Solution.model_fields, *SPEC_KEYS)):
        nearest = nearest_name(key, free, cutoff=KEY_CUTOFF)
        if nearest is not None:
            reason = f"unknown key, kept without effect; did you mean {nearest!r}?"
            found.append(LoadIssue("warning", file, None, key, reason))
    return found


def _flat(issue: LoadIssue) -> LoadIssue:
    """Name a field as it stands in a manifest."""
    field = (issue.field or "").removeprefix("spec.") or None
    return LoadIssue(issue.severity, issue.file, issue.line, field, issue.reason)


def _with_hint(issue: LoadIssue, manifest: Mapping[str, Any]) -> LoadIssue:
    """Name the key that may be a misspelling of a missing one of the spec; the others stand beside it in the file."""
    if issue.reason != MISSING or issue.field is None:
        return issue
    strange = [key for key in manifest if key not in (*Solution.model_fields, *SPEC_KEYS)]
    nearest = nearest_name(issue.field, strange, cutoff=KEY_CUTOFF)
    return issue if nearest is None else replace(issue, reason=describe_missing(nearest))


def _write_sources(folder: Path, sources: Mapping[str, str]) -> None:
    for path, content in sources.items():
        target = folder / check_source_path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.write_bytes(content.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise DataSetError(f"{path} has a character that no file can hold: {error.reason}") from error
