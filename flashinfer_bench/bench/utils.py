"""The inputs of a workload in this process, for debugging: NOTHING IS ISOLATED, and nothing is secret.

A run makes inputs in the same way, but in a process that no solution shares, and from a secret seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker, bind_axes, read_stored
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.store.blobs import locate_blob

SEEDS = 2**62


def gen_inputs(
    definition: Definition,
    workload: Workload,
    device: torch.device | str,
    safe_tensors: Mapping[str, torch.Tensor] | None = None,
) -> list[Any]:
    """Make the inputs of a workload, in the order of the definition. `torch.manual_seed` decides random values.

    Args:
        definition: names the inputs.
        workload: has the sizes and sources of the inputs.
        device: the device of the tensors.
        safe_tensors: input name → its stored tensor, from `load_safetensors`.

    Raises:
        ValueError: a stored input is not among `safe_tensors`.
        WorkloadFault: the workload cannot be used.
    """
    given, where = safe_tensors or {}, torch.device(device)
    wanted = list(workload.stored_inputs)
    missing = [name for name in wanted if name not in given]
    if missing:
        raise ValueError(f"no stored tensor for {', '.join(missing)}: pass what load_safetensors returns")
    stored = {
        name: given[name].item() if definition.inputs[name].shape is None else given[name].to(where, copy=True)
        for name in wanted
    }
    seed = int(torch.randint(SEEDS, ()))
    return InputMaker(definition, workload, where, Path(), _stored=stored).make(seed)


def load_safetensors(definition: Definition, workload: Workload, root: Path | str) -> dict[str, torch.Tensor]:
    """Read the stored inputs of a workload onto the CPU, by the input's name.

    Raises:
        WorkloadFault: a file, a key, a shape or a dtype is invalid.
    """
    _, shapes = bind_axes(definition, workload)
    result = {}
    for name, source in workload.stored_inputs.items():
        file = locate_blob(Path(root), source.path, workload=workload.uuid)
        where = f"input {name!r} of workload {workload.uuid} ({file}, key {source.tensor_key!r})"
        result[name] = read_stored(file, source.tensor_key, definition.inputs[name], shapes[name], where=where)
    return result
