"""The smallest workload that a data set has for a definition, and one that is made up where it has none."""

from __future__ import annotations

import math
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput, Workload
from flashinfer_bench.errors import WorkloadFault
from tests.kit.make import make_workload

SIZES: Final = {
    "M": 2,
    "batch_size": 2,
    "num_seqs": 2,
    "len_indptr": 3,
    "len_cu_seqlens": 3,
    "seq_len": 2,
    "num_tokens": 3,
    "total_q": 5,
    "total_seq_len": 5,
    "total_kv": 9,
    "num_kv_indices": 6,
    "num_pages": 64,
    "max_num_pages": 32,
    "pool_size": 4,
    "state_cache_size": 4,
    "max_seq_len": 32,
    "num_qo_heads": 4,
    "num_kv_heads": 2,
}
"""Var axis to a small size. Two sequences: five queries, nine keys, or six pages of keys where these are paged."""


def smallest_workload(trace_set: TraceSet, definition: Definition) -> Workload | None:
    """Return the workload with the fewest bytes of inputs among those whose blobs are there; None where none is."""
    traces = trace_set.workloads.get(definition.name, [])
    whole = [trace.workload for trace in traces if not missing_blobs(trace_set, definition, trace.workload)]
    return min(whole, key=lambda workload: input_bytes(definition, workload), default=None)


def missing_blobs(trace_set: TraceSet, definition: Definition, workload: Workload) -> list[str]:
    """Return the blob paths of a workload that cannot be opened, as the workload gives them."""
    blobs = BlobStore(trace_set.blob_root(definition.name, workload.uuid))
    return [path for path in _blob_paths(workload) if not _is_there(blobs, path)]


def make_up_workload(definition: Definition) -> Workload:
    """Make a small workload of random inputs.

    Raises:
        KeyError: a var axis is not in `SIZES`.
    """
    axes = {axis: SIZES[axis] for axis in definition.var_axes}
    return make_workload("made-up", axes=axes, inputs={})


def input_bytes(definition: Definition, workload: Workload) -> int:
    """Return how many bytes the inputs of a workload take."""
    shapes = definition.get_input_shapes(workload.axes)
    specs = definition.inputs.values()
    return sum(math.prod(shape or ()) * DTYPES[spec.dtype].bits // 8 for shape, spec in zip(shapes, specs, strict=True))


def _blob_paths(workload: Workload) -> list[str]:
    return list(
        dict.fromkeys(source.path for source in workload.inputs.values() if isinstance(source, SafetensorsInput))
    )


def _is_there(blobs: BlobStore, path: str) -> bool:
    try:
        blobs.locate(path)
    except WorkloadFault:
        return False
    return True
