"""Lines of workloads and traces files in other dialects. Takes one as parsed JSON, and returns it in today's form.
Forms, and what they become:

    early 2025   environment: `device` for `hardware`; evaluation: `log_file`
    bare         a workloads line that is a workload without the trace around it; no uuid; `solution` ""
    defaults     inputs without their type, which other engines leave out: `{}` is random, `{"value": 3}` a scalar
    null         an input that is null: left out
    costs        a workload's `cost` that is none of ours: left out, since nothing but the roofline wants it
    loose        blob paths relative to the folder of the file
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.store.variants.beside import Remark, Spot
from flashinfer_bench.data.store.variants.definitions import without_null
from flashinfer_bench.data.workload import WorkloadCost

_WORKLOAD_NAMESPACE: Final = uuid.UUID("6f1a3f0e-52a5-5b0e-9a55-3a7c1f0a9d11")
"""The namespace of uuids for workloads that have none. Equal workloads get equal uuids."""


def upgrade_trace(raw: dict[str, Any], spot: Spot) -> tuple[dict[str, Any], list[Remark]]:
    """Bring a line of a workloads or traces file into today's form."""
    new = dict(raw)
    remarks: list[Remark] = []
    if "workload" not in new and "axes" in new:
        new = {"workload": new}
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
    return new, remarks


def _upgrade_workload(
    workload: dict[str, Any], definition: object, spot: Spot, remarks: list[Remark]
) -> dict[str, Any]:
    new = dict(workload)
    if not new.get("uuid"):
        new["uuid"] = str(uuid.uuid5(_WORKLOAD_NAMESPACE, digest_of([definition, workload])))
        remarks.append(("workload.uuid", "not given; one made from the workload's content is taken"))
    if reason := _why_no_cost(new.get("cost")):
        del new["cost"]
        remarks.append(("workload.cost", f"left out, so that the cost is guessed from the definition: {reason}"))
    if isinstance(inputs := new.get("inputs"), dict):
        new["inputs"] = {name: _upgrade_input(source, spot) for name, source in inputs.items() if source is not None}
        null = "null is read as left out: random, or None where it is optional"
        remarks += [(f"workload.inputs.{name}", null) for name, source in inputs.items() if source is None]
    return new


def _upgrade_input(source: Any, spot: Spot) -> Any:
    if not isinstance(source, dict):
        return source
    new = source
    if source.get("type") is None:
        kind = "scalar" if "value" in source else "safetensors" if "path" in source else "random"
        new = {**{key: source[key] for key in source if key != "type"}, "type": kind}
    path = new.get("path")
    path = path.replace("\\", "/") if isinstance(path, str) else path
    if spot.root is not None and isinstance(path, str) and not _is_file(spot.root, path):
        folder = spot.file.parent
        if _is_file(folder, path):
            new = {**new, "path": str(folder.relative_to(spot.root) / path)}
    return new


def _is_file(folder: Path, path: str) -> bool:
    try:
        return (folder / path).is_file()
    except (OSError, ValueError):
        return False


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


def _upgrade_evaluation(raw: Mapping[str, Any]) -> dict[str, Any]:
    new = dict(raw)
    if isinstance(status := new.get("status"), str):
        new["status"] = status.upper()
    if new.get("log") is None:
        new["log"] = f"(the log was kept in {new['log_file']})" if new.get("log_file") else ""
    if isinstance(environment := new.get("environment"), dict):
        environment = without_null(environment, "libs")
        if "hardware" not in environment and "device" in environment:
            environment["hardware"] = str(environment["device"])
        new["environment"] = environment
    return new
