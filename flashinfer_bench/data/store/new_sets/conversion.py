"""Writes a set in our layout and in today's form, whatever layout and dialect it was read from, and says what is lost.

A file is lost where it could not be read (the set's issues say why), where it is no part of a set, or where a blob is
not there. Keys that have no effect here are written again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Final

from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.loose import DEFINITION_FILE, WORKLOAD_FILES
from flashinfer_bench.data.store.new_sets.set_writer import SetWriter, WrittenSet, find_blob, writing_to
from flashinfer_bench.data.store.variants.definitions import REFERENCE_FILE
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import DataSetError

MOST_LOST: Final = 10_000
"""Files that are looked at for the list of those that are no part of a set."""


@dataclass(frozen=True)
class Conversion:
    """What became of a set and of the folder that it was read from."""

    written: WrittenSet
    passed_over: list[Path]
    """Files of the folder that are no part of a set."""


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
    with writing_to(output):
        return _Converter(trace_set, root, output).convert()


class _Converter:
    def __init__(self, trace_set: TraceSet, root: Path, output: Path) -> None:
        self._set = trace_set
        self._root = root
        self._done = WrittenSet(output)
        self._writer = SetWriter(trace_set, output, self._done)
        self._moved: dict[str, str | None] = {}
        """Blob path of the source → the one of the output; None where it is lost."""

    def convert(self) -> Conversion:
        """Write all parts."""
        self._writer.write_models()
        for name, lines in self._set.workloads.items():
            self._writer.write_workloads(name, map(self._with_own_blobs, lines))
        for name, traces in self._set.traces.items():
            own = map(self._with_own_blobs, traces)
            self._writer.write_traces(name, ((trace.solution or "", trace.to_json().encode()) for trace in own))
        if (self._root / layout.TOLERANCES_FILE).is_file():
            shutil.copyfile(self._root / layout.TOLERANCES_FILE, self._done.output / layout.TOLERANCES_FILE)
        self._done.lost += [str(issue) for issue in self._set.issues if issue.severity == "error"]
        return Conversion(self._done, list(islice(self._find_others(), MOST_LOST)))

    def _with_own_blobs(self, line: Trace) -> Trace:
        """Copy the blobs of a line, and name those that have another place by now."""
        moved = {}
        for name, source in line.workload.stored_inputs.items():
            path = self._copy_blob(source.path, line)
            if path not in (None, source.path):
                moved[name] = source.model_copy(update={"path": path})
        if not moved:
            return line
        inputs = {**line.workload.inputs, **moved}
        return line.model_copy(update={"workload": line.workload.model_copy(update={"inputs": inputs})})

    def _copy_blob(self, path: str, line: Trace) -> str | None:
        """Copy a blob, once, and return its path in the output; None where it cannot be copied."""
        if path not in self._moved:
            file = find_blob(self._root, path, line.workload.uuid, self._done.lost)
            if file is None:
                self._moved[path] = None
                return None
            target = self._choose_place(path, line.definition)
            self._writer.copy_blob(file, target)
            self._moved[path] = path if str(PurePosixPath(path)) == target else target
        return self._moved[path]

    def _choose_place(self, path: str, definition: str) -> str:
        """Return where a blob lies in the output: where it lay, or, where that was no blob folder, in ours."""
        plain = PurePosixPath(path)
        if plain.parts[0] == layout.BLOB:
            return str(plain)
        names_above = (self._writer.op_type_of(definition), definition)
        folder = PurePosixPath(layout.BLOB, layout.WORKLOADS, *map(layout.path_part, names_above))
        names = (f"{plain.stem}{mark}{plain.suffix}" for mark in ("", *(f"_{number}" for number in range(2, 1 << 20))))
        return next(str(folder / name) for name in names if not (self._done.output / folder / name).exists())

    def _find_others(self) -> Iterator[Path]:
        """Yield the files of the source that are no part of a set."""
        known = {file.resolve() for file in self._set.definition_files.values()}
        for solution in (item for group in self._set.solutions.values() for item in group):
            file = self._set.solution_files[solution.name]
            known |= {file.resolve(), *((file.parent / source.path).resolve() for source in solution.sources)}
        known |= {(self._root / path).resolve() for path in self._moved}
        known |= {issue.file.resolve() for issue in self._set.issues}
        usual = {DEFINITION_FILE, REFERENCE_FILE, layout.TOLERANCES_FILE, *WORKLOAD_FILES}
        for file in walk_files(self._root, lambda *_: None, passes_over=lambda name: name.startswith(".")):
            is_outside = file.relative_to(self._root).parts[0] not in layout.FOLDERS
            if is_outside and file.name not in usual and file.resolve() not in known:
                yield file
