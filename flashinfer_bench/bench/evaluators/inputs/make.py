"""The inputs of a workload: numbers and blobs as given, all else drawn from a seed; an equal seed gives equal inputs.

Each input has a generator of its own, seeded by sha256 of the seed and its name, so that no input depends on another
having been drawn. What is drawn is in `input_rules`; offsets and lengths fit the axes and the inputs that are given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.constraints import check_constraints
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank
from flashinfer_bench.bench.evaluators.inputs.rules import draw_number, draw_tensor
from flashinfer_bench.bench.evaluators.inputs.stored import make_scalar, read_stored
from flashinfer_bench.data import AxisExpr, Definition, RandomInput, SafetensorsInput, ScalarInput, Workload
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.expression import evaluate_axis
from flashinfer_bench.errors import WorkloadFault


def make_inputs(
    definition: Definition,
    workload: Workload,
    *,
    seed: int,
    device: torch.device,
    blob_root: Path,
    notes: dict[str, Any] | None = None,
    stored: dict[str, Any] | None = None,
) -> list[Any]:
    """Make the inputs of a workload, in the order of the definition.

    Args:
        definition: what the inputs have to be.
        workload: the axes, and where each input comes from; an optional input that it does not name is None.
        seed: decides everything random.
        device: where tensors are put.
        blob_root: the root of the set that holds the workload.
        notes: takes "unchecked_constraints", where there are any.
        stored: takes what was read from files, and gives it where it has been read: given again for each trial of a
            workload, every blob is read once, and the trials share it.

    Raises:
        WorkloadFault: a blob, a number, an axis or a constraint is not as it should be.
    """
    axes, shapes = bind_axes(definition, workload)
    _check_size(definition, shapes, device)
    made: dict[str, Any] = {}
    stored = {} if stored is None else stored
    for name, spec in definition.inputs.items():
        source = workload.inputs.get(name)
        shape = shapes[name]
        match source:
            case ScalarInput(value=value):
                made[name] = make_scalar(name, spec, value, device=device)
            case SafetensorsInput():
                if name not in stored:
                    tensor = read_stored(name, spec, source, shape, blob_root=blob_root, workload=workload.uuid)
                    # A clone on the CPU as well: what is mapped belongs to the data set.
                    stored[name] = tensor.item() if shape is None else tensor.to(device, copy=True)
                made[name] = stored[name]
            case None if spec.optional:
                made[name] = None
            case None | RandomInput():
                pass
            case _:
                what = f"input {name!r} of workload {workload.uuid} is of type {source.type!r}"
                raise WorkloadFault(f"{what}, which cannot be made here; store it in a safetensors file")
    for name, shape in shapes.items():
        if name not in made:
            blank = Blank(name, definition, shape or (), axes, made, seed, device)
            made[name] = draw_number(blank) if shape is None else draw_tensor(blank)
    unchecked = check_constraints(definition.constraints, {**axes, **made})
    if unchecked and notes is not None:
        notes["unchecked_constraints"] = unchecked
    return [made[name] for name in definition.inputs]


def _check_size(definition: Definition, shapes: Mapping[str, tuple[int, ...] | None], device: torch.device) -> None:
    needed = sum(
        math.prod(shape or ()) * DTYPES[definition.inputs[name].dtype].bits // 8 for name, shape in shapes.items()
    )
    if needed > total_bytes(device):
        has = f"{device.type} has {total_bytes(device) / 1e9:.1f} GB"
        raise WorkloadFault(f"the inputs take {needed / 1e9:.1f} GB, {has}; use a device with more memory")


def bind_axes(
    definition: Definition, workload: Workload
) -> tuple[dict[str, int], Mapping[str, tuple[int, ...] | None]]:
    """Give the size of every axis and the shape of every input.

    Raises:
        WorkloadFault: an axis has no size, or the workload gives a constant axis another one.
    """
    axes = {**workload.axes, **definition.const_axes}
    for name, size in definition.const_axes.items():
        if workload.axes.get(name, size) != size:
            raise WorkloadFault(
                f"workload {workload.uuid} has {name}={workload.axes[name]}; {definition.name} has {size}"
            )
    try:
        for name, axis in definition.axes.items():
            if isinstance(axis, AxisExpr):
                axes[name] = evaluate_axis(axis.expression, axes)
        shapes = definition.get_input_shapes(workload.axes)
    except ValueError as error:
        raise WorkloadFault(f"workload {workload.uuid}: {error}") from error
    return axes, dict(zip(definition.inputs, shapes, strict=True))
