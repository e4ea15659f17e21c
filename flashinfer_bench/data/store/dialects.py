"""The dialects of public files: converts a parsed object to the current format, and returns the new object with
warnings.

    definition   `type` for `op_type`, or no op type: the folder's; `tags` and `constraints` null
                 axes without their type: `{}`, `{"value": 4}`, `{"expression": "2 * n"}`
                 a const axis without a value: a var axis
                 the reference in a file next to the definition's
                 dumped by a library (a tag `fi_api:…`, or `init`): the last function is the reference, an output with
                 the name of an input is renamed, axes that only shapes name are var axes
    solution     `languages`, capitals, languages of other engines; an entry point without `::`
                 sources as a dict, or by path, with the text in a file next to the solution's
                 next to its definition: name, definition or author omitted
                 written for Trace Apply: as before it was written (`trace_apply/origin.py`)
    trace        a workload without the trace around it; no definition, no uuid; `solution` ""
                 inputs without their type: `{}`, `{"value": 3}`; an input that is null; an invalid cost or weight
                 `count` or `calls` for `weight`
                 `device` for `hardware`, `log_file` for `log`
                 next to its definition: blob paths relative to the folder of the file

A `Location` has the values that the path of the file implies. An upgrade assumes that its object has the expected form.
An object of another form raises AttributeError, KeyError or TypeError, and the models refuse the unchanged object.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import NOT_RECORDED
from flashinfer_bench.data.issue import Location
from flashinfer_bench.data.reference import ENTRY_NAME, read_module
from flashinfer_bench.data.solution import MOST_SOURCES, Solution, SupportedLanguages, check_source_path
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_apply.origin import restore_origin
from flashinfer_bench.data.workload import Weight, WorkloadCost

Raw = dict[str, Any]
Warnings = list[tuple[str, str]]
"""Dotted path of a field, and a warning that the field was converted."""
REFERENCE_FILE: Final = "reference.py"
UNKNOWN_AUTHOR: Final = "unknown"
MOST_SOURCE_BYTES: Final = 4 << 20
"""Largest source next to a solution's file, in bytes."""
MOST_BESIDE_BYTES: Final = 64 << 20
"""Largest total of the sources next to a solution's file, in characters."""
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
"""Language of another engine → required package. If the package is missing, the solution is skipped.

A solution with several languages needs the packages of all of them. A solution needs no package if its single language
is also a language of this package.
"""
COUNTS: Final = ("count", "calls")
"""Keys for a workload's number of calls. The number becomes the workload's weight."""
OPTIONAL_PARTS: Final[Mapping[str, tuple[TypeAdapter[Any], str]]] = {
    "cost": (TypeAdapter(WorkloadCost | None), "the cost is guessed from the definition"),
    "weight": (TypeAdapter(Weight | None), "the workload counts 1"),
}
"""Part of a workload → the part's type, and the effect of dropping an invalid part."""
_NAMESPACE: Final = uuid.UUID("6f1a3f0e-52a5-5b0e-9a55-3a7c1f0a9d11")
"""The namespace of uuids for workloads without a uuid. Equal workloads get equal uuids."""


def read_beside(file: Path, path: str, limit: int = MOST_SOURCE_BYTES) -> str:
    """Read the text of a file in the folder of another file, or in a subfolder.

    Raises:
        ValueError: the path leads out of the folder, or the file cannot be read.
    """
    folder = file.parent.resolve()
    try:
        beside = (folder / check_source_path(path)).resolve()
        if beside.is_relative_to(folder):
            return read_whole(beside, limit).decode("utf-8")
    except (OSError, RuntimeError, UnicodeDecodeError) as error:  # RuntimeError: a cycle of links
        raise ValueError(f"{path!r} cannot be read: {error}") from error
    raise ValueError(f"{path!r} leads out of {folder}")


def upgrade_definition(raw: Raw, location: Location, warnings: Warnings) -> Raw:
    """Convert a definition to the current format."""
    new = _without_null(raw, "tags", "constraints", "op_type", "reference")
    if "type" in new:
        new.setdefault("op_type", new.pop("type"))
    if "op_type" not in new:
        new["op_type"] = location.op_type
        warnings.append(("op_type", f"not given; {location.op_type!r} is taken"))
    new["axes"] = {name: _upgrade_axis(name, axis, warnings) for name, axis in raw["axes"].items()}
    path, separator, function = (new.get("custom_inputs_entrypoint") or "").partition("::")
    if separator and path in (REFERENCE_FILE, new.get("reference")):
        new["custom_inputs_entrypoint"] = function
    given = new.get("reference") or REFERENCE_FILE
    is_path = given.endswith(".py") and not {"\n", "("}.intersection(given)
    if is_path and ("reference" in new or (location.file.parent / given).is_file()):
        try:
            new["reference"] = read_beside(location.file, given)
        except ValueError as error:
            new["reference"] = ""
            warnings.append(("reference", str(error)))
    if new.get("init") is not None or any(str(tag).startswith("fi_api:") for tag in new.get("tags", ())):
        _upgrade_dump(new, warnings)
    return new


def _without_null(raw: Mapping[str, Any], *names: str) -> Raw:
    """Return an object without the given keys whose value is null."""
    return {key: value for key, value in raw.items() if not (key in names and value is None)}


def _upgrade_axis(name: str, axis: Raw, warnings: Warnings) -> Raw:
    new = _without_null(axis, "type", "value", "expression")
    kind = new.get("type") or ("const" if "value" in new else "expr" if "expression" in new else "var")
    if kind == "const" and "value" not in new:
        warnings.append((f"axes.{name}", f"const axis {name!r} has no value; read as var, so workloads give its size"))
        kind = "var"
    return {**new, "type": kind}


def _upgrade_dump(new: Raw, warnings: Warnings) -> None:
    inputs, outputs, axes = dict[str, Raw](new["inputs"]), dict[str, Raw](), new["axes"]
    for name, spec in new["outputs"].items():
        if name in inputs:
            if inputs[name]["dtype"] == NOT_RECORDED:
                inputs[name] = {**inputs[name], "dtype": spec["dtype"]}
            warnings.append((f"outputs.{name}", f"an input, changed in place; the output is named {name}_out"))
            name = f"{name}_out"
        outputs[name] = spec
    new |= {"inputs": inputs, "outputs": outputs}
    shapes = [spec["shape"] or () for spec in (*inputs.values(), *outputs.values())]
    for axis in dict.fromkeys(map(str, chain(*shapes))):
        if axis not in axes and axis.isidentifier():
            axes[axis] = {"type": "var"}
            warnings.append((f"axes.{axis}", "not listed; read as var, so workloads give the size"))
    reference = new.setdefault("reference", "")
    with suppress(ValueError):
        module = read_module(reference)
        if ENTRY_NAME not in module.names and module.functions:
            new["reference"] = f"{reference.rstrip()}\n\n\n{ENTRY_NAME} = {module.functions[-1]}\n"
            warnings.append(("reference", f"its last function, {module.functions[-1]!r}, is taken as {ENTRY_NAME!r}"))


def upgrade_solution(raw: Raw, location: Location, warnings: Warnings) -> Raw:
    """Convert a solution to the current format. Read the sources from files next to the solution's file."""
    raw = restore_origin(raw)
    new = dict(raw)
    if location.definition is not None:
        usual = {"name": location.file.stem, "definition": location.definition, "author": UNKNOWN_AUTHOR}
        for key in (key for key in usual if not new.get(key)):
            new[key] = usual[key]
            warnings.append((key, f"not given; {usual[key]!r} is taken"))
    sources = raw["sources"]
    if isinstance(sources, dict):
        sources = [{"path": path, "content": content} for path, content in sources.items()]
    entries = [{"path": one} if isinstance(one, str) else _without_null(one, "content") for one in sources]
    left = MOST_BESIDE_BYTES
    for index, entry in enumerate(entries if len(entries) <= MOST_SOURCES else ()):
        if "content" not in entry:
            try:
                entry["content"] = read_beside(location.file, entry["path"], min(left, MOST_SOURCE_BYTES))
                left -= len(entry["content"])
            except ValueError as error:
                warnings.append((f"sources.{index}.content", str(error)))
    new["sources"] = entries
    new["spec"] = _upgrade_spec(raw["spec"], {one["path"]: one.get("content", "") for one in entries}, warnings)
    return new


def _upgrade_spec(raw: Raw, texts: Mapping[str, str], warnings: Warnings) -> Raw:
    spec = _without_null(raw, "dependencies", "destination_passing_style", "compile_options")
    entry, given = raw["entry_point"], raw.get("language", raw.get("languages"))
    if "::" not in entry and (found := _find_entry(entry, texts)) is not None:
        spec["entry_point"] = found
        warnings.append(("spec.entry_point", f"{entry!r} is read as {found!r}"))
    names = [str(name).lower() for name in (given if isinstance(given, list) else [given])]
    if isinstance(given, str):
        spec["language"] = names[0]
    suffix = PurePosixPath(spec["entry_point"].partition("::")[0]).suffix
    if isinstance(given, list) or (names[0] in OTHER_LANGUAGES and not _is_ours(names[0], suffix)):
        chosen = _choose_language(suffix, names)
        if chosen is not None:
            spec["language"] = chosen.value
            warnings.append(("spec", f"language {', '.join(names)} is built as {chosen.value}"))
            needed = [OTHER_LANGUAGES.get(name, "") for name in names]
            if not chosen.record.is_compiled:
                needed = [name for name in needed if name != "cublas"]  # Python reaches cuBLAS through torch
            spec["dependencies"] = list(dict.fromkeys([*spec.get("dependencies", ()), *filter(None, needed)]))
    if "compile_options" in spec:
        spec["compile_options"] = _without_null(spec["compile_options"], *spec["compile_options"])
    is_compiled = spec.get("language") in [one.value for one in SupportedLanguages if one.record.is_compiled]
    unused = [key for key in ("binding", "compile_options") if spec.get(key) and not is_compiled]
    if unused:
        warnings.append(("spec", f"kept without effect, since only cpp, cuda and cutlass have it: {', '.join(unused)}"))
    if isinstance(hardware := spec.get("target_hardware"), str):
        spec["target_hardware"] = [hardware]
    if "language" in spec:
        spec.pop("languages", None)
    return spec


def _find_entry(entry: str, texts: Mapping[str, str]) -> str | None:
    """Complete an entry point that names only the file or only the function, or that joins both with one colon."""
    path, _, symbol = entry.rpartition(":")
    if path in texts and symbol:
        return f"{path}::{symbol}"
    if entry in texts:
        return f"{entry}::{ENTRY_NAME}"
    holders = [path for path in texts if len(texts) == 1 or _defines(path, texts[path], entry)]
    return f"{holders[0]}::{entry}" if len(holders) == 1 else None


def _defines(path: str, text: str, function: str) -> bool:
    try:
        return path.endswith(".py") and function in read_module(text).names
    except ValueError:
        return False


def _is_ours(name: str, suffix: str) -> bool:
    """Return whether this package has the language, and the suffix of the entry point's file fits."""
    is_compiled = [one.record.is_compiled for one in SupportedLanguages if one.value == name]
    return is_compiled == [suffix != ".py"]


def _choose_language(suffix: str, names: list[str]) -> SupportedLanguages | None:
    """Choose one language for a solution that lists several. The suffix of the entry point's file decides before the
    listed names."""
    if suffix == ".py":
        own = [name for name in names if name not in OTHER_LANGUAGES]
        by_package = (one for one in SupportedLanguages if one.record.package and one.value in own)
        return next(by_package, SupportedLanguages.PYTHON)
    if suffix not in (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp"):
        return None
    is_cuda = suffix.startswith(".cu") or any("cu" in name for name in names)
    return SupportedLanguages.CUDA if is_cuda else SupportedLanguages.CPP


def upgrade_trace(raw: Raw, location: Location, warnings: Warnings) -> Raw:
    """Convert a line of a workloads or traces file to the current format."""
    new: Raw = {"workload": raw} if "workload" not in raw and "axes" in raw else dict(raw)
    if not new.get("definition"):
        new["definition"] = location.definition or location.file.stem
        if location.definition is None:
            warnings.append(("definition", f"not given; {location.file.stem!r}, from the file's name, is taken"))
    if new.get("solution") == "":
        new["solution"] = None
    new["workload"] = _upgrade_workload(new["workload"], new["definition"], location, warnings)
    if isinstance(evaluation := new.get("evaluation"), dict):
        new["evaluation"] = _upgrade_evaluation(evaluation)
    return new


def _upgrade_workload(raw: Raw, definition: object, location: Location, warnings: Warnings) -> Raw:
    new = _without_null(raw, "weight")
    if not new.get("uuid"):
        content = {key: value for key, value in raw.items() if key not in ("weight", *COUNTS)}
        new["uuid"] = str(uuid.uuid5(_NAMESPACE, digest_of([definition, content])))
        warnings.append(("workload.uuid", "not given; a uuid made from the workload's content is taken"))
    for key in COUNTS:
        if type(new.get(key)) in (int, float) and new[key] > 0 and "weight" not in new:
            new["weight"] = new.pop(key)
            warnings.append((f"workload.{key}", "read as the workload's weight"))
    for key, (model, effect) in OPTIONAL_PARTS.items():
        try:
            model.validate_python(new.get(key))
        except ValidationError as error:
            del new[key]
            fault = error.errors(include_url=False, include_input=False)[0]
            reason = ": ".join([*map(str, fault["loc"]), fault["msg"]])
            warnings.append((f"workload.{key}", f"dropped, so {effect}: {reason}"))
    inputs = new.get("inputs")
    if inputs is not None:
        null = "null is read as omitted: random, or None if the input is optional"
        warnings += [(f"workload.inputs.{name}", null) for name, source in inputs.items() if source is None]
        new["inputs"] = {name: _upgrade_input(one, location) for name, one in inputs.items() if one is not None}
    return new


def _upgrade_input(source: Raw, location: Location) -> Raw:
    kind = "scalar" if "value" in source else "safetensors" if "path" in source else "random"
    new = {"type": kind, **_without_null(source, "type")}
    if location.root is not None and "path" in new:
        path, folder = new["path"].replace("\\", "/"), location.file.parent
        with suppress(OSError, ValueError):
            if not (location.root / path).is_file() and (folder / path).is_file():
                new["path"] = str(folder.relative_to(location.root) / path)
    return new


def _upgrade_evaluation(raw: Raw) -> Raw:
    new = _without_null(raw, "log")
    new["status"] = raw["status"].upper()
    new.setdefault("log", f"(the log was kept in {new['log_file']})" if new.get("log_file") else "")
    environment = raw["environment"]
    device = {"hardware": environment["device"]} if "device" in environment else {}
    new["environment"] = device | _without_null(environment, "libs")
    return new


UPGRADES: Final[Mapping[type[Any], Callable[[Raw, Location, Warnings], Raw]]] = {
    Definition: upgrade_definition,
    Solution: upgrade_solution,
    Trace: upgrade_trace,
}
"""Model → the upgrade of an object with that model. An upgrade takes the object's location, and adds a warning for each
converted field."""
