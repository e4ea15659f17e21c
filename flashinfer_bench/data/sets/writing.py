"""What a script adds to a set on disk: traces, workloads and stored tensors, checked before the first is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.checks import check_workload
from flashinfer_bench.data.store.jsonl import append_lines, write_whole_bytes
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data.trace_set import TraceSet


def check_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Raise where a trace has no evaluation (DataSetError), or is of an unknown definition or solution (ValueError)."""
    for trace in traces:
        if trace.solution is None:
            raise DataSetError(f"workload {trace.workload.uuid} of {trace.definition} has no evaluation to add")
        _check_definition(trace_set, trace.definition)
        names = [item.name for item in trace_set.solutions.get(trace.definition, [])]
        if trace.solution not in names:
            hint = did_you_mean(trace.solution, names)
            raise ValueError(f"definition {trace.definition} has no solution {trace.solution!r}{hint}")


def write_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Append traces to the set that each solution came from; those of a set in memory stay there."""
    for trace in traces:
        root = trace_set.solution_roots.get(str(trace.solution), trace_set.root)
        group = trace_set.solutions.get(trace.definition, [])
        author = next((item.author for item in group if item.name == trace.solution), "")
        if root is not None:
            op_type = trace_set.definitions[trace.definition].op_type
            TraceWriter(root).append(trace, author=author, op_type=op_type)


def check_workloads(trace_set: TraceSet, traces: Sequence[Trace]) -> None:
    """Raise ValueError where a workload cannot be added: no workload, or not one of its definition, or known."""
    uuids = {(name, trace.workload.uuid) for name, group in trace_set.workloads.items() for trace in group}
    for trace in traces:
        owner = f"workload {trace.workload.uuid} of {trace.definition}"
        if not trace.is_workload_trace():
            raise ValueError(f"{owner} has a solution; add_traces takes it")
        _check_definition(trace_set, trace.definition)
        if (trace.definition, trace.workload.uuid) in uuids:
            raise ValueError(f"{owner}: the set has a workload with this uuid")
        uuids.add((trace.definition, trace.workload.uuid))
        faults = check_workload(trace_set.definitions[trace.definition], trace.workload)
        reasons = [f"{'.'.join(place)}: {reason}" for place, reason in faults]
        if reasons:
            raise ValueError(f"{owner}: {'; '.join(reasons)}")


def write_workloads(trace_set: TraceSet, traces: Sequence[Trace]) -> None:
    """Append workloads to the files of their definitions."""
    if trace_set.root is None:
        return
    for name in dict.fromkeys(trace.definition for trace in traces):
        file = layout.workloads_path(trace_set.root, op_type=trace_set.definitions[name].op_type, definition=name)
        lines = [trace.to_json() for trace in traces if trace.definition == name]
        append_lines(file, lines, root=trace_set.root)


def write_tensors(trace_set: TraceSet, definition: str, uuid: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write the stored tensors of a workload into a new file, and return the path as a workload gives it."""
    from safetensors.torch import save  # needs torch, which a set does not

    _check_definition(trace_set, definition)
    op_type = trace_set.definitions[definition].op_type
    path = layout.blob_path(Path(), op_type=op_type, definition=definition, uuid=uuid)
    if (trace_set.folder / path).exists():
        raise ValueError(f"{trace_set.folder / path} is there already; recorded verdicts stand on it")
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_whole_bytes(trace_set.folder / path, content, root=trace_set.folder)
    return str(path)


def read_tensors(trace_set: TraceSet, path: str | Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a file that a workload names."""
    from safetensors.torch import load_file  # needs torch, which a set does not

    given = Path(path)
    inside = given.relative_to(trace_set.folder) if given.is_absolute() else given
    fd = open_to_read(BlobStore(trace_set.folder).locate(str(inside)))
    try:  # the file that was looked at is read, whatever has its name by now
        return dict(load_file(f"/dev/fd/{fd}"))
    finally:
        os.close(fd)


def _check_definition(trace_set: TraceSet, name: str) -> None:
    if name not in trace_set.definitions:
        raise ValueError(f"the set has no definition {name!r}{did_you_mean(name, trace_set.definitions)}")
