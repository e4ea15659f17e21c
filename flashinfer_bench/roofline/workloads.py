"""The cost of a stored workload.

A cost that a workload states is believed, like the lengths from which it would be counted. Index inputs are read once
for each file. Where they are drawn from a seed, the lengths are not known.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.workload import SafetensorsInput, Workload
from flashinfer_bench.errors import WorkloadFault
from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.roofline.definitions import find_cost

MOST_NUMBERS: Final = 1 << 22
"""Numbers of an index input that are read at most. A workload with a larger one has no known cost."""
MOST_HEADER_BYTES: Final = 100_000_000
"""Largest header of a safetensors file, as its library has it."""
CODES: Final = {"I64": "q", "I32": "i", "I16": "h", "I8": "b"}
"""Integer type of safetensors → format character of struct."""


def cost_of_workload(definition: Definition, workload: Workload, blob_root: Path) -> Cost | None:
    """Return what one call costs: as the workload states it, else counted from its definition; None where unknown."""
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
            found = read_integers(BlobStore(blob_root).locate(source.path, workload=workload.uuid), source.tensor_key)
            if found is not None:
                values[name] = found
    return values


@lru_cache(maxsize=256)
def read_integers(file: Path, key: str) -> tuple[int, ...] | None:
    """Read an integer tensor of a safetensors file as flat numbers; None where it is no such tensor, or too large.

    The format: eight bytes of length, a JSON header with dtype, shape and data_offsets of each tensor, the data.
    """
    try:
        with os.fdopen(open_to_read(file), "rb") as handle:
            (length,) = struct.unpack("<Q", handle.read(8))
            if length > MOST_HEADER_BYTES:
                return None
            entry = json.loads(handle.read(length))[key]
            count = prod(map(int, entry["shape"]))
            if count > MOST_NUMBERS:
                return None
            numbers = struct.Struct(f"<{count}{CODES[entry['dtype']]}")
            handle.seek(8 + length + int(entry["data_offsets"][0]))
            return numbers.unpack(handle.read(numbers.size))
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, struct.error):
        return None  # the judge reads the file as well, and says what is wrong with it
