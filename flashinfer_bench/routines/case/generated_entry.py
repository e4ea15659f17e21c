"""A case in the trace-set format: a definition, a workload, one solution per backend, and the stored inputs.

A written case is complete: `flashinfer-bench run` can run a folder that `write_entry` has written.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from flashinfer_bench.data import Definition, Solution, Trace, Workload
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.jsonl import append_lines, write_whole
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.routines.case.extract_source import ENTRY, extract_source, top_level
from flashinfer_bench.routines.case.spec import TORCH, Case, Routine, Tensor

CALL: Final = "import flashinfer\nimport torch\n\n\ndef run({}):\n    {}{}\n"
ENTRY_FILE: Final = "main.py"
NAMESPACE: Final = uuid.UUID("6f1c2f6e-55a4-4f0e-9d9e-0c7a6d0f3b52")
"""Namespace of workload uuids. A uuid is the hash of the namespace and the definition's name."""
WHOLE_TENSOR: Final = 64
"""Largest number of integers in a tensor that is shown completely. Only the two ends of a larger tensor are shown."""
NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class GeneratedEntry:
    """A case in the trace-set format."""

    definition: Definition
    workload: Workload
    solutions: Mapping[str, Solution]
    """Backend → its solution."""
    blobs: Mapping[str, npt.NDArray[Any]]
    """Name of an input → its stored values."""


def generate_entry(routine: Routine, case: Case, backends: Iterable[str]) -> GeneratedEntry:
    """Return a case in the trace-set format, with a solution for each backend."""
    blobs = {name: tensor.value for name, tensor in case.inputs.items() if isinstance(tensor.value, np.ndarray)}
    fields = {
        "op_type": case.op_type,
        "axes": {axis: {"type": "const", "value": size} for axis, size in case.axes.items()},
        "inputs": {name: _spec(tensor) for name, tensor in case.inputs.items()},
        "outputs": {name: _spec(tensor) for name, tensor in case.outputs.items()},
        "reference": extract_source(f"{routine.family}_torch", case.reference, case.constants, case.inputs)[0],
        "tags": [f"routine:{routine.name}"],
    }
    values = {name: tensor.value for name, tensor in case.inputs.items()}
    values |= {name: sha256(value.tobytes()).hexdigest() for name, value in blobs.items()}
    # The name has a digest of the whole case.
    label = NOT_PLAIN.sub("_", case.label).strip("_")
    name = f"{routine.name}_{label}_{digest_of({**fields, 'values': values})[:8]}"
    definition = Definition.model_validate({"name": name, **fields})
    identity = str(uuid.uuid5(NAMESPACE, name))
    path = str(layout.blob_path(Path(), op_type=case.op_type, definition=name, uuid=identity))
    inputs: dict[str, Any] = {name: {"type": "random"} for name in case.inputs}
    inputs |= {name: {"type": "scalar", "value": value} for name, value in values.items() if value is not None}
    inputs |= {name: {"type": "safetensors", "path": path, "tensor_key": name} for name in blobs}
    workload = Workload.model_validate({"uuid": identity, "axes": {}, "inputs": inputs, "cost": asdict(case.cost)})
    solutions = {backend: _solution(routine, case, definition, backend) for backend in backends}
    return GeneratedEntry(definition, workload, solutions, blobs)


def write_entry(root: Path, entry: GeneratedEntry) -> None:
    """Write a case into the folder of a trace set. The folder's traces, and the workloads and solutions of other cases,
    stay.

    Raises:
        DataSetError: the folder cannot be written.
    """
    definition, workload = entry.definition, entry.workload
    names = {"op_type": definition.op_type, "definition": definition.name}
    files: dict[Path, str | bytes] = {layout.definition_path(root, **names): definition.to_json(indent=2) + "\n"}
    for one in entry.solutions.values():
        path = layout.solution_path(root, author=one.author, solution=one.name, **names)
        files[path] = one.to_json(indent=2) + "\n"
    if entry.blobs:
        content = save({name: np.asarray(value, order="C") for name, value in entry.blobs.items()})
        files[layout.blob_path(root, uuid=workload.uuid, **names)] = content
    workloads = layout.workloads_path(root, **names)
    try:
        for path, text in files.items():
            write_whole(path, text, root=root)
        if not workloads.exists() or workload.uuid not in workloads.read_text(encoding="utf-8", errors="replace"):
            line = Trace(definition=definition.name, workload=workload).to_json()
            append_lines(workloads, [line], root=root)
    except (OSError, Fault) as error:
        raise DataSetError(f"{root}: the trace set cannot be written: {error}") from error


def _spec(tensor: Tensor) -> dict[str, Any]:
    return {"shape": None if tensor.shape is None else tensor.shape.split(), "dtype": tensor.dtype}


def _solution(routine: Routine, case: Case, definition: Definition, backend: str) -> Solution:
    is_torch, is_dps, text, mark = backend == TORCH, False, definition.reference, ""
    if not is_torch:
        if call := case.call if isinstance(case.call, str) else case.call[backend]:
            is_dps = not case.outputs.keys().isdisjoint(re.findall(r"\w+", call))
            taken = [*case.inputs, *(case.outputs if is_dps else ())]
            text = CALL.format(", ".join(taken), "" if is_dps else "return ", call)
        else:
            file, own = f"{routine.family}_flashinfer", f"{case.reference}_{backend.replace('-', '_')}"
            function = own if own in top_level(file) else case.reference
            text, is_dps = extract_source(
                file, function, {**case.constants, "BACKEND": backend}, case.inputs, case.outputs
            )
        # Flags such as --autotune change the source of a library backend, so the source is part of the name.
        mark = f"_{sha256(text.encode()).hexdigest()[:8]}"
    return Solution.model_validate(
        {
            "name": f"{definition.name}__{backend.replace('-', '_')}{mark}",
            "definition": definition.name,
            "author": "torch" if is_torch else "flashinfer",
            "description": f"backend {backend} of routine {routine.name}",
            "sources": [{"path": ENTRY_FILE, "content": text}],
            "spec": {
                "language": "python",
                "target_hardware": ["cpu", "cuda"] if is_torch else ["cuda"],
                "entry_point": f"{ENTRY_FILE}::{ENTRY}",
                "dependencies": [] if is_torch else ["flashinfer-python"],
                "destination_passing_style": is_dps,
            },
        }
    )


def describe_case(case: Case, reference: str) -> list[str]:
    """Return lines about each input and each number in the reference, in the format of FlashInfer's documents."""
    numbers: dict[str, Any] = {name: np.asarray(item, np.int32) for name, item in case.shown.items()}
    lines = [f"{name}.flatten() = {render_integers(item)}" for name, item in numbers.items()]
    for name, tensor in case.inputs.items():
        value: Any = tensor.value
        if tensor.shape is None:
            lines.append(f"{name} = {json.dumps(value)}")
            continue
        prefix = "torch." if DTYPES[tensor.dtype].storage == tensor.dtype else ""
        lines += [f"{name}.shape = torch.Size({tensor.sizes(case.axes)})", f"{name}.dtype = {prefix}{tensor.dtype}"]
        if value is not None and value.dtype.kind == "i":
            lines.append(f"{name}.flatten() = {render_integers(value)}")
        elif value is not None and value.size == 1:
            lines.append(f"{name} = {value.reshape(-1)[0]}")
    for name, value in case.constants.items():
        if type(value) in (int, float) and f"\n{name} = " in f"\n{reference}":
            lines.append(
                f"{name.lower().removeprefix('sm_')} = {value}"
            )  # attention's SM_SCALE is `scale` in these documents
    return lines


def render_integers(values: npt.NDArray[Any]) -> str:
    """Return integers in the form that torch prints. Only the two ends of more than 64 integers are shown."""
    text = np.array2string(values.reshape(-1), separator=", ", prefix="tensor(", threshold=WHOLE_TENSOR)
    return f"tensor({text}, dtype=torch.{values.dtype})"
