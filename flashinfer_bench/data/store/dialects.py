"""The dialects of public files: takes one parsed object, and returns it in the form of the format, with remarks.

    definition   `type` for `op_type`, or no op type: the folder's; `tags` and `constraints` null
                 axes without their type: `{}`, `{"value": 4}`, `{"expression": "2 * n"}`
                 a const axis without a value: a var axis
                 the reference in a file beside the definition's
                 dumped by a library (a tag `fi_api:…`, or `init`): the last function is the reference, an output with
                 the name of an input gets a name of its own, axes that only shapes name are var axes
    solution     `languages`, capitals, languages of other engines; an entry point without `::`
                 sources as a dict, or by path, with the text in a file beside the solution's
                 beside its definition: name, definition or author left out
    trace        a workload without the trace around it; no definition, no uuid; `solution` ""
                 inputs without their type: `{}`, `{"value": 3}`; an input that is null; a cost that is none
                 `device` for `hardware`, `log_file` for `log`
                 beside its definition: blob paths relative to the folder of the file

What a file's place says is a `Spot`. An object of another form than expected stays as it is: the models refuse it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import DTYPES, NOT_RECORDED
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.reference import ENTRY_NAME, parse_module, parse_reference
from flashinfer_bench.data.solution import MOST_SOURCES, Solution, SupportedLanguages, check_source_path
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.workload import WorkloadCost

Raw = dict[str, Any]
Remarks = list[tuple[str, str]]
"""Dotted path of a field, and what was made of it."""
REFERENCE_FILE: Final = "reference.py"
USUAL_OP_TYPE: Final = "custom"
"""The op type of a definition that names none, and lies in no folder of one."""
UNKNOWN_AUTHOR: Final = "unknown"
MOST_SOURCE_BYTES: Final = 4 << 20
"""Largest source beside its solution, in bytes."""
MOST_BESIDE_BYTES: Final = 64 << 20
"""All sources beside a solution together, in characters."""
OTHER_LANGUAGES: Final[Mapping[str, str]] = {
    "pytorch": "",
    "torch": "",
    "cuda_cpp": "",
    "c++": "",
    "cute_dsl": "cute-dsl",
    "cutedsl": "cute-dsl",
    "cutile": "cutile",
    "cutlass": "cutlass",
    "cudnn_frontend": "cudnn",
    "cudnn": "cudnn",
    "cublas": "cublas",
}
"""Language of another engine → the package that it needs; where that is missing, a solution is skipped."""
_NAMESPACE: Final = uuid.UUID("6f1a3f0e-52a5-5b0e-9a55-3a7c1f0a9d11")
"""The namespace of uuids for workloads that have none. Equal workloads get equal uuids."""


@dataclass(frozen=True)
class Spot:
    """Where a file lies, and what that says."""

    file: Path
    op_type: str = USUAL_OP_TYPE
    """The op type of a definition that names none."""
    definition: str | None = None
    """The definition of a solution or workload that names none; None: a workload's is the name of its file."""
    root: Path | None = None
    """The root of blob paths, if the file may give them relative to its own folder."""


def read_beside(file: Path, path: str, limit: int = MOST_SOURCE_BYTES) -> str:
    """Read the text of a file in the folder of another file, or below.

    Raises:
        ValueError: the path leads out of the folder, or the file cannot be read.
    """
    folder = file.parent.resolve()
    try:
        beside = (folder / check_source_path(path)).resolve()
        if beside.is_relative_to(folder):
            return read_whole(beside, limit).decode("utf-8")
    except (OSError, RuntimeError) as error:  # RuntimeError: links that lead round
        raise ValueError(f"{path!r} cannot be read: {error}") from error
    raise ValueError(f"{path!r} leads out of {folder}")


def upgrade_definition(raw: Raw, spot: Spot, remarks: Remarks) -> Raw:
    """Bring a definition into the form of the format."""
    new = _without_null(raw, "tags", "constraints", "op_type", "reference")
    is_definition = all(isinstance(raw.get(part), dict) for part in ("axes", "inputs", "outputs"))
    if isinstance(new.get("type"), str):
        new.setdefault("op_type", new.pop("type"))
    if is_definition and _is_left_out("op_type", new):
        new["op_type"] = spot.op_type
        remarks.append(("op_type", f"not given; {spot.op_type!r} is taken"))
    if isinstance(axes := new.get("axes"), dict):
        new["axes"] = {name: _upgrade_axis(name, axis, remarks) for name, axis in axes.items()}
    path, separator, function = str(new.get("custom_inputs_entrypoint", "")).partition("::")
    if separator and path in (REFERENCE_FILE, new.get("reference")):
        new["custom_inputs_entrypoint"] = function
    tags = new.get("tags")
    has_tag = isinstance(tags, list) and any(str(tag).startswith("fi_api:") for tag in tags)
    is_dump = has_tag or new.get("init") is not None
    _find_reference(new, spot, remarks, is_needed=not (is_dump and is_definition))
    if is_dump and is_definition:
        _upgrade_dump(new, remarks)
    return new


def _without_null(raw: Mapping[str, Any], *names: str) -> Raw:
    """Return an object without those of some keys that are null."""
    return {key: value for key, value in raw.items() if not (key in names and value is None)}


def _is_left_out(key: str, raw: Raw) -> bool:
    """Tell whether an object has no such key, nor a misspelling of it."""
    return key not in raw and nearest_name(key, raw, cutoff=KEY_CUTOFF) is None


def _upgrade_axis(name: str, axis: Any, remarks: Remarks) -> Any:
    if not isinstance(axis, dict):
        return axis
    given = _without_null(axis, "type", "value", "expression")
    if "type" not in given:
        kind = "const" if "value" in given else "expr" if "expression" in given else "var"
        return {**given, "type": kind}
    if given["type"] == "const" and "value" not in given:
        remarks.append((f"axes.{name}", f"const axis {name!r} has no value; read as var, so workloads give its size"))
        return {**given, "type": "var"}
    return axis


def _find_reference(new: Raw, spot: Spot, remarks: Remarks, *, is_needed: bool) -> None:
    """Read a reference that lies beside the definition; without any, a dump gets an empty one."""
    given = new.get("reference") or REFERENCE_FILE
    is_path = isinstance(given, str) and given.endswith(".py") and "\n" not in given and "(" not in given
    if is_path and (new.get("reference") or (spot.file.parent / given).is_file()):
        try:
            new["reference"] = read_beside(spot.file, given)
        except ValueError as error:
            new["reference"] = ""
            remarks.append(("reference", str(error)))
    elif not is_needed and _is_left_out("reference", new):
        new["reference"] = ""
        remarks.append(("reference", f"is missing; add Python source with a function {ENTRY_NAME!r}"))


def _upgrade_dump(new: Raw, remarks: Remarks) -> None:
    inputs, outputs, axes = dict(new["inputs"]), new["outputs"], new["axes"]
    specs = [spec for spec in (*inputs.values(), *outputs.values()) if isinstance(spec, dict)]
    shared = [name for name in outputs if name in inputs]
    for name in shared:
        spec, dtype = inputs[name], outputs[name].get("dtype") if isinstance(outputs[name], dict) else None
        if isinstance(spec, dict) and spec.get("dtype") == NOT_RECORDED and dtype in DTYPES:
            inputs[name] = {**spec, "dtype": dtype}
            remarks.append((f"inputs.{name}.dtype", f"was not recorded; {dtype}, the output's, is taken"))
    new["inputs"] = inputs
    new["outputs"] = {f"{name}_out" if name in shared else name: spec for name, spec in outputs.items()}
    if shared:
        names = ", ".join(shared)
        remarks.append(("outputs", f"{names}: an input, changed in place; the output is named {shared[0]}_out"))
    named = [axis for spec in specs if isinstance(spec.get("shape"), list) for axis in spec["shape"]]
    missing = [axis for axis in dict.fromkeys(map(str, named)) if axis not in axes and axis.isidentifier()]
    if missing:
        new["axes"] = {**axes, **{axis: {"type": "var"} for axis in missing}}
        remarks.append(("axes", f"{', '.join(missing)}: not listed; read as var, so workloads give the size"))
    try:
        facts = parse_reference(str(new.get("reference", "")))
    except ValueError:
        return
    if not facts.has_run and facts.last_function is not None:
        new["reference"] = f"{new['reference'].rstrip()}\n\n\n{ENTRY_NAME} = {facts.last_function}\n"
        remarks.append(("reference", f"its last function, {facts.last_function!r}, is taken as {ENTRY_NAME!r}"))


def upgrade_solution(raw: Raw, spot: Spot, remarks: Remarks) -> Raw:
    """Bring a solution into the form of the format, reading sources that lie beside its file."""
    new = dict(raw)
    if spot.definition is not None:
        usual = {"name": spot.file.stem, "definition": spot.definition, "author": UNKNOWN_AUTHOR}
        for key in (key for key in usual if not new.get(key)):
            new[key] = usual[key]
            remarks.append((key, f"not given; {usual[key]!r} is taken"))
    sources = new.get("sources")
    if isinstance(sources, dict):
        sources = [{"path": path, "content": content} for path, content in sources.items()]
    if isinstance(sources, list):
        left = MOST_BESIDE_BYTES
        entries = [{"path": source} if isinstance(source, str) else source for source in sources]
        new["sources"] = entries
        for index, entry in enumerate(entries if len(entries) <= MOST_SOURCES else ()):
            if isinstance(entry, dict) and isinstance(entry.get("path"), str) and entry.get("content") is None:
                entries[index] = _with_content(entry, spot.file, left)
                left -= len(entries[index].get("content", ""))
    if isinstance(spec := raw.get("spec"), dict):
        texts = {
            source["path"]: str(source.get("content", ""))
            for source in new.get("sources") or ()
            if isinstance(source, dict) and isinstance(source.get("path"), str)
        }
        new["spec"] = _upgrade_spec(spec, texts, remarks)
    return new


def _with_content(entry: Raw, file: Path, left: int) -> Raw:
    """Fill in the text of a source from the file beside the solution's."""
    try:
        return {**entry, "content": read_beside(file, entry["path"], min(left, MOST_SOURCE_BYTES))}
    except ValueError:
        return _without_null(entry, "content")


def _upgrade_spec(raw: Raw, texts: Mapping[str, str], remarks: Remarks) -> Raw:
    spec = _without_null(raw, "dependencies", "destination_passing_style")
    entry = spec.get("entry_point")
    if isinstance(entry, str) and "::" not in entry and (found := _find_entry(entry, texts)) is not None:
        spec["entry_point"] = found
        remarks.append(("spec.entry_point", f"{entry!r} is read as {found!r}"))
    given = spec.get("language", spec.get("languages"))
    names = [str(name).lower() for name in (given if isinstance(given, list) else [given])]
    chosen = None
    if isinstance(given, list) or names[0] in OTHER_LANGUAGES:
        path = str(spec.get("entry_point", "")).partition("::")[0] or next(iter(texts), "")
        chosen = _choose_language(PurePosixPath(path).suffix, names)
    if chosen is not None:
        if names != [chosen.value]:
            remarks.append(("spec", f"language {', '.join(names)} is built as {chosen.value}"))
        needed = [OTHER_LANGUAGES.get(name, "") for name in names]
        if not chosen.record.is_compiled:
            needed = [name for name in needed if name != "cublas"]  # Python reaches cuBLAS through torch
        dependencies = spec.get("dependencies", [])
        if isinstance(dependencies, list):
            added = [name for name in dict.fromkeys(needed) if name and name not in dependencies]
            spec["dependencies"] = [*dependencies, *added]
    if chosen is not None or isinstance(given, str):
        spec["language"] = chosen.value if chosen is not None else names[0]
    if isinstance(options := spec.get("compile_options"), dict):
        spec["compile_options"] = _without_null(options, *options)
    is_compiled = spec.get("language") in [one.value for one in SupportedLanguages if one.record.is_compiled]
    unused = [key for key in ("binding", "compile_options") if spec.get(key) and not is_compiled]
    if unused:
        remarks.append(("spec", f"kept without effect, since only cpp and cuda have it: {', '.join(unused)}"))
    if isinstance(hardware := spec.get("target_hardware"), str):
        spec["target_hardware"] = [hardware]
    return spec


def _find_entry(entry: str, texts: Mapping[str, str]) -> str | None:
    """Find file and function of an entry point that names only one of them, or joins them with one colon."""
    path, _, symbol = entry.rpartition(":")
    if path in texts and symbol:
        return f"{path}::{symbol}"
    if entry in texts:
        return f"{entry}::{ENTRY_NAME}"
    holders = [path for path in texts if len(texts) == 1 or _defines(path, texts[path], entry)]
    return f"{holders[0]}::{entry}" if len(holders) == 1 else None


def _defines(path: str, text: str, function: str) -> bool:
    try:
        return path.endswith(".py") and any(getattr(node, "name", "") == function for node in parse_module(text).body)
    except ValueError:
        return False


def _choose_language(suffix: str, names: list[str]) -> SupportedLanguages | None:
    """Choose the builder for a list of languages: the suffix of the entry point's file decides, then the names."""
    if suffix == ".py":
        by_package = (one for one in SupportedLanguages if one.record.package and one.value in names)
        return next(by_package, SupportedLanguages.PYTHON)
    if suffix not in (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"):
        return None
    is_cuda = suffix.startswith(".cu") or any("cu" in name for name in names)
    return SupportedLanguages.CUDA if is_cuda else SupportedLanguages.CPP


def upgrade_trace(raw: Raw, spot: Spot, remarks: Remarks) -> Raw:
    """Bring a line of a workloads or traces file into the form of the format."""
    new: Raw = {"workload": raw} if "workload" not in raw and "axes" in raw else dict(raw)
    if not new.get("definition"):
        new["definition"] = spot.definition or spot.file.stem
        if spot.definition is None:
            remarks.append(("definition", f"not given; {spot.file.stem!r}, from the file's name, is taken"))
    if new.get("solution") == "":
        new["solution"] = None
    if isinstance(workload := new.get("workload"), dict):
        new["workload"] = _upgrade_workload(workload, new["definition"], spot, remarks)
    if isinstance(evaluation := new.get("evaluation"), dict):
        new["evaluation"] = _upgrade_evaluation(evaluation)
    return new


def _upgrade_workload(raw: Raw, definition: object, spot: Spot, remarks: Remarks) -> Raw:
    new = dict(raw)
    if not new.get("uuid"):
        new["uuid"] = str(uuid.uuid5(_NAMESPACE, digest_of([definition, raw])))
        remarks.append(("workload.uuid", "not given; one made from the workload's content is taken"))
    try:
        WorkloadCost.model_validate(new.get("cost") or {"flops": 0.0, "bytes": 0.0, "unit": "fp32"})
    except ValidationError as error:
        del new["cost"]
        faults = error.errors(include_url=False, include_input=False)
        reason = "; ".join(": ".join([*map(str, fault["loc"]), fault["msg"]]) for fault in faults)
        remarks.append(("workload.cost", f"left out, so that the cost is guessed from the definition: {reason}"))
    if isinstance(inputs := new.get("inputs"), dict):
        new["inputs"] = {name: _upgrade_input(source, spot) for name, source in inputs.items() if source is not None}
        null = "null is read as left out: random, or None where it is optional"
        remarks += [(f"workload.inputs.{name}", null) for name, source in inputs.items() if source is None]
    return new


def _upgrade_input(source: Any, spot: Spot) -> Any:
    if not isinstance(source, dict):
        return source
    kind = "scalar" if "value" in source else "safetensors" if "path" in source else "random"
    new = {"type": kind, **_without_null(source, "type")}
    path = new.get("path")
    if spot.root is not None and isinstance(path, str):
        path, folder = path.replace("\\", "/"), spot.file.parent
        if not _is_file(spot.root / path) and _is_file(folder / path):
            new["path"] = str(folder.relative_to(spot.root) / path)
    return new


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except (OSError, ValueError):
        return False


def _upgrade_evaluation(raw: Raw) -> Raw:
    new = _without_null(raw, "log")
    if isinstance(status := new.get("status"), str):
        new["status"] = status.upper()
    new.setdefault("log", f"(the log was kept in {new['log_file']})" if new.get("log_file") else "")
    if isinstance(environment := new.get("environment"), dict):
        device = {"hardware": str(environment["device"])} if "device" in environment else {}
        new["environment"] = device | _without_null(environment, "libs")
    return new


Upgrade = Callable[[Raw, Spot, Remarks], Raw]
UPGRADES: Final[Mapping[type[Any], Upgrade]] = {
    Definition: upgrade_definition,
    Solution: upgrade_solution,
    Trace: upgrade_trace,
}
"""Takes one object and where its file lies, and adds what was read otherwise than written to the remarks."""
