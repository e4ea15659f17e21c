"""The smallest workload that a data set has for a definition, and one that is made up where it has none."""

from __future__ import annotations

import math
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput, Workload
from flashinfer_bench.errors import WorkloadFault
from tests.kit.make import make_workload

SIZES: Final = {
    **dict.fromkeys(("M", "batch_size", "num_seqs", "seq_len", "num_kv_heads"), 2),
    **dict.fromkeys(("len_indptr", "len_cu_seqlens", "num_tokens"), 3),
    **dict.fromkeys(("pool_size", "state_cache_size", "num_qo_heads"), 4),
    **dict.fromkeys(("total_q", "total_seq_len"), 5),
    "num_kv_indices": 6,
    "total_kv": 9,
    "max_num_pages": 32,
    "max_seq_len": 32,
    "num_pages": 64,
}
"""Var axis to a small size. Two sequences: five queries, nine keys, or six pages of keys where these are paged."""


def smallest_workload(trace_set: TraceSet, definition: Definition) -> Workload | None:
    """Return the workload with the fewest bytes of inputs among those whose blobs are there; None where none is."""
    traces = trace_set.workloads.get(definition.name, [])
    whole = [trace.workload for trace in traces if not missing_blobs(trace_set, definition, trace.workload)]
    return min(whole, key=lambda workload: input_bytes(definition, workload), default=None)


def missing_blobs(trace_set: TraceSet, definition: Definition, workload: Workload) -> list[str]:
    """Return the blob paths of a workload that cannot be opened, as the workload gives them."""
    root, missing = trace_set.blob_root(definition.name, workload.uuid), []
    for source in workload.inputs.values():
        if isinstance(source, SafetensorsInput) and source.path not in missing:
            try:
                locate_blob(root, source.path)
            except WorkloadFault:
                missing.append(source.path)
    return missing


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
