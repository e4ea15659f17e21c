"""Solutions of other dialects. Takes the parsed JSON of one, and returns it in today's form with remarks.
Forms, and what they become:

    null lists   `dependencies` null
    languages    `spec.languages`, a list, instead of `spec.language`; capitals; sources as a dict; entry without "::"
    beside       a source without `content`: the file lies beside the solution's
    loose        name, definition or author left out, where the solution lies beside its definition
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flashinfer_bench.data.reference import parse_module
from flashinfer_bench.data.solution import MOST_SOURCES, SupportedLanguages
from flashinfer_bench.data.store.variants.beside import Remark, Spot, read_beside
from flashinfer_bench.data.store.variants.definitions import without_null

_OTHER_LANGUAGES: Final = frozenset(
    {
        "pytorch",
        "torch",
        "cuda_cpp",
        "cute_dsl",
        "cutedsl",
        "cutile",
        "cudnn_frontend",
        "cutlass",
        "cudnn",
        "cublas",
        "c++",
    }
)
"""Languages of other engines; the suffix of the entry point's file says which builder takes them."""
_NEEDS: Final = {"cute_dsl": "cute-dsl", "cutedsl": "cute-dsl", "cutile": "cutile", "cutlass": "cutlass",
                 "cudnn_frontend": "cudnn", "cudnn": "cudnn", "cublas": "cublas"}  # fmt: skip
"""Language → the package that it needs. Where that is missing, a solution is skipped and not blamed."""
_PYTHON_SUFFIXES: Final = frozenset({".py"})
_CUDA_SUFFIXES: Final = frozenset({".cu", ".cuh"})
_CPP_SUFFIXES: Final = frozenset({".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"})
MOST_BESIDE_BYTES: Final = 64 << 20
"""Sources that lie beside their solution are read until they have so many bytes together."""
UNKNOWN_AUTHOR: Final = "unknown"


def upgrade_solution(raw: dict[str, Any], spot: Spot) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a solution into today's form, reading sources that lie beside its file."""
    new = dict(raw)
    remarks: list[Remark] = []
    if spot.definition is not None:
        usual = {"name": spot.file.stem, "definition": spot.definition, "author": UNKNOWN_AUTHOR}
        for key in (key for key in usual if not new.get(key)):
            new[key] = usual[key]
            remarks.append((key, f"not given; {usual[key]!r} is taken"))
    if isinstance(sources := raw.get("sources"), (list, dict)):
        new["sources"] = _upgrade_sources(sources, spot.file)
    if isinstance(spec := raw.get("spec"), dict):
        new["spec"] = _upgrade_spec(spec, new.get("sources"), remarks)
    return new, remarks


def _upgrade_sources(sources: list[Any] | dict[str, Any], file: Path) -> list[Any]:
    if isinstance(sources, dict):
        sources = [{"path": path, "content": content} for path, content in sources.items()]
    if len(sources) > MOST_SOURCES:
        return sources  # the model refuses them
    found, left = [], MOST_BESIDE_BYTES
    for source in sources:
        whole = _with_content(source, file) if left > 0 else source
        left -= len(whole["content"]) if whole is not source and isinstance(whole, dict) and "content" in whole else 0
        found.append(whole)
    return found


def _with_content(source: object, file: Path) -> object:
    """Fill in the content of a source that is a path only, from the file beside the solution's."""
    entry = {"path": source} if isinstance(source, str) else source
    if not isinstance(entry, dict) or entry.get("content") is not None or not isinstance(entry.get("path"), str):
        return entry
    try:
        return {**entry, "content": read_beside(file, entry["path"])}
    except ValueError:
        return {key: value for key, value in entry.items() if key != "content"}


def _upgrade_spec(raw: Mapping[str, Any], sources: object, remarks: list[Remark]) -> dict[str, Any]:
    spec = without_null(raw, "dependencies", "destination_passing_style")
    paths = list(_source_paths(sources))
    entry = spec.get("entry_point")
    if isinstance(entry, str) and "::" not in entry and (found := _find_entry(entry, sources)) is not None:
        spec["entry_point"] = found
        remarks.append(("spec.entry_point", f"{entry!r} is read as {found!r}"))
    language = spec.get("language", spec.get("languages"))
    languages = [str(name).lower() for name in (language if isinstance(language, list) else [language])]
    if isinstance(language, list) or languages[0] in _OTHER_LANGUAGES:
        chosen = _choose_language(languages, str(spec.get("entry_point", "")), paths)
        if chosen is not None:
            spec["language"] = chosen.value
            if languages != [chosen.value]:
                remarks.append(("spec", f"language {', '.join(languages)} is built as {chosen.value}"))
            _add_dependencies(spec, languages, chosen)
    elif isinstance(language, str):
        spec["language"] = language.lower()
    if isinstance(options := spec.get("compile_options"), dict):
        spec["compile_options"] = without_null(options, *options)
    _tell_unused(spec, remarks)
    if isinstance(hardware := spec.get("target_hardware"), str):
        spec["target_hardware"] = [hardware]
    return spec


def _tell_unused(spec: Mapping[str, Any], remarks: list[Remark]) -> None:
    is_compiled = spec.get("language") in [one.value for one in SupportedLanguages if one.record.is_compiled]
    unused = [] if is_compiled else [key for key in ("binding", "compile_options") if spec.get(key)]
    if unused:
        remarks.append(("spec", f"kept without effect, since only cpp and cuda have it: {', '.join(unused)}"))


def _add_dependencies(spec: dict[str, Any], languages: list[str], chosen: SupportedLanguages) -> None:
    """Name the packages that languages need, so that a solution is skipped where one is missing."""
    given = spec.get("dependencies", [])
    if isinstance(given, list):
        needed = (_NEEDS[name] for name in languages if name in _NEEDS)
        # Python reaches cuBLAS through torch.
        added = [name for name in needed if name not in given and (chosen.record.is_compiled or name != "cublas")]
        spec["dependencies"] = [*given, *dict.fromkeys(added)]


def _source_paths(sources: object) -> Iterator[str]:
    for source in sources if isinstance(sources, list) else []:
        if isinstance(source, dict) and isinstance(source.get("path"), str):
            yield source["path"]


def _find_entry(entry: str, sources: object) -> str | None:
    """Find file and function of an entry point that names only one of them, or joins them with one colon."""
    paths = list(_source_paths(sources))
    if len(paths) > MOST_SOURCES:
        return None
    path, _, symbol = entry.rpartition(":")
    if path in paths and symbol:
        return f"{path}::{symbol}"
    if entry in paths:
        return f"{entry}::run"
    holders = [path for path in paths if len(paths) == 1 or _defines(path, entry, sources)]
    return f"{holders[0]}::{entry}" if len(holders) == 1 else None


def _defines(path: str, function: str, sources: object) -> bool:
    for source in sources if isinstance(sources, list) else []:
        if isinstance(source, dict) and source.get("path") == path and path.endswith(".py"):
            try:
                tree = parse_module(str(source.get("content", "")))
            except ValueError:
                return False
            return any(getattr(node, "name", None) == function for node in tree.body)
    return False


def _choose_language(languages: list[str], entry_point: str, paths: list[str]) -> SupportedLanguages | None:
    """Choose the builder for a list of languages: the entry point's file decides, then the names."""
    path = entry_point.partition("::")[0] or (paths[0] if paths else "")
    suffix = PurePosixPath(path).suffix
    if suffix in _PYTHON_SUFFIXES:
        by_package = (one for one in SupportedLanguages if one.record.package and one.value in languages)
        return next(by_package, SupportedLanguages.PYTHON)
    if suffix in _CUDA_SUFFIXES:
        return SupportedLanguages.CUDA
    if suffix in _CPP_SUFFIXES:
        return SupportedLanguages.CUDA if any("cu" in name for name in languages) else SupportedLanguages.CPP
    return None
