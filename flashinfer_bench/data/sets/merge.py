"""Adds to sets: whole sets to each other, traces that other processes have recorded, and what scripts add.

What is the same in two sets counts once, what contradicts is refused or left out. What a script adds is checked before
the first of it is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import LoadIssue
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.jsonl import append_lines, write_whole
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceList, kept_of
from flashinfer_bench.data.store.trace_writer import TraceWriter
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.errors import DataSetError

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data.trace_set import TraceSet

IN_MEMORY = "a set in memory"


def merge_into(merged: TraceSet, parts: Sequence[TraceSet]) -> None:
    """Put sets into an empty set.

    Raises:
        DataSetError: two sets have different definitions or different solutions of one name.
    """
    solutions: dict[str, Solution] = {}
    clashes = []
    for part in parts:
        for name, definition in part.definitions.items():
            if merged.definitions.setdefault(name, definition).digest() != definition.digest():
                clashes.append(_clash("definition", name, merged.definition_files, part.definition_files))
        for solution in (item for group in part.solutions.values() for item in group):
            name, root = solution.name, part.solution_root(solution.name)
            if name not in solutions:
                merged.solutions.setdefault(solution.definition, []).append(solution)
                if root is not None and root != merged.root:
                    merged.solution_roots[name] = root
            if solutions.setdefault(name, solution).digest() != solution.digest():
                clashes.append(_clash("solution", name, merged.solution_files, part.solution_files))
        merged.definition_files = {**part.definition_files, **merged.definition_files}
        merged.solution_files = {**part.solution_files, **merged.solution_files}
    if clashes:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))
    for part in parts:
        fresh = [issue for issue in part.issues if issue not in merged.issues]
        merged.issues += [issue for issue in fresh if not _is_settled(issue, merged)]
        _merge_workloads(merged, part)
        for name, traces in part.traces.items():
            merged.traces.setdefault(name, TraceList()).extend(TraceList(kept_of(traces)))


def _clash(what: str, name: str, *files: Mapping[str, Path]) -> str:
    return f"{what} {name!r} differs between {' and '.join(str(one.get(name, IN_MEMORY)) for one in files)}"


def _merge_workloads(merged: TraceSet, part: TraceSet) -> None:
    """Put the workloads of a part into the merged set; what does not fit becomes an issue."""
    for name, workloads in part.workloads.items():
        known = {trace.workload.uuid: trace.workload for trace in merged.workloads.get(name, [])}
        newly_found = merged.definitions[name] if name not in part.definitions and name in merged.definitions else None
        for trace in workloads:
            workload, root = trace.workload, part.blob_root(name, trace.workload.uuid)
            same, reasons = known.get(workload.uuid), list[str]()
            if same is not None and same.digest() != workload.digest():
                reasons = ["its uuid belongs to another workload in another set; this one is left out"]
            elif same is None and newly_found is not None:
                reasons = [f"{'.'.join(steps)}: {reason}" for steps, reason in check_workload(newly_found, workload)]
            file = (root or Path()) / layout.WORKLOADS
            owner = f"workload {workload.uuid} of {name}"
            merged.issues += [LoadIssue("error", file, None, None, f"{owner}: {reason}") for reason in reasons]
            if same is None and not reasons:
                merged.workloads.setdefault(name, []).append(trace)
                if root is not None and root != merged.root:
                    merged.blob_roots[name, workload.uuid] = root


def _is_settled(issue: LoadIssue, merged: TraceSet) -> bool:
    """Tell whether an issue was that a definition is missing which the merged set has."""
    if issue.missing_definition == "":
        return bool(merged.definitions)
    return issue.missing_definition in merged.definitions


def reread_traces(trace_set: TraceSet) -> None:
    """Put the traces on disk in the place of those in memory; traces that are in memory alone stay."""
    fresh: dict[str, list[AnyTrace]] = {}
    for root in trace_set.roots:
        try:
            found = type(trace_set).from_path(root)
        except DataSetError:
            continue  # it is gone: what is in memory stays
        for name, traces in found.traces.items():
            fresh.setdefault(name, []).extend(kept_of(traces))
    for name, known in trace_set.traces.items():
        there = {_key(trace) for trace in fresh.get(name, ())}
        fresh.setdefault(name, []).extend(trace for trace in kept_of(known) if _key(trace) not in there)
    trace_set.traces = {name: TraceList(traces) for name, traces in fresh.items()}


def _key(trace: AnyTrace) -> tuple[object, ...]:
    """Tell traces apart: by their times, too, since a job that is judged twice in a second has two traces of it."""
    found = trace.evaluation
    if found is None:
        return trace.solution, trace.workload.uuid
    times = found.performance
    latency = (times.latency_ms, times.reference_latency_ms) if times is not None else ()
    return trace.solution, trace.workload.uuid, found.timestamp, found.status, found.log, *latency


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
