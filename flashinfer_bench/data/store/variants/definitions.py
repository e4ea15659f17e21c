"""Definitions of other dialects. Takes the parsed JSON of one, and returns it in today's form with remarks.
Forms, and what they become:

    early 2025   `type` for `op_type`
    null lists   `constraints` and `tags` null
    defaults     axes without their type, which other engines leave out: `{}`, `{"value": 4}`, `{"expression": "2 * n"}`
    templates    a const axis without a value: read as a var axis
    loose        no `op_type`: the folder's; the reference in `reference.py` beside the file
    dumps        of a library (they have `init`, or a tag `fi_api:…`): the last function is the reference; an output
                 with the name of an input, which is changed in place, gets one of its own; axes that only shapes name
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from flashinfer_bench.data.dtypes import DTYPES, NOT_RECORDED
from flashinfer_bench.data.names import KEY_CUTOFF, nearest_name
from flashinfer_bench.data.reference import ENTRY_NAME, parse_reference
from flashinfer_bench.data.store.variants.beside import Remark, Spot, read_beside

REFERENCE_FILE: Final = "reference.py"
DUMP_TAG: Final = "fi_api:"
_DUMP_KEY: Final = "init"


def upgrade_definition(raw: dict[str, Any], spot: Spot) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a definition into today's form."""
    new = without_null(raw, "tags", "constraints", "op_type", "reference")
    remarks: list[Remark] = []
    if "op_type" not in new and isinstance(new.get("type"), str):
        new["op_type"] = new.pop("type")
    if "op_type" not in new and _is_left_out("op_type", new):
        new["op_type"] = spot.op_type
        remarks.append(("op_type", f"not given; {spot.op_type!r} is taken"))
    if isinstance(axes := new.get("axes"), dict):
        new["axes"] = {name: _upgrade_axis(name, axis, remarks) for name, axis in axes.items()}
    path, separator, function = str(new.get("custom_inputs_entrypoint", "")).partition("::")
    if separator and path in (REFERENCE_FILE, new.get("reference")):
        new["custom_inputs_entrypoint"] = function
    _find_reference(new, spot, remarks)
    if _is_dump(new):
        _upgrade_dump(new, remarks)
    return new, remarks


def without_null(raw: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return an object without those of some keys that are null."""
    return {key: value for key, value in raw.items() if not (key in names and value is None)}


def _is_left_out(key: str, raw: Mapping[str, Any]) -> bool:
    """Tell whether an object that is a definition has no such key, and none that may be a misspelling of it."""
    is_definition = all(isinstance(raw.get(part), dict) for part in ("axes", "inputs", "outputs"))
    return is_definition and nearest_name(key, raw, cutoff=KEY_CUTOFF) is None


def _upgrade_axis(name: str, axis: Any, remarks: list[Remark]) -> Any:
    if not isinstance(axis, dict):
        return axis
    if axis.get("type") is None:
        kind = "const" if axis.get("value") is not None else "expr" if axis.get("expression") is not None else "var"
        unused = {"type", "value", "expression"} - {"value" if kind == "const" else "expression"}
        return {**{key: axis[key] for key in axis if key not in unused}, "type": kind}
    if axis["type"] == "const" and axis.get("value") is None:
        remarks.append((f"axes.{name}", f"const axis {name!r} has no value; read as var, so workloads give its size"))
        return {**{key: axis[key] for key in axis if key != "value"}, "type": "var"}
    return axis


def _find_reference(new: dict[str, Any], spot: Spot, remarks: list[Remark]) -> None:
    """Read a reference that lies beside the definition; one that is nowhere is empty, so that the rest can be used."""
    given = new.get("reference")
    is_path = isinstance(given, str) and given.endswith(".py") and "\n" not in given and "(" not in given
    if given is not None and given != "" and not is_path:
        return
    path = str(given) if is_path else REFERENCE_FILE
    if is_path or (spot.file.parent / path).is_file():
        try:
            new["reference"] = read_beside(spot.file, path)
        except ValueError as error:
            new["reference"] = ""
            remarks.append(("reference", str(error)))
        return
    if given is None and _is_dump(new) and _is_left_out("reference", new):
        new["reference"] = ""
        remarks.append(("reference", f"is missing; add Python source with a function {ENTRY_NAME!r}"))


def _is_dump(new: Mapping[str, Any]) -> bool:
    tags = new.get("tags")
    has_tag = isinstance(tags, list) and any(str(tag).startswith(DUMP_TAG) for tag in tags)
    return has_tag or new.get(_DUMP_KEY) is not None


def _upgrade_dump(new: dict[str, Any], remarks: list[Remark]) -> None:
    inputs, outputs, source = new.get("inputs"), new.get("outputs"), new.get("reference")
    if isinstance(inputs, dict) and isinstance(outputs, dict):
        _fill_dtypes(new, inputs, outputs, remarks)
        _add_axes(new, [*inputs.values(), *outputs.values()], remarks)
        shared = [name for name in outputs if name in inputs]
        new["outputs"] = {_own_name(name, inputs, outputs): spec for name, spec in outputs.items()}
        if shared:
            names = ", ".join(shared)
            remarks.append(("outputs", f"{names}: an input, changed in place; the output is named {shared[0]}_out"))
    if not isinstance(source, str):
        return
    try:
        facts = parse_reference(source)
    except ValueError:
        return
    if not facts.has_run and facts.last_function is not None:
        new["reference"] = f"{source.rstrip()}\n\n\n{ENTRY_NAME} = {facts.last_function}\n"
        remarks.append(("reference", f"its last function, {facts.last_function!r}, is taken as {ENTRY_NAME!r}"))


def _fill_dtypes(
    new: dict[str, Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any], remarks: list[Remark]
) -> None:
    """Give an input that was not recorded the dtype of the output that it becomes."""
    new["inputs"] = dict(inputs)
    for name, spec in inputs.items():
        written = outputs.get(name)
        if not isinstance(spec, dict) or spec.get("dtype") != NOT_RECORDED or not isinstance(written, dict):
            continue
        if written.get("dtype") in DTYPES:
            new["inputs"][name] = {**spec, "dtype": written["dtype"]}
            remarks.append((f"inputs.{name}.dtype", f"was not recorded; {written['dtype']}, the output's, is taken"))


def _add_axes(new: dict[str, Any], specs: Iterable[Any], remarks: list[Remark]) -> None:
    """Make var axes of the names in shapes that a dump does not list."""
    shapes = [spec.get("shape") for spec in specs if isinstance(spec, dict)]
    named = [axis for shape in shapes if isinstance(shape, list) for axis in shape if isinstance(axis, str)]
    axes = new.get("axes")
    missing = [
        axis for axis in dict.fromkeys(named) if isinstance(axes, dict) and axis not in axes and axis.isidentifier()
    ]
    if missing:
        new["axes"] = {**new["axes"], **{axis: {"type": "var"} for axis in missing}}
        remarks.append(("axes", f"{', '.join(missing)}: not listed; read as var, so workloads give the size"))


def _own_name(name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> str:
    if name not in inputs:
        return name
    candidates = (f"{name}_out{mark}" for mark in ("", *range(1, 1000)))
    return next(candidate for candidate in candidates if candidate not in inputs and candidate not in outputs)
