"""Additions to sets: other sets, traces that other processes recorded, and objects from scripts.

Equal objects of two sets count once. Contradictory objects are refused or skipped. All additions of a script are
checked before any addition is written. `merge_sets` and `convert_set` write a whole set into a new folder, in the
current layout and format. A failure leaves no partial folder. `lost` lists unreadable files and missing blobs, which
cannot be copied.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.data.check import check_workload
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.issue import USUAL_OP_TYPE, LoadIssue
from flashinfer_bench.data.names import did_you_mean
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import locate_blob
from flashinfer_bench.data.store.dialects import UNKNOWN_AUTHOR
from flashinfer_bench.data.store.jsonl import append_lines, new_folder, write_whole
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceLine, TraceList, kept_of
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.errors import DataSetError, Fault, WorkloadFault

if TYPE_CHECKING:
    import torch

    from flashinfer_bench.data.trace_set import TraceSet


def merge_into(merged: TraceSet, parts: Sequence[TraceSet]) -> None:
    """Merge sets into an empty set.

    Raises:
        DataSetError: two sets have different definitions, or different solutions, with the same name.
    """
    clashes = list[str]()
    known: dict[tuple[str, str], tuple[Any, Path | None]] = {}
    for part in parts:
        named: list[tuple[str, Any, Mapping[str, Path]]] = [
            *(("definition", one, part.definition_files) for one in part.definitions.values()),
            *(("solution", one, part.solution_files) for one in part.all_solutions()),
        ]
        for what, item, files in named:
            name, file = item.name, files.get(item.name)
            first, before = known.setdefault((what, name), (item, file))
            if first.digest() != item.digest():
                clashes.append(f"{what} {name!r} differs between {_shown(before)} and {_shown(file)}")
            elif first is item and isinstance(item, Definition):
                merged.definitions[name] = item
            elif first is item:
                merged.solutions.setdefault(item.definition, []).append(item)
                if (root := part.solution_root(name)) not in (None, merged.root):
                    merged.solution_roots[name] = root
        merged.definition_files = {**part.definition_files, **merged.definition_files}
        merged.solution_files = {**part.solution_files, **merged.solution_files}
    _refuse_clashes(clashes)
    for part in parts:
        fresh = [issue for issue in part.issues if issue not in merged.issues]
        merged.issues += [issue for issue in fresh if not _is_settled(issue, merged)]
        for name, workloads in part.workloads.items():
            _merge_workloads(merged, part, name, workloads)
        for name, traces in part.traces.items():
            merged.traces.setdefault(name, TraceList()).extend(TraceList(kept_of(traces)))


def _shown(file: Path | None) -> str:
    return str(file or "a set in memory")


def _refuse_clashes(clashes: Sequence[str]) -> None:
    if clashes:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))


def _merge_workloads(merged: TraceSet, part: TraceSet, name: str, workloads: Iterable[Trace]) -> None:
    """Add the workloads of a definition to the merged set. A workload that does not fit becomes an issue."""
    known = {trace.workload.uuid: trace.workload for trace in merged.workloads.get(name, [])}
    newly_found = merged.definitions.get(name) if name not in part.definitions else None
    for trace in workloads:
        workload, root = trace.workload, part.blob_root(name, trace.workload.uuid)
        same, reasons = known.get(workload.uuid), list[str]()
        if same is not None and same.digest() != workload.digest():
            reasons = ["its uuid belongs to another workload in another set; this workload is skipped"]
        elif same is None and newly_found is not None:
            reasons = [f"{'.'.join(steps)}: {reason}" for steps, reason in check_workload(newly_found, workload)]
        file, owner = (root or Path()) / layout.WORKLOADS, f"workload {workload.uuid} of {name}"
        merged.issues += [LoadIssue("error", file, None, None, f"{owner}: {reason}") for reason in reasons]
        if same is None and not reasons:
            merged.workloads.setdefault(name, []).append(trace)
            if root is not None and root != merged.root:
                merged.blob_roots[name, workload.uuid] = root


def _is_settled(issue: LoadIssue, merged: TraceSet) -> bool:
    """Return whether an issue is about a missing definition that the merged set has."""
    if issue.missing_definition == "":
        return bool(merged.definitions)
    return issue.missing_definition in merged.definitions


def reread_traces(trace_set: TraceSet) -> None:
    """Replace the traces in memory by the traces on disk. Traces that exist only in memory stay."""
    fresh: dict[str, list[AnyTrace]] = {}
    for root in filter(Path.is_dir, trace_set.roots):  # the traces of a deleted root stay in memory
        for name, traces in type(trace_set).from_path(root).traces.items():
            fresh.setdefault(name, []).extend(kept_of(traces))
    for name, known in trace_set.traces.items():
        there = set(map(_text_of, fresh.get(name, ())))
        fresh.setdefault(name, []).extend(trace for trace in kept_of(known) if _text_of(trace) not in there)
    trace_set.traces = {name: TraceList(traces) for name, traces in fresh.items()}


def _text_of(trace: AnyTrace) -> bytes:
    return trace.text if isinstance(trace, TraceLine) else trace.to_json().encode()


@dataclass
class WrittenSet:
    """The content of the written set."""

    output: Path
    definitions: int = 0
    solutions: int = 0
    workloads: int = 0
    traces: int = 0
    blobs: int = 0
    lost: list[str] = field(default_factory=list)
    """A line for each file or blob that was not copied."""


def convert_set(trace_set: TraceSet, root: Path, output: Path) -> WrittenSet:
    """Read a set from a folder and write it into another folder, which is new or empty.

    Raises:
        DataSetError: the output is not empty, or is inside the root.
        Fault: a file cannot be written.
    """
    if output.resolve().is_relative_to(root.resolve()):
        raise DataSetError(f"{output} is inside {root}, which is read; write to another folder")
    tolerances = root / layout.TOLERANCES_FILE
    done = merge_sets([trace_set], output, {tolerances.name: tolerances.read_text()} if tolerances.is_file() else {})
    done.lost += [str(issue) for issue in trace_set.issues if issue.severity == "error"]
    return done


def merge_sets(parts: Sequence[TraceSet], output: Path, further: Mapping[str, str]) -> WrittenSet:
    """Write sets as one set. Byte-identical traces are written once.

    Args:
        parts: sets that were read from folders.
        output: a folder that is new or empty.
        further: file name → text, for additional files in the root.

    Raises:
        DataSetError: the sets contradict each other, or the output exists and is not empty.
        Fault: a file cannot be written.
    """
    merged, done, blobs = type(parts[0]).merge(parts), WrittenSet(output), dict[str, Path]()
    known = [issue for part in parts for issue in part.issues]
    clashes = [str(issue) for issue in merged.issues if issue not in known]  # each issue of the merge skips a workload
    for part in parts:
        for path, file in _find_blobs(part, done.lost).items():
            if not filecmp.cmp(blobs.setdefault(path, file), file, shallow=False):
                clashes.append(f"blob {path} differs between {blobs[path]} and {file}")
    _refuse_clashes(clashes)
    authors = {item.name: item.author for item in merged.all_solutions()}
    files = {Path(name): text.encode() for name, text in further.items()}
    for name in dict.fromkeys([*merged.definitions, *merged.solutions, *merged.workloads, *merged.traces]):
        definition = merged.definitions.get(name)
        at = {"op_type": definition.op_type if definition is not None else USUAL_OP_TYPE, "definition": name}
        if definition is not None:
            files[layout.definition_path(Path(), **at)] = f"{definition.to_json(indent=2)}\n".encode()
        for item in merged.solutions.get(name, ()):
            file = layout.solution_path(Path(), author=item.author, solution=item.name, **at)
            files[file] = f"{item.to_json(indent=2)}\n".encode()
        if name in merged.traces:
            merged.traces[name] = TraceList({_text_of(one): one for one in merged.all_traces(name)}.values())
        lines: dict[Path, list[bytes]] = {}
        for trace in (*merged.workloads.get(name, ()), *merged.all_traces(name)):
            file = layout.workloads_path(Path(), **at)
            if trace.solution is not None:
                file = layout.traces_path(Path(), author=authors.get(trace.solution, UNKNOWN_AUTHOR), **at)
            lines.setdefault(file, []).append(_text_of(trace) + b"\n")
        files |= {file: b"".join(found) for file, found in lines.items()}
    vars(done).update(merged.counts, blobs=len(blobs))
    try:
        with new_folder(output) as folder:
            for path in (*map(str, files), *blobs):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                (folder / file).write_bytes(content)
            for path, source in blobs.items():
                shutil.copyfile(source, folder / path)
    except OSError as error:
        raise Fault(f"{output} cannot be written: {error.strerror or error}") from error
    return done


def _find_blobs(part: TraceSet, lost: list[str]) -> dict[str, Path]:
    """Return blob path → file of a set. Add a line to `lost` for each blob that cannot be copied."""
    found = dict[str, Path | None]()
    for workload in (line.workload for line in chain(*part.workloads.values(), part.all_traces())):
        for source in workload.stored_inputs.values():
            path = str(PurePosixPath(source.path))
            if path not in found:
                found[path] = None
                try:
                    found[path] = locate_blob(part.root or Path(), source.path, workload=workload.uuid)
                except WorkloadFault as fault:
                    lost.append(str(fault))
    return {path: file for path, file in found.items() if file is not None}


def add_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Add traces, and append them to the files of the set if it has a folder.

    Raises:
        ValueError: the definition or the solution of a trace is unknown; no trace was added.
        DataSetError: a trace has no evaluation; no trace was added.
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
        checked.append((trace, definition.op_type, solutions[trace.solution]))
    for trace, op_type, solution in checked:
        if (root := trace_set.solution_root(solution.name)) is not None:
            file = layout.traces_path(root, author=solution.author, op_type=op_type, definition=trace.definition)
            append_lines(file, [trace.to_json()], root=root)
        trace_set.keep_traces([trace])


def add_workload_traces(trace_set: TraceSet, traces: Iterable[Trace]) -> None:
    """Add workloads (traces without a solution), and append them to the files of the set if it has a folder.

    Raises:
        ValueError: a workload has an unknown definition, does not fit it, has a known uuid, or has a solution; no
            workload was added.
        Fault: a file cannot be written.
    """
    uuids = {(name, trace.workload.uuid) for name, items in trace_set.workloads.items() for trace in items}
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
            raise ValueError("; ".join(f"{owner}: {'.'.join(steps)}: {reason}" for steps, reason in findings))
        uuids.add((name, uuid))
        added.setdefault(name, []).append(trace)
    for name, lines in added.items():
        if (root := trace_set.root) is not None:
            file = layout.workloads_path(root, op_type=trace_set.definitions[name].op_type, definition=name)
            append_lines(file, [trace.to_json() for trace in lines], root=root)
        trace_set.workloads.setdefault(name, []).extend(lines)


def add_tensors(trace_set: TraceSet, def_name: str, workload_uuid: str, tensors: Mapping[str, torch.Tensor]) -> str:
    """Store the tensors of a workload in its file; return the path for `SafetensorsInput`.

    Raises:
        ValueError: the definition is unknown, or the file exists.
        DataSetError: the set has no folder.
    """
    from safetensors.torch import save  # needs torch, which a set does not need

    op_type = _find(trace_set, def_name).op_type
    path = layout.blob_path(Path(), op_type=op_type, definition=def_name, uuid=workload_uuid)
    file = trace_set.folder / path
    if file.exists():
        raise ValueError(f"{file} exists; recorded verdicts depend on it")
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    write_whole(file, content, root=trace_set.folder)
    return str(path)


def read_tensors(trace_set: TraceSet, path: str | Path) -> dict[str, torch.Tensor]:
    """Return key → tensor from a workload's file.

    Raises:
        WorkloadFault: the file does not exist, or is outside the set.
        DataSetError: the set has no folder.
    """
    from safetensors.torch import load_file  # needs torch, which a set does not need

    inside = Path(path).relative_to(trace_set.folder) if Path(path).is_absolute() else path
    fd = open_to_read(locate_blob(trace_set.folder, str(inside)))
    try:  # reads the checked file, since the path may lead to another file by now
        return dict(load_file(f"/dev/fd/{fd}"))
    finally:
        os.close(fd)


def _find(trace_set: TraceSet, name: str) -> Definition:
    if name not in trace_set.definitions:
        raise ValueError(f"the set has no definition {name!r}{did_you_mean(name, trace_set.definitions)}")
    return trace_set.definitions[name]
