"""Turns files of other dialects, and old files, into today's format. Only this module knows those forms.

Each function takes the parsed JSON of one object, and returns it in today's form, with remarks (field, text) on what
was read in another sense than it was written. History:

    early 2025   definition: `type` for `op_type`; environment: `device` for `hardware`; evaluation: `log_file`
    null lists   `constraints`, `tags` and `dependencies` null
    templates    a const axis without a value: read as a var axis
    languages    `spec.languages`, a list, instead of `spec.language`; capitals; sources as a dict; entry without "::"
    beside       a source without `content`: the file lies beside the solution's
    bare         a workloads line that is a workload without the trace around it; no uuid; `solution` ""
    costs        a workload's `cost` that is none of ours: left out, since nothing but the roofline wants it
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.reference import parse_module
from flashinfer_bench.data.solution import MOST_SOURCES, Solution, SupportedLanguages, check_source_path
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import WorkloadCost
from flashinfer_bench.files.reading import read_whole

Remark = tuple[str, str]
"""The field, and what was made of it."""
Upgrade = Callable[[dict[str, Any], Path], tuple[dict[str, Any], list[Remark]]]
"""Takes one object and the file that it came from."""

_OTHER_LANGUAGES: Final = frozenset(
    {"pytorch", "torch", "cuda_cpp", "cute_dsl", "cutedsl", "cutile", "cutlass", "cudnn", "cublas", "c++"}
)
"""Languages of other engines; the suffix of the entry point's file says which builder takes them."""
_PYTHON_SUFFIXES: Final = frozenset({".py"})
_CUDA_SUFFIXES: Final = frozenset({".cu", ".cuh"})
_CPP_SUFFIXES: Final = frozenset({".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"})
MOST_SOURCE_BYTES: Final = 4 << 20
"""A source that lies beside its solution has at most this many bytes, as one that a worker gets."""
MOST_BESIDE_BYTES: Final = 64 << 20
"""Sources that lie beside their solution are read until they have so many bytes together."""
_WORKLOAD_NAMESPACE: Final = uuid.UUID("6f1a3f0e-52a5-5b0e-9a55-3a7c1f0a9d11")
"""The namespace of uuids for workloads that have none. Equal workloads get equal uuids."""


def upgrade_definition(raw: dict[str, Any], file: Path) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a definition into today's form."""
    del file
    new = _without_null_lists(raw, "tags", "constraints")
    remarks: list[Remark] = []
    if "op_type" not in new and isinstance(new.get("type"), str):
        new["op_type"] = new.pop("type")
    if isinstance(axes := new.get("axes"), dict):
        new["axes"] = dict(axes)
        for name, axis in axes.items():
            if isinstance(axis, dict) and axis.get("type") == "const" and axis.get("value") is None:
                new["axes"][name] = {**{key: axis[key] for key in axis if key != "value"}, "type": "var"}
                remarks.append((f"axes.{name}", "a const axis without a value is read as a var axis"))
    return new, remarks


def upgrade_solution(raw: dict[str, Any], file: Path) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a solution into today's form, reading sources that lie beside its file."""
    new = dict(raw)
    remarks: list[Remark] = []
    if isinstance(sources := raw.get("sources"), (list, dict)):
        new["sources"] = _upgrade_sources(sources, file.parent)
    if isinstance(spec := raw.get("spec"), dict):
        new["spec"] = _upgrade_spec(spec, new.get("sources"), remarks)
    return new, remarks


def upgrade_trace(raw: dict[str, Any], file: Path) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a line of a workloads or traces file into today's form."""
    new = dict(raw)
    remarks: list[Remark] = []
    if "workload" not in new and "axes" in new:
        new = {"workload": new}
    if not new.get("definition"):
        new["definition"] = file.stem
        remarks.append(("definition", f"not given; {file.stem!r}, from the file's name, is taken"))
    if new.get("solution") == "":
        new["solution"] = None
    if isinstance(workload := new.get("workload"), dict) and not workload.get("uuid"):
        made = str(uuid.uuid5(_WORKLOAD_NAMESPACE, digest_of([new["definition"], workload])))
        new["workload"] = {**workload, "uuid": made}
        remarks.append(("workload.uuid", f"not given; {made}, made from its content, is taken"))
    if isinstance(workload := new.get("workload"), dict) and (reason := _why_no_cost(workload.get("cost"))):
        new["workload"] = {key: value for key, value in workload.items() if key != "cost"}
        remarks.append(("workload.cost", f"left out, so that the cost is guessed from the definition: {reason}"))
    if isinstance(evaluation := new.get("evaluation"), dict):
        new["evaluation"] = _upgrade_evaluation(evaluation)
    return new, remarks


UPGRADES: Final[Mapping[type[Any], Upgrade]] = {
    Definition: upgrade_definition,
    Solution: upgrade_solution,
    Trace: upgrade_trace,
}
"""The upgrade of each kind of file."""


def _why_no_cost(given: object) -> str | None:
    """Say what is wrong with the cost of a workload; None where nothing is, or none is given."""
    if given is None:
        return None
    try:
        WorkloadCost.model_validate(given)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False)
        return "; ".join(": ".join([*map(str, fault["loc"]), fault["msg"]]) for fault in faults)
    return None


def _without_null_lists(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if not (key in names and value is None)}


def _upgrade_sources(sources: list[Any] | dict[str, Any], folder: Path) -> list[Any]:
    if isinstance(sources, dict):
        sources = [{"path": path, "content": content} for path, content in sources.items()]
    if len(sources) > MOST_SOURCES:
        return sources  # the model refuses them
    found, left = [], MOST_BESIDE_BYTES
    for source in sources:
        whole = _with_content(source, folder) if left > 0 else source
        left -= len(whole["content"]) if whole is not source and isinstance(whole, dict) and "content" in whole else 0
        found.append(whole)
    return found


def _with_content(source: object, folder: Path) -> object:
    """Fill in the content of a source that is a path only, from the file beside the solution's."""
    entry = {"path": source} if isinstance(source, str) else source
    if not isinstance(entry, dict) or entry.get("content") is not None or not isinstance(entry.get("path"), str):
        return entry
    try:
        beside = (folder / check_source_path(entry["path"])).resolve()
        if beside.is_relative_to(folder.resolve()):
            return {**entry, "content": read_whole(beside, MOST_SOURCE_BYTES).decode("utf-8")}
    except (OSError, ValueError, RuntimeError):  # RuntimeError: links that lead round
        return {key: value for key, value in entry.items() if key != "content"}
    return entry


def _upgrade_spec(raw: Mapping[str, Any], sources: object, remarks: list[Remark]) -> dict[str, Any]:
    spec = _without_null_lists(raw, "dependencies", "destination_passing_style")
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
            remarks.append(("spec", f"language {', '.join(languages)} is built as {chosen.value}"))
    elif isinstance(language, str):
        spec["language"] = language.lower()
    if isinstance(hardware := spec.get("target_hardware"), str):
        spec["target_hardware"] = [hardware]
    return spec


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
        for language in (SupportedLanguages.TRITON, SupportedLanguages.TILELANG):
            if language.value in languages:
                return language
        return SupportedLanguages.PYTHON
    if suffix in _CUDA_SUFFIXES:
        return SupportedLanguages.CUDA
    if suffix in _CPP_SUFFIXES:
        return SupportedLanguages.CUDA if any("cu" in name for name in languages) else SupportedLanguages.CPP
    return None


def _upgrade_evaluation(raw: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(raw)
    if isinstance(status := new.get("status"), str):
        new["status"] = status.upper()
    if new.get("log") is None:
        new["log"] = f"(the log was kept in {new['log_file']})" if new.get("log_file") else ""
    if isinstance(environment := new.get("environment"), dict):
        environment = _without_null_lists(environment, "libs")
        if "hardware" not in environment and "device" in environment:
            environment["hardware"] = str(environment["device"])
        new["environment"] = environment
    return new
