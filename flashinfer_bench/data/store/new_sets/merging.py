"""Writes several sets as one, into a folder that is new: all of it or nothing.

What is the same in two sets is written once: definitions, solutions, workloads, blobs, and traces that agree to the
byte. What contradicts is refused before anything is written.
"""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from flashinfer_bench.data.store.new_sets.set_writer import SetWriter, WrittenSet, find_blob, writing_to
from flashinfer_bench.data.store.trace_lines import AnyTrace, TraceLine
from flashinfer_bench.data.store.trace_list import kept_of
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError


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
    _refuse_clashes(parts, merged)
    blobs = _find_blobs(parts, done.lost)
    staging = output.absolute().with_name(f".{output.absolute().name}.{os.getpid()}.merging")
    try:
        with writing_to(output):
            staging.mkdir(parents=True)
            writer = SetWriter(merged, staging, done)
            writer.write_models()
            for name, lines in merged.workloads.items():
                writer.write_workloads(name, lines)
            for name, traces in merged.traces.items():
                writer.write_traces(name, _each_once(kept_of(traces)))
            for path, file in blobs.items():
                writer.copy_blob(file, path)
            for name, text in further.items():
                (staging / name).write_text(text, encoding="utf-8")
            staging.rename(output)  # of what came there meanwhile, only an empty folder gives way
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return done


def _refuse_clashes(parts: Sequence[TraceSet], merged: TraceSet) -> None:
    """Refuse workloads that contradict each other: the merge leaves one of them out, with an issue of its own."""
    known = [issue for part in parts for issue in part.issues]
    left_out = [str(issue) for issue in merged.issues if issue not in known]
    if left_out:
        raise DataSetError("the trace sets contradict each other:\n  " + "\n  ".join(left_out))


def _find_blobs(parts: Sequence[TraceSet], lost: list[str]) -> dict[str, Path]:
    """Return the file of each blob path; what cannot be copied is noted."""
    found: dict[str, Path] = {}
    clashes = []
    for part in parts:
        for path, uuid in _blob_paths(part).items():
            file = find_blob(part.root or Path(), path, uuid, lost)
            if file is None:
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
    for workload in (line.workload for lines in part.workloads.values() for line in lines):
        for source in workload.stored_inputs.values():
            paths.setdefault(source.path, workload.uuid)
    return paths


def _each_once(traces: Iterable[AnyTrace]) -> Iterator[tuple[str, bytes]]:
    """Yield the solution and the line of each trace, and none that came before."""
    known: set[bytes] = set()
    for trace in traces:
        line = trace.text if isinstance(trace, TraceLine) else trace.to_json().encode()
        if line not in known:
            known.add(line)
            yield trace.solution or "", line
