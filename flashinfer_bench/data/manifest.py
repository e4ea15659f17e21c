"""A solution as a folder has it, and back: a manifest, and the text of each source.

The manifest is the solution without the content of its sources. The keys of `spec` stand beside the other keys:

    name: my_rmsnorm                      author: me                definition: rmsnorm_h4096
    language: cuda                        binding: tvm-ffi          entry_point: main.cu::run
    target_hardware: [NVIDIA H200]        dependencies: []          destination_passing_style: true
    sources: [main.cu, include/block.h]   only where they are not simply all files, sorted
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from flashinfer_bench.data.solution import BuildSpec, Solution

MANIFEST_NAMES: Final = ("solution.yaml", "solution.yml", "solution.json")
"""Names of a manifest; the first one that the folder has is read."""
SPEC_KEYS: Final = tuple(BuildSpec.model_fields)
NOT_SOURCES: Final = ("__pycache__",)


def split_solution(solution: Solution) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the manifest of a solution, and path → text of its sources."""
    plain = solution.to_dict()
    spec: dict[str, Any] = plain.pop("spec")
    sources: list[dict[str, Any]] = plain.pop("sources")
    if any(key in SPEC_KEYS for key in plain):
        plain["spec"] = spec  # a key of its own has the name of one of these: they are kept apart
    else:
        plain.update({key: spec[key] for key in SPEC_KEYS if key in spec})
        own = {key: value for key, value in spec.items() if key not in SPEC_KEYS}
        plain.update({"spec": own} if own else {})
    listed = [_without_content(source) for source in sources]
    if listed != sort_sources(source["path"] for source in sources):
        plain["sources"] = listed
    return plain, {source["path"]: source["content"] for source in sources}


def join_solution(manifest: Mapping[str, Any], sources: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON of the solution that a manifest and the text of sources make; nothing is checked.

    Args:
        manifest: as it was read.
        sources: path → text of each file that the manifest lists, or of all where it lists none.
    """
    whole = {key: value for key, value in manifest.items() if key not in ("spec", "sources")}
    spec = manifest.get("spec")
    if not (isinstance(spec, Mapping) and "entry_point" in spec):
        moved = {key: whole.pop(key) for key in SPEC_KEYS if key in whole}
        spec = {**moved, **spec} if isinstance(spec, Mapping) else moved
    listed = manifest.get("sources")
    entries = listed if isinstance(listed, list) else sort_sources(sources)
    return {**whole, "spec": spec, "sources": [_with_content(entry, sources) for entry in entries]}


def listed_paths(manifest: Mapping[str, Any]) -> list[str] | None:
    """Return the paths that a manifest lists; None where all files count. `join` looks at what is no path."""
    listed = manifest.get("sources")
    if not isinstance(listed, list):
        return None
    paths = [entry.get("path") if isinstance(entry, Mapping) else entry for entry in listed]
    return [path for path in paths if isinstance(path, str)]


def sort_sources(paths: Iterable[str]) -> list[str]:
    """Return the files that count as sources where a manifest lists none: those not hidden, by name."""
    others = (path for path in paths if path not in MANIFEST_NAMES)
    return sorted(path for path in others if not any(map(is_passed_over, PurePosixPath(path).parts)))


def is_passed_over(name: str) -> bool:
    """Tell whether a file or folder of this name, with what is in it, counts as no source."""
    return name.startswith(".") or name in NOT_SOURCES


def _without_content(source: Mapping[str, Any]) -> Any:
    rest = {key: value for key, value in source.items() if key != "content"}
    return rest["path"] if len(rest) == 1 else rest


def _with_content(entry: Any, sources: Mapping[str, str]) -> Any:
    fields = dict(entry) if isinstance(entry, Mapping) else {"path": entry}
    path = fields.get("path")
    if isinstance(path, str) and path in sources:
        fields["content"] = sources[path]
    return fields
