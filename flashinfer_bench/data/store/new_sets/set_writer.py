"""Writes the parts of a set into a new folder, each where our layout has it, and counts them.

Nobody else knows the folder yet: lines are appended without a lock. Who writes says what is left out, and why.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flashinfer_bench.data.json_utils import save_json_file
from flashinfer_bench.data.store import layout
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.data.store.variants.beside import USUAL_OP_TYPE
from flashinfer_bench.data.store.variants.solutions import UNKNOWN_AUTHOR
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.errors import Fault, WorkloadFault

MOST_LINES: Final = 1000
"""Lines of a file of traces that are written at a time."""


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


@contextmanager
def writing_to(output: Path) -> Iterator[None]:
    """Turn what the disk refuses meanwhile into a Fault.

    Raises:
        DataSetError: something is in the output already.
        Fault: a file cannot be read or written.
    """
    try:
        layout.refuse_used(output)
        yield
    except OSError as error:
        raise Fault(f"{output} cannot be written: {error.strerror or error}") from error


def find_blob(root: Path, path: str, uuid: str, lost: list[str]) -> Path | None:
    """Return the file of a blob, which is fetched from nowhere; where it is not there, None, and a line more in `lost`.

    Args:
        root: of the set that has the blob.
        path: as a workload gives it.
        uuid: the workload's.
        lost: gets the reason.
    """
    store = BlobStore(root, fetch=lambda _root, path: f"fetch it: git lfs pull --include {path!r}")
    try:
        return store.locate(path, workload=uuid)
    except WorkloadFault as fault:
        lost.append(str(fault))
        return None


class SetWriter:
    """Writes parts of a set.

    Args:
        trace_set: the set.
        root: the new folder; it may be there.
        done: counts what is written.
    """

    def __init__(self, trace_set: TraceSet, root: Path, done: WrittenSet) -> None:
        self._set = trace_set
        self._root = root
        self._done = done
        self._authors = {item.name: item.author for group in trace_set.solutions.values() for item in group}

    def op_type_of(self, definition: str) -> str:
        """Return the op type of a definition; the usual one where the set does not have it."""
        known = self._set.definitions.get(definition)
        return known.op_type if known is not None else USUAL_OP_TYPE

    def write_models(self) -> None:
        """Write all definitions and solutions."""
        for name, definition in self._set.definitions.items():
            file = layout.definition_path(self._root, op_type=definition.op_type, definition=name)
            save_json_file(definition, file)
            self._done.definitions += 1
        for name, solutions in self._set.solutions.items():
            for solution in solutions:
                names = {"author": solution.author, "definition": name, "solution": solution.name}
                save_json_file(solution, layout.solution_path(self._root, op_type=self.op_type_of(name), **names))
                self._done.solutions += 1

    def write_workloads(self, definition: str, lines: Iterable[Trace]) -> None:
        """Write all workloads of a definition."""
        file = layout.workloads_path(self._root, op_type=self.op_type_of(definition), definition=definition)
        self._done.workloads += _append(file, [line.to_json().encode() for line in lines])

    def write_traces(self, definition: str, lines: Iterable[tuple[str, bytes]]) -> None:
        """Write traces of a definition into a file for each author, in their order.

        Args:
            definition: its name.
            lines: the solution of each trace, and its line.
        """
        op_type = self.op_type_of(definition)
        waiting: dict[Path, list[bytes]] = {}
        for solution, line in lines:
            author = self._authors.get(solution, UNKNOWN_AUTHOR)
            file = layout.traces_path(self._root, author=author, op_type=op_type, definition=definition)
            some = waiting.setdefault(file, [])
            some.append(line)
            if len(some) == MOST_LINES:
                self._done.traces += _append(file, waiting.pop(file))
        for file, some in waiting.items():
            self._done.traces += _append(file, some)

    def copy_blob(self, file: Path, path: str) -> None:
        """Copy a file to a blob path of the new set."""
        (self._root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, self._root / path)
        self._done.blobs += 1


def _append(file: Path, lines: Sequence[bytes]) -> int:
    """Append lines, of which there may be none; return how many there are."""
    if lines:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab") as handle:
            handle.writelines(line + b"\n" for line in lines)
    return len(lines)
