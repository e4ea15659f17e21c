"""Writes the inputs of a call to files, as a run would make them, with the shapes of the outputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import WorkloadFault


def write_inputs(maker: InputMaker, seed: int, folder: Path) -> dict[str, Any]:
    """Make a set of inputs and write each tensor's bytes to a file; return what a call's order says of them.

    Raises:
        WorkloadFault: the inputs cannot be made, or the shapes of the outputs cannot be told.
    """
    folder.mkdir()
    folder.chmod(0o755)
    made = zip(maker.definition.inputs, maker.make(seed), strict=True)
    arguments = {name: describe_value(value, folder / f"{index}.bin") for index, (name, value) in enumerate(made)}
    return {"arguments": arguments, "outputs": describe_outputs(maker.definition, maker.workload)}


def describe_value(value: Any, file: Path) -> dict[str, Any]:
    """Write a tensor to a file and say what it is; a number stands for itself."""
    if not isinstance(value, torch.Tensor):
        return {"scalar": value}
    raw = value.detach().contiguous().reshape(-1).view(torch.uint8).cpu()
    raw.numpy().tofile(file)
    file.chmod(0o644)
    return {"file": str(file), "shape": list(value.shape), "dtype": _name(value.dtype)}


def describe_outputs(definition: Definition, workload: Workload) -> Sequence[dict[str, Any]]:
    """Return shape and dtype of every output, the axes bound by the workload."""
    try:
        shapes = definition.get_output_shapes(workload.axes)
    except (KeyError, ValueError) as error:
        raise WorkloadFault(f"the shapes of the outputs cannot be told: {error}") from None
    return [
        {"shape": list(storage_shape(tuple(shape or ()), spec.dtype)), "dtype": _name(torch_dtype(spec.dtype))}
        for spec, shape in zip(definition.outputs.values(), shapes, strict=True)
    ]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
