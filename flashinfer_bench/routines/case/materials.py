"""A case in the trace-set format: a definition, a workload, one solution per backend, and the stored inputs.

They hold everything that a run needs. So `write_material` makes a folder that `flashinfer-bench run` can run again.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
from flashinfer_bench.data.store.jsonl import append_line, read_lines, write_whole
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.routines.case.lift import ENTRY, lift
from flashinfer_bench.routines.case.spec import TORCH, Case, Code, Routine, Tensor

CALL: Final = "import flashinfer\n\n\ndef run({}):\n    return {}\n"
ENTRY_FILE: Final = "main.py"
NAMESPACE: Final = uuid.UUID("6f1c2f6e-55a4-4f0e-9d9e-0c7a6d0f3b52")
"""Namespace of the workloads' uuids: a uuid is made of it and of the definition's name."""
WHOLE_TENSOR: Final = 64
"""A tensor of up to this many whole numbers is shown whole; of a larger one only both ends."""
NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9]+")


@dataclass(frozen=True)
class Material:
    """A case in the trace-set format."""

    definition: Definition
    workload: Workload
    solutions: Mapping[str, Solution]
    """Backend → its solution."""
    blobs: Mapping[str, npt.NDArray[Any]]
    """Name of an input → its stored values."""


def make_material(routine: Routine, case: Case, backends: Iterable[str]) -> Material:
    """Return what the engine needs to run a case with these backends."""
    blobs = {name: tensor.value for name, tensor in case.inputs.items() if isinstance(tensor.value, np.ndarray)}
    fields = {
        "op_type": case.op_type,
        "axes": {axis: {"type": "const", "value": size} for axis, size in case.axes.items()},
        "inputs": {name: _spec(tensor) for name, tensor in case.inputs.items()},
        "outputs": {name: _spec(tensor) for name, tensor in case.outputs.items()},
        "reference": lift(f"{routine.family}_torch", case.reference, case.constants, case.inputs)[0],
        "tags": [f"routine:{routine.name}"],
    }
    values: dict[str, Any] = {name: tensor.value for name, tensor in case.inputs.items()}
    values |= {name: [list(value.shape), sha256(value.tobytes()).hexdigest()] for name, value in blobs.items()}
    # Equal names mean equal cases.
    label = NOT_PLAIN.sub("_", case.label).strip("_")
    name = f"{routine.name}_{label}_{digest_of({**fields, 'values': values})[:8]}"
    definition = Definition.model_validate({"name": name, **fields})
    identity = str(uuid.uuid5(NAMESPACE, name))
    path = str(layout.blob_path(Path(), op_type=case.op_type, definition=name, uuid=identity))
    inputs = {key: _source(key, tensor, path) for key, tensor in case.inputs.items()}
    cost = {"flops": case.cost.flops, "bytes": case.cost.bytes, "unit": case.cost.unit}
    workload = Workload.model_validate({"uuid": identity, "axes": {}, "inputs": inputs, "cost": cost})
    solutions = {backend: _solution(routine, case, definition, backend) for backend in backends}
    return Material(definition, workload, solutions, blobs)


def write_material(root: Path, material: Material) -> None:
    """Write a case into the folder of a trace set. Traces, and workloads and solutions of other cases, stay.

    Raises:
        DataSetError: the folder cannot be written.
    """
    definition, workload = material.definition, material.workload
    names = {"op_type": definition.op_type, "definition": definition.name}
    try:
        write_whole(layout.definition_path(root, **names), definition.to_json(indent=2) + "\n", root=root)
        line = Trace(definition=definition.name, workload=workload)
        _put_workload(layout.workloads_path(root, **names), line, root)
        for solution in material.solutions.values():
            place = layout.solution_path(root, author=solution.author, solution=solution.name, **names)
            write_whole(place, solution.to_json(indent=2) + "\n", root=root)
        if material.blobs:
            content = save({name: np.asarray(value, order="C") for name, value in material.blobs.items()})
            write_whole(layout.blob_path(root, uuid=workload.uuid, **names), content, root=root)
    except (OSError, Fault) as error:
        raise DataSetError(f"{root}: the trace set cannot be written: {error}") from error


def _put_workload(path: Path, line: Trace, root: Path) -> None:
    """Append a workload, in place of a line that has its uuid. Other lines stay as they are."""
    text = line.to_json()
    lines = [data.decode(errors="replace") for _, data, _ in read_lines(path)] if path.exists() else []
    kept = [one for one in lines if line.workload.uuid not in one]
    if text in lines:
        return
    if len(kept) == len(lines):
        append_line(path, text, root=root)
    else:
        write_whole(path, "".join(f"{one}\n" for one in (*kept, text)), root=root)


def _spec(tensor: Tensor) -> dict[str, Any]:
    shape = None if tensor.shape is None else tensor.shape.split()
    return {"shape": shape, "dtype": tensor.dtype}


def _source(name: str, tensor: Tensor, path: str) -> dict[str, Any]:
    if tensor.value is None:
        return {"type": "random"}
    if isinstance(tensor.value, np.ndarray):
        return {"type": "safetensors", "path": path, "tensor_key": name}
    return {"type": "scalar", "value": tensor.value}


def _solution(routine: Routine, case: Case, definition: Definition, backend: str) -> Solution:
    is_torch, is_dps, code = backend == TORCH, False, case.calls.get(backend) or Code(case.reference)
    if is_torch:
        text = definition.reference
    elif code.expression:
        text = CALL.format(", ".join(case.inputs), code.expression)
    else:
        constants = {**case.constants, "BACKEND": backend, **code.constants}
        text, is_dps = lift(f"{routine.family}_flashinfer", code.function, constants, case.inputs, case.outputs)
    # Flags such as --autotune change the source of a library's backend, so the solution gets another name.
    mark = "" if is_torch else f"_{sha256(text.encode()).hexdigest()[:8]}"
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
    """Return lines for each input and each number of the reference, in the forms of FlashInfer's documents."""
    lines = [f"{name}.flatten() = {render_integers(np.asarray(item, np.int32))}" for name, item in case.shown.items()]
    lines += [line for name, tensor in case.inputs.items() for line in _describe_input(name, tensor, case.axes)]
    for name, value in case.constants.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and f"\n{name} = " in reference:
            lines.append(f"{name.lower().removeprefix('sm_')} = {value}")  # attention's SM_SCALE is `scale` there
    return lines


def _describe_input(name: str, tensor: Tensor, axes: Mapping[str, int]) -> list[str]:
    """Return lines of shape, dtype, and of what is stored the whole numbers, or the one number that it is."""
    value = tensor.value
    if tensor.shape is None:
        return [f"{name} = {json.dumps(value)}"]
    sizes = [axes[axis] if axis in axes else int(axis) for axis in tensor.shape.split()]
    is_torchs = DTYPES[tensor.dtype].storage == tensor.dtype
    lines = [f"{name}.shape = torch.Size({sizes})", f"{name}.dtype = {'torch.' if is_torchs else ''}{tensor.dtype}"]
    if isinstance(value, np.ndarray) and value.dtype.kind == "i":
        lines.append(f"{name}.flatten() = {render_integers(value)}")
    elif isinstance(value, np.ndarray) and value.size == 1:
        lines.append(f"{name} = {value.reshape(-1)[0]!s}")
    return lines


def render_integers(values: npt.NDArray[Any]) -> str:
    """Return whole numbers as torch prints a tensor of one dimension; more than 64 are abbreviated to both ends."""
    layout: dict[str, Any] = {"separator": ", ", "prefix": "tensor(", "threshold": WHOLE_TENSOR, "max_line_width": 80}
    text = f"tensor({np.array2string(values.reshape(-1), **layout)},"
    end = f"dtype=torch.{values.dtype})"
    is_full = len(text.rpartition("\n")[2]) + len(end) >= layout["max_line_width"]
    return f"{text}\n       {end}" if is_full else f"{text} {end}"
