"""What a script adds to a set on disk: traces, workloads and stored tensors, checked before the first is written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.jsonl import append_lines, write_whole
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data.trace_set import TraceSet


def add_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Add traces, and append them to the files of the set where it has a folder.

    Raises:
        ValueError: one is of an unknown definition or solution; none was added.
        DataSetError: one has no evaluation; none was added.
        Fault: a file cannot be written.
    """
    checked = []
    for trace in traces:
        if trace.solution is None:
            raise DataSetError(f"workload {trace.workload.uuid} of {trace.definition} has no evaluation to add")
        definition = _find(trace_set, trace.definition)
        solutions = {item.name: item for item in trace_set.solutions.get(trace.definition, [])}
        if trace.solution not in solutions:
            hint = did_you_mean(trace.solution, solutions)
            raise ValueError(f"definition {trace.definition} has no solution {trace.solution!r}{hint}")
        checked.append((trace, definition, solutions[trace.solution]))
    for trace, definition, solution in checked:
        if (root := trace_set.solution_root(solution.name)) is not None:
            TraceWriter(root).append(trace, author=solution.author, op_type=definition.op_type)
        trace_set.keep_traces([trace])


def add_workload_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Add workloads (traces without a solution), and append them to the files of the set where it has a folder.

    Raises:
        ValueError: one is of an unknown definition, does not fit it, has a known uuid, or is no workload; none was
            added.
        Fault: a file cannot be written.
    """
    uuids = {(name, trace.workload.uuid) for name, group in trace_set.workloads.items() for trace in group}
    added: dict[str, list[Trace]] = {}
    for trace in traces:
        name, uuid = trace.definition, trace.workload.uuid
        owner = f"workload {uuid} of {name}"
        if not trace.is_workload_trace():
            raise ValueError(f"{owner} has a solution; add_traces takes it")
        findings = check_workload(_find(trace_set, name), trace.workload)
        if (name, uuid) in uuids:
            raise ValueError(f"{owner}: the set has a workload with this uuid")
        if findings:
            raise ValueError("; ".join(f"{owner}: {'.'.join(place)}: {reason}" for place, reason in findings))
        uuids.add((name, uuid))
        added.setdefault(name, []).append(trace)
    for name, lines in added.items():
        if trace_set.root is not None:
            op_type = trace_set.definitions[name].op_type
            file = layout.workloads_path(trace_set.root, op_type=op_type, definition=name)
            append_lines(file, [trace.to_json() for trace in lines], root=trace_set.root)
        trace_set.workloads.setdefault(name, []).extend(lines)


def add_tensors(trace_set: TraceSet, def_name: str, workload_uuid: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Store the tensors of a workload in its file; return the path for `SafetensorsInput`.

    Raises:
        ValueError: there is no such definition, or the file is there already.
        DataSetError: the set has no folder.
    """
    from safetensors.torch import save  # needs torch, which a set does not

    op_type = _find(trace_set, def_name).op_type
    path = layout.blob_path(Path(), op_type=op_type, definition=def_name, uuid=workload_uuid)
    if (trace_set.folder / path).exists():
        raise ValueError(f"{trace_set.folder / path} is there already; recorded verdicts stand on it")
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_whole(trace_set.folder / path, content, root=trace_set.folder)
    return str(path)


def read_tensors(trace_set: TraceSet, path: str | Path) -> dict[str, torch.Tensor]:
    """Read the tensors of a file that a workload names, by their keys.

    Raises:
        WorkloadFault: the file is not there, or not in the set.
        DataSetError: the set has no folder.
    """
    from safetensors.torch import load_file  # needs torch, which a set does not

    given = Path(path)
    inside = given.relative_to(trace_set.folder) if given.is_absolute() else given
    fd = open_to_read(BlobStore(trace_set.folder).locate(str(inside)))
    try:  # the file that was checked is read, whatever has its name by now
        return dict(load_file(f"/dev/fd/{fd}"))
    finally:
        os.close(fd)


def _find(trace_set: TraceSet, name: str) -> Definition:
    if name not in trace_set.definitions:
        raise ValueError(f"the set has no definition {name!r}{did_you_mean(name, trace_set.definitions)}")
    return trace_set.definitions[name]
