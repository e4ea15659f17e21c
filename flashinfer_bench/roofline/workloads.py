"""The cost of a stored workload.

A cost that a workload states is trusted, because a counted cost would rely on lengths that the workload states, too.
Index inputs are read once for each file. If they are drawn from a seed, the lengths are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Final

from safetensors import SafetensorError, safe_open

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.data.workload import SafetensorsInput, Workload
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.roofline.definitions import find_cost

MOST_NUMBERS: Final = 1 << 22
"""An index input with more numbers is not read, and its workload has no known cost."""
INTEGERS: Final = ("I64", "I32", "I16", "I8")
"""Integer types of safetensors."""


def cost_of_workload(definition: Definition, workload: Workload, blob_root: Path) -> Cost | None:
    """Return the cost of one call: the cost that the workload states, else the counted cost of its definition, else
    None."""
    if workload.cost is not None:
        return Cost(workload.cost.flops, workload.cost.bytes, workload.cost.unit)
    try:
        axes = definition.bind_axes(workload.axes)
    except ValueError:
        return None
    return find_cost(definition, axes, _read_values(definition, workload, blob_root))


def _read_values(definition: Definition, workload: Workload, blob_root: Path) -> dict[str, Sequence[int]]:
    values: dict[str, Sequence[int]] = {}
    for name, source in workload.inputs.items():
        spec = definition.inputs.get(name)
        if spec is None or DTYPES[spec.dtype].kind != "int" or not isinstance(source, SafetensorsInput):
            continue
        with suppress(WorkloadFault):
            result = read_integers(locate_blob(blob_root, source.path, workload=workload.uuid), source.tensor_key)
            if result is not None:
                values[name] = result
    return values


@lru_cache(maxsize=256)
def read_integers(file: Path, key: str) -> tuple[int, ...] | None:
    """Read an integer tensor of a safetensors file as flat numbers; None if the tensor has another type or is too
    large."""
    try:
        if not file.is_file():  # opening a pipe would block
            return None
        with safe_open(file, "numpy") as tensors:
            part = tensors.get_slice(key)
            if part.get_dtype() not in INTEGERS or prod(part.get_shape()) > MOST_NUMBERS:
                return None
            return tuple(tensors.get_tensor(key).ravel().tolist())
    except (OSError, ValueError, SafetensorError):
        return None  # the judge reads the file as well, and reports its error
