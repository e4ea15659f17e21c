"""Converts folders of sources to solutions and back, byte for byte. Reading reports all problems; writing is atomic.

A folder has a manifest: the solution without the content of its sources. The keys of `spec` are at the top level:

    name: my_rmsnorm                      author: me                definition: rmsnorm_h4096
    language: cuda                        binding: tvm-ffi          entry_point: main.cu::run
    target_hardware: [NVIDIA H200]        dependencies: []          destination_passing_style: true
    sources: [main.cu, include/block.h]   default: all files, sorted by name
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import yaml
from pydantic_core import from_json

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.issue import LoadIssue, Location
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.solution import BuildSpec, Solution, check_source_path
from flashinfer_bench.data.store.dialects import read_beside
from flashinfer_bench.data.store.jsonl import MOST_JSON_BYTES, new_folder
from flashinfer_bench.data.store.layout import path_part
from flashinfer_bench.data.store.parse import parse_raw
from flashinfer_bench.data.store.yaml_file import read_yaml_file
from flashinfer_bench.errors import ConfigError, DataSetError

MANIFEST_NAMES: Final = ("solution.yaml", "solution.yml", "solution.json")
"""Possible names of a manifest. The first existing name is read."""
SPEC_KEYS: Final = tuple(BuildSpec.model_fields)


class Packed(NamedTuple):
    """The content of a folder."""

    solution: Solution
    warnings: list[LoadIssue]


def pack_folder(folder: Path) -> Packed:
    """Read a folder of sources with its manifest.

    Raises:
        DataSetError: the folder has problems; the message lists all of them.
    """
    if not folder.is_dir():
        raise DataSetError(f"{folder} is no folder; pack takes a folder with sources and a {MANIFEST_NAMES[0]}")
    file = next((folder / name for name in MANIFEST_NAMES if os.path.lexists(folder / name)), None)
    if file is None:
        raise DataSetError(f"{folder} has no {MANIFEST_NAMES[0]}; `flashinfer-bench pack --help` shows one")
    raw, problems = _read_manifest(file), list[str]()
    spec = raw.get("spec")
    if not (isinstance(spec, Mapping) and "entry_point" in spec):
        moved = {key: raw.pop(key) for key in list(raw) if _is_of_spec(key)}
        raw["spec"] = moved | (dict(spec) if isinstance(spec, Mapping) else {})
    packed_before = f"{path_part(str(raw.get('name')))}.json"
    raw.setdefault("sources", [path for path in _list_sources(folder, problems) if path != packed_before])
    issues = [Location(folder).issue("error", problem, ("sources",)) for problem in problems]
    solution = parse_raw(Solution, raw, Location(file), issues)
    if solution is None or any(issue.severity == "error" for issue in issues):
        reported = [f"  {replace(issue, field=(issue.field or '').removeprefix('spec.'))}" for issue in issues]
        raise DataSetError("\n".join([f"{folder} cannot be packed:", *reported]))
    return Packed(solution, issues)


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        is_json = file.suffix == ".json"
        read = (
            from_json(read_whole(file, MOST_JSON_BYTES).decode("utf-8-sig")) if is_json else read_yaml_file(file).values
        )
    except ConfigError as error:
        raise DataSetError(str(error)) from error
    except (OSError, ValueError) as error:
        raise DataSetError(f"{file} cannot be read: {error}") from error
    if not isinstance(read, dict):
        raise DataSetError(f"{file}: keys with values are expected, this is {type(read).__name__}")
    return {str(key): value for key, value in read.items()}


def read_sources(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Return path → text of the sources in a folder, and the problems."""
    sources, problems = dict[str, str](), list[str]()
    for path in _list_sources(folder, problems):
        try:
            sources[path] = read_beside(folder / MANIFEST_NAMES[0], path)
        except ValueError as error:
            problems.append(str(error))
    return sources, problems


def _list_sources(folder: Path, problems: list[str]) -> list[str]:
    walk = walk_files(folder, lambda path, reason: problems.append(f"{path}: {reason}"), passes_over=is_passed_over)
    return _sort_sources(path.relative_to(folder).as_posix() for path in walk if path.is_file())


def _sort_sources(paths: Iterable[str]) -> list[str]:
    """Return the default sources of a folder: all visible files, sorted by name."""
    others = (path for path in paths if path not in MANIFEST_NAMES)
    return sorted(path for path in others if not any(map(is_passed_over, PurePosixPath(path).parts)))


def is_passed_over(name: str) -> bool:
    """Return whether the sources exclude files and folders with this name."""
    return name.startswith(".") or name == "__pycache__"


def _is_of_spec(key: str) -> bool:
    """Return whether a key of a manifest belongs to the spec, or is a misspelling of a spec key."""
    is_near = nearest_name(key, SPEC_KEYS, cutoff=KEY_CUTOFF) is not None
    return key in SPEC_KEYS or (key not in Solution.model_fields and is_near)


def split_solution(solution: Solution) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the manifest of a solution, and path → text of its sources."""
    plain = solution.to_dict()
    spec, sources = plain.pop("spec"), plain.pop("sources")
    is_flat = spec.keys() <= set(SPEC_KEYS) and plain.keys().isdisjoint(SPEC_KEYS)
    plain |= spec if is_flat else {"spec": spec}  # a nested spec avoids a clash with unknown keys
    texts = {source["path"]: source.pop("content") for source in sources}
    listed = [source["path"] if len(source) == 1 else source for source in sources]
    if listed != _sort_sources(texts):
        plain["sources"] = listed
    return plain, texts


def unpack_solution(solution: Solution, folder: Path, *, root: Path | None = None) -> list[Path]:
    """Write a solution's manifest and sources into a new or empty folder; return the files.

    Args:
        root: folder below which no link is followed.

    Raises:
        DataSetError: the folder is not empty, or a source cannot be written.
    """
    manifest, sources = split_solution(solution)
    taken = [path for path in sources if path in MANIFEST_NAMES]
    if taken:
        raise DataSetError(f"{solution.name} has a source called {taken[0]}, the name of its manifest")
    name, text = MANIFEST_NAMES[0], yaml.safe_dump(manifest, sort_keys=False, width=100)
    try:
        with new_folder(folder, root) as staging:
            for path, content in {**sources, name: text}.items():
                target = staging / check_source_path(path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode("utf-8"))
    except OSError as error:
        raise DataSetError(f"{folder} cannot be written: {error.strerror}") from error
    except UnicodeEncodeError as error:
        raise DataSetError(f"{folder}: a source has a character that no file can hold: {error.reason}") from error
    return [folder / name, *(folder / path for path in sources)]
