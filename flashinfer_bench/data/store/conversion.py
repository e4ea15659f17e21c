"""Writes a set in our layout and in today's form, whatever layout and dialect it was read from, and says what is lost.

A file is lost where it could not be read (the set's issues say why), where it is no part of a set, or where a blob is
not there. Keys that have no effect here are written again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.json_utils import append_jsonl_file, save_json_file
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.loose import DEFINITION_FILE, WORKLOAD_FILES
from flashinfer_bench.data.store.merging import op_type_of
from flashinfer_bench.data.store.variants.definitions import REFERENCE_FILE
from flashinfer_bench.data.store.variants.solutions import UNKNOWN_AUTHOR
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import SafetensorsInput
from flashinfer_bench.errors import DataSetError, Fault, WorkloadFault

TOLERANCES_FILE: Final = "tolerances.yaml"
MOST_LINES: Final = 1000
"""Lines that are written at a time."""
MOST_LOST: Final = 10_000
"""Files that are looked at for the list of those that are no part of a set."""


@dataclass
class Conversion:
    """What was written, and what was not."""

    output: Path
    definitions: int = 0
    solutions: int = 0
    workloads: int = 0
    traces: int = 0
    blobs: int = 0
    lost: list[str] = field(default_factory=list)
    """A line for each thing that should be there and is not."""
    passed_over: list[Path] = field(default_factory=list)
    """Files that are no part of a set."""


def convert_set(trace_set: TraceSet, root: Path, output: Path) -> Conversion:
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
    try:
        layout.refuse_used(output)
        return _Writer(trace_set, root, output).write()
    except OSError as error:
        raise Fault(f"{output} cannot be written: {error.strerror}") from error


class _Writer:
    def __init__(self, trace_set: TraceSet, root: Path, output: Path) -> None:
        self._set = trace_set
        self._root = root
        self._done = Conversion(output)
        self._blobs = BlobStore(root, fetch=lambda _root, path: f"fetch it: git lfs pull --include {path!r}")
        self._moved: dict[str, str | None] = {}
        """Blob path of the source → the one of the output; None where it is lost."""
        self._authors = {item.name: item.author for item in self._solutions()}

    def write(self) -> Conversion:
        """Write all parts."""
        done, output = self._done, self._done.output
        for definition in self._set.definitions.values():
            save_json_file(
                definition,
                layout.definition_path(output, op_type=definition.op_type, definition=definition.name),
            )
            done.definitions += 1
        for solution in self._solutions():
            names = {"author": solution.author, "definition": solution.definition, "solution": solution.name}
            op_type = op_type_of(self._set, solution.definition)
            save_json_file(solution, layout.solution_path(output, op_type=op_type, **names))
            done.solutions += 1
        for name, lines in self._set.workloads.items():
            file = layout.workloads_path(output, op_type=op_type_of(self._set, name), definition=name)
            done.workloads += self._append(file, (self._with_own_blobs(line) for line in lines))
        for name, traces in self._set.traces.items():
            done.traces += self._write_traces(name, traces)
        if (self._root / TOLERANCES_FILE).is_file():
            shutil.copyfile(self._root / TOLERANCES_FILE, output / TOLERANCES_FILE)
        done.lost += [str(issue) for issue in self._set.issues if issue.severity == "error"]
        done.passed_over = list(islice(self._find_others(), MOST_LOST))
        return done

    def _solutions(self) -> Iterator[Solution]:
        return (solution for group in self._set.solutions.values() for solution in group)

    @staticmethod
    def _append(file: Path, lines: Iterable[Trace]) -> int:
        written, rest = 0, iter(lines)
        while some := list(islice(rest, MOST_LINES)):
            append_jsonl_file(some, file)
            written += len(some)
        return written

    def _write_traces(self, definition: str, traces: Iterable[Trace]) -> int:
        """Write traces into a file for each author, in their order."""
        op_type, written = op_type_of(self._set, definition), 0
        waiting: dict[Path, list[Trace]] = {}
        for trace in traces:
            author = self._authors.get(trace.solution or "", UNKNOWN_AUTHOR)
            file = layout.traces_path(self._done.output, author=author, op_type=op_type, definition=definition)
            some = waiting.setdefault(file, [])
            some.append(self._with_own_blobs(trace))
            if len(some) == MOST_LINES:
                written += self._append(file, waiting.pop(file))
        return written + sum(self._append(file, some) for file, some in waiting.items())

    def _with_own_blobs(self, line: Trace) -> Trace:
        """Copy the blobs of a line, and name those that have another place by now."""
        inputs = dict(line.workload.inputs)
        for name, source in inputs.items():
            if isinstance(source, SafetensorsInput):
                path = self._copy_blob(source.path, line)
                inputs[name] = source if path in (None, source.path) else source.model_copy(update={"path": path})
        if inputs == line.workload.inputs:
            return line
        return line.model_copy(update={"workload": line.workload.model_copy(update={"inputs": inputs})})

    def _copy_blob(self, path: str, line: Trace) -> str | None:
        """Copy a blob, once, and return its path in the output; None where it cannot be copied."""
        if path not in self._moved:
            try:
                file = self._blobs.locate(path, workload=line.workload.uuid)
            except WorkloadFault as fault:
                self._moved[path] = None
                self._done.lost.append(str(fault))
                return None
            target = self._choose_place(path, line.definition)
            (self._done.output / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, self._done.output / target)
            self._moved[path] = path if str(PurePosixPath(path)) == target else target
            self._done.blobs += 1
        return self._moved[path]

    def _choose_place(self, path: str, definition: str) -> str:
        """Return where a blob lies in the output: where it lay, or, where that was no blob folder, in ours."""
        plain = PurePosixPath(path)
        if plain.parts[0] == layout.BLOB:
            return str(plain)
        parts = (layout.BLOB, layout.WORKLOADS, *map(layout.path_part, (op_type_of(self._set, definition), definition)))
        folder = PurePosixPath(*parts)
        names = (f"{plain.stem}{mark}{plain.suffix}" for mark in ("", *(f"_{number}" for number in range(2, 1 << 20))))
        return next(str(folder / name) for name in names if not (self._done.output / folder / name).exists())

    def _find_others(self) -> Iterator[Path]:
        """Yield the files of the source that are no part of a set."""
        known = {file.resolve() for file in self._set.definition_files.values()}
        for solution in self._solutions():
            file = self._set.solution_files[solution.name]
            known |= {file.resolve(), *((file.parent / source.path).resolve() for source in solution.sources)}
        known |= {(self._root / path).resolve() for path in self._moved}
        known |= {issue.file.resolve() for issue in self._set.issues}
        usual = {DEFINITION_FILE, REFERENCE_FILE, TOLERANCES_FILE, *WORKLOAD_FILES}
        for file in walk_files(self._root, lambda *_: None, passes_over=lambda name: name.startswith(".")):
            is_outside = file.relative_to(self._root).parts[0] not in layout.FOLDERS
            if is_outside and file.name not in usual and file.resolve() not in known:
                yield file
