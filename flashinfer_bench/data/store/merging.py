"""Writes several sets as one, into a folder that is new: all of it or nothing.

What is the same in two sets is written once: definitions, solutions, workloads, blobs, and traces that agree to the
byte. What contradicts is refused before anything is written.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from flashinfer_bench.data.model import DataModel
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceLine
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.data.store.variants.beside import USUAL_OP_TYPE
from flashinfer_bench.data.store.variants.solutions import UNKNOWN_AUTHOR
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import DataSetError, Fault, WorkloadFault


@dataclass
class MergedSet:
    """What was written."""

    output: Path
    definitions: int
    solutions: int
    workloads: int
    traces: int = 0
    blobs: int = 0
    lost: list[str] = field(default_factory=list)
    """A line for each blob that could not be copied."""


def merge_sets(parts: Sequence[TraceSet], output: Path, further: Mapping[str, str]) -> MergedSet:
    """Write sets as one.

    Args:
        parts: read from folders.
        output: the folder; it may be there if it is empty.
        further: file name → text of what else belongs into the root.

    Raises:
        DataSetError: the sets contradict each other, or the output is there already.
        Fault: the disk refuses.
    """
    merged = TraceSet.merge(parts)
    _refuse_clashes(parts, merged)
    done = MergedSet(
        output,
        definitions=len(merged.definitions),
        solutions=sum(map(len, merged.solutions.values())),
        workloads=sum(map(len, merged.workloads.values())),
    )
    blobs = _find_blobs(parts, done)
    staging = output.absolute().with_name(f".{output.absolute().name}.{os.getpid()}.merging")
    try:
        layout.refuse_used(output)
        staging.mkdir(parents=True)
        _write_models(merged, staging)
        done.traces = _write_traces(merged, staging)
        for path, file in blobs.items():
            (staging / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, staging / path)
        for name, text in further.items():
            (staging / name).write_text(text, encoding="utf-8")
        staging.rename(output)  # of what came there meanwhile, only an empty folder gives way
    except OSError as error:
        raise Fault(f"{output} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    done.blobs = len(blobs)
    return done


def _refuse_clashes(parts: Sequence[TraceSet], merged: TraceSet) -> None:
    """Refuse workloads that contradict each other: the merge leaves one of them out, with an issue of its own."""
    known = [issue for part in parts for issue in part.issues]
    left_out = [str(issue) for issue in merged.issues if issue not in known]
    if left_out:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(left_out))


def _find_blobs(parts: Sequence[TraceSet], done: MergedSet) -> dict[str, Path]:
    """Return the file of each blob path; what cannot be copied is noted."""
    found: dict[str, Path] = {}
    clashes = []
    for part in parts:
        store = BlobStore(part.root or Path(), fetch=lambda _, path: f"fetch it: git lfs pull --include {path!r}")
        for path, uuid in _blob_paths(part).items():
            try:
                file = store.locate(path, workload=uuid)
            except WorkloadFault as fault:
                done.lost.append(str(fault))
                continue
            plain = str(PurePosixPath(path))
            if not filecmp.cmp(found.setdefault(plain, file), file, shallow=False):
                clashes.append(f"blob {plain} differs between {found[plain]} and {file}")
    if clashes:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(clashes))
    return found


def _blob_paths(part: TraceSet) -> dict[str, str]:
    """Return the blob paths of a set's workloads, each with the uuid of the first that names it."""
    paths: dict[str, str] = {}
    for lines in part.workloads.values():
        for line in lines:
            for source in line.workload.inputs.values():
                if isinstance(source, SafetensorsInput):
                    paths.setdefault(source.path, line.workload.uuid)
    return paths


def _write_models(merged: TraceSet, root: Path) -> None:
    for name, definition in merged.definitions.items():
        _write(layout.definition_path(root, op_type=definition.op_type, definition=name), [definition], indent=2)
    for name, solutions in merged.solutions.items():
        for solution in solutions:
            names = {"author": solution.author, "definition": name, "solution": solution.name}
            _write(layout.solution_path(root, op_type=op_type_of(merged, name), **names), [solution], indent=2)
    for name, lines in merged.workloads.items():
        _write(layout.workloads_path(root, op_type=op_type_of(merged, name), definition=name), lines)


def _write(file: Path, models: Sequence[DataModel], indent: int | None = None) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{model.to_json(indent=indent)}\n" for model in models), encoding="utf-8")


def _write_traces(merged: TraceSet, root: Path) -> int:
    """Write each trace once, in the order of the sets, and return how many there are."""
    authors = {item.name: item.author for group in merged.solutions.values() for item in group}
    count = 0
    for name, traces in merged.traces.items():
        op_type = op_type_of(merged, name)
        texts: dict[Path, dict[bytes, None]] = {}
        for trace, text in _texts_of(kept_of(traces)):
            author = authors.get(trace.solution or "", UNKNOWN_AUTHOR)
            file = layout.traces_path(root, author=author, op_type=op_type, definition=name)
            texts.setdefault(file, {})[text] = None
        for file, lines in texts.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"".join(line + b"\n" for line in lines))
            count += len(lines)
    return count


def _texts_of(traces: Iterable[AnyTrace]) -> Iterator[tuple[AnyTrace, bytes]]:
    for trace in traces:
        yield trace, trace.text if isinstance(trace, TraceLine) else trace.to_json().encode()


def op_type_of(trace_set: TraceSet, definition: str) -> str:
    """Return the op type of a definition; the usual one where the set does not have it."""
    known = trace_set.definitions.get(definition)
    return known.op_type if known is not None else USUAL_OP_TYPE
