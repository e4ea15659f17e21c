"""Sets that are written whole into a new folder, in our layout and the form of the format: all of a set or nothing.

`merge_sets` writes several sets as one. What is the same in two is written once, traces that agree to the byte too; a
contradiction is refused before anything is written. `convert_set` writes a set of another layout or dialect.

What should be there and is not is lost: a file that could not be read, or a blob that is not there.
"""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from flashinfer_bench.data.issue import USUAL_OP_TYPE
from flashinfer_bench.data.json_utils import save_json_file
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.dialects import UNKNOWN_AUTHOR
from flashinfer_bench.data.store.jsonl import new_folder
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceLine, TraceList, kept_of
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError, Fault, WorkloadFault


@dataclass
class WrittenSet:
    """What was written."""

    output: Path
    definitions: int = 0
    solutions: int = 0
    workloads: int = 0
    traces: int = 0
    blobs: int = 0
    lost: list[str] = field(default_factory=list)
    """A line for each thing that should be there and is not."""


def merge_sets(parts: Sequence[TraceSet], output: Path, further: Mapping[str, str]) -> WrittenSet:
    """Write sets as one.

    Args:
        parts: read from folders.
        output: the folder; it may be there if it is empty.
        further: file name → text of what else belongs into the root.

    Raises:
        DataSetError: the sets contradict each other, or the output is there already.
        Fault: the disk refuses.
    """
    merged, done = TraceSet.merge(parts), WrittenSet(output)
    known = [issue for part in parts for issue in part.issues]
    clashes = [str(issue) for issue in merged.issues if issue not in known]  # workloads that the merge leaves out
    blobs: dict[str, Path] = {}
    for part in parts:
        for path, file in _find_blobs(part, part.workloads.values(), done.lost).items():
            if not filecmp.cmp(blobs.setdefault(path, file), file, shallow=False):
                clashes.append(f"blob {path} differs between {blobs[path]} and {file}")
    if clashes:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))
    for name, traces in merged.traces.items():
        merged.traces[name] = TraceList({_text_of(trace): trace for trace in kept_of(traces)}.values())
    _write(merged, done, blobs, {name: text.encode() for name, text in further.items()})
    return done


def convert_set(trace_set: TraceSet, root: Path, output: Path) -> WrittenSet:
    """Write a set that was read from a folder into another one.

    Args:
        trace_set: read from `root`.
        root: the folder.
        output: new or empty.

    Raises:
        DataSetError: the output is not empty, or lies in the root.
        Fault: a file cannot be written.
    """
    if output.resolve().is_relative_to(root.resolve()):
        raise DataSetError(f"{output} lies in {root}, which is read; write to another folder")
    done = WrittenSet(output)
    lines = [kept_of(group) for group in (*trace_set.workloads.values(), *trace_set.traces.values())]
    blobs = _find_blobs(trace_set, lines, done.lost)
    done.lost += [str(issue) for issue in trace_set.issues if issue.severity == "error"]
    tolerances = root / layout.TOLERANCES_FILE
    further = {tolerances.name: tolerances.read_bytes()} if tolerances.is_file() else {}
    _write(trace_set, done, blobs, further)
    return done


def _write(
    trace_set: TraceSet,
    done: WrittenSet,
    blobs: Mapping[str, Path],
    further: Mapping[str, bytes],
) -> None:
    """Write a set beside its place, then move it there."""
    authors = {item.name: item.author for group in trace_set.solutions.values() for item in group}
    try:
        with new_folder(done.output) as folder:
            for name, definition in trace_set.definitions.items():
                save_json_file(definition, layout.definition_path(folder, op_type=definition.op_type, definition=name))
            for name, solutions in trace_set.solutions.items():
                at = {"op_type": _op_type_of(trace_set, name), "definition": name}
                for item in solutions:
                    save_json_file(item, layout.solution_path(folder, author=item.author, solution=item.name, **at))
            files: dict[Path, list[bytes]] = {}
            for name, traces in (*trace_set.workloads.items(), *trace_set.traces.items()):
                at = {"op_type": _op_type_of(trace_set, name), "definition": name}
                for trace in kept_of(traces):
                    file = layout.workloads_path(folder, **at)
                    if trace.solution is not None:
                        file = layout.traces_path(folder, author=authors.get(trace.solution, UNKNOWN_AUTHOR), **at)
                    files.setdefault(file, []).append(_text_of(trace) + b"\n")
            for file, lines in files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(b"".join(lines))
            for path, source in blobs.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, folder / path)
            for name, text in further.items():
                (folder / name).write_bytes(text)
    except OSError as error:
        raise Fault(f"{done.output} cannot be written: {error.strerror or error}") from error
    done.definitions, done.blobs = len(trace_set.definitions), len(blobs)
    for kind in ("solutions", "workloads", "traces"):
        setattr(done, kind, sum(map(len, getattr(trace_set, kind).values())))


def _op_type_of(trace_set: TraceSet, definition: str) -> str:
    known = trace_set.definitions.get(definition)
    return known.op_type if known is not None else USUAL_OP_TYPE


def _text_of(trace: AnyTrace) -> bytes:
    return trace.text if isinstance(trace, TraceLine) else trace.to_json().encode()


def _find_blobs(part: TraceSet, groups: Iterable[Iterable[AnyTrace]], lost: list[str]) -> dict[str, Path]:
    """Return the file of each blob path of some lines, with a line more in `lost` for each that cannot be copied."""
    found: dict[str, Path] = {}
    store, tried = BlobStore(part.root or Path()), set[str]()
    for workload in (line.workload for lines in groups for line in lines):
        for source in workload.stored_inputs.values():
            if source.path not in tried:
                tried.add(source.path)
                try:
                    found[str(PurePosixPath(source.path))] = store.locate(source.path, workload=workload.uuid)
                except WorkloadFault as fault:
                    lost.append(str(fault))
    return found
