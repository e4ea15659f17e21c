"""The disk's side of a server: accepted tasks and their verdicts in SQLite, and lines of the set.

A task is committed, and the disk has it (`synchronous=FULL`), before its client is told that it was accepted. A verdict
is a line of the set first, which names its task (`extra.run.task`), then a row here. A server that starts reads the
lines of open tasks: what happened between the two is neither lost nor written twice. A last line that was cut off
counts as not written, and stays as a line of its own. One process holds a store; a second one is refused. All calls
come from one thread.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections import deque
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import open_to_read
from flashinfer_bench.base.files.writing import WriteRefused, open_folder
from flashinfer_bench.bench.confirm import Confirm
from flashinfer_bench.data import Solution, Trace, TraceSet
from flashinfer_bench.data.store.jsonl import append_line, check_append, read_lines
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.errors import DataSetError, Fault

FILE: Final = "tasks.sqlite"
JOURNAL: Final = f"{FILE}-journal"
"""A journal of another mode than this store's. SQLite removes files that such a journal names, wherever they are."""
OPEN: Final = "open"
"""The state of a task in the store that is not over: it waits or runs, or the process ended before it did."""
VERSION: Final = 2
"""Of the format, as `PRAGMA user_version` has it."""
RECENT_LINES: Final = 256
"""Latest lines by which the trace of a second task with the same job is known."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS tasks (
    id TEXT PRIMARY KEY, submitter TEXT NOT NULL, key TEXT, request TEXT NOT NULL, definition TEXT NOT NULL,
    solution_name TEXT NOT NULL, solution TEXT NOT NULL, workloads TEXT NOT NULL, priority INTEGER NOT NULL,
    state TEXT NOT NULL, error TEXT, accepted_at REAL NOT NULL, ended_at REAL, confirm TEXT NOT NULL DEFAULT 'if_best',
    UNIQUE (submitter, key));
CREATE INDEX IF NOT EXISTS tasks_by_state ON tasks (state);
CREATE INDEX IF NOT EXISTS tasks_by_time ON tasks (accepted_at);
CREATE TABLE IF NOT EXISTS verdicts (
    task TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE, workload TEXT NOT NULL, trace TEXT NOT NULL,
    PRIMARY KEY (task, workload)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class TaskRow:
    """A task as it was accepted, and how it ended."""

    id: str
    submitter: str
    key: str | None
    """What its client called the submission; the same key again is the same task."""
    request: str
    """Digest of what was asked for."""
    definition: str
    solution_name: str
    solution: str
    """The solution as JSON; empty in lists."""
    workloads: tuple[str, ...]
    """Uuids, as they were when the task was accepted."""
    priority: int
    confirm: Confirm
    accepted_at: float
    """Seconds since 1970."""
    state: str = OPEN
    """OPEN, or how it ended."""
    error: str | None = None
    ended_at: float | None = None


NAMES: Final = [field.name for field in fields(TaskRow)]
COLUMNS: Final = ", ".join(NAMES)


class TaskStore:
    """The tasks of a set, and what is recorded of them.

    Args:
        folder: where the database lies; made if it is missing, for nobody but this user. It is no link.
        trace_set: what tasks are about.
        root: the root that traces are appended to.

    Raises:
        DataSetError: another server has it open, it is of another version, or links or files there are strange.
        Fault: the disk fails.
    """

    def __init__(self, folder: Path, trace_set: TraceSet, root: Path) -> None:
        self.path = folder / FILE
        self._trace_set = trace_set
        self._root = root
        self._written: deque[tuple[Trace, str]] = deque(maxlen=RECENT_LINES)
        """The latest traces with their lines."""
        try:
            _check_files(folder)
            self._database = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
            self._database.row_factory = sqlite3.Row
            self._prepare()
        except WriteRefused as error:
            raise DataSetError(f"{self.path} cannot be opened: {error.strerror}") from error
        except (sqlite3.DatabaseError, OSError) as error:
            if "locked" in str(error):
                reason = "another server has these tasks open; end it, or serve another set"
                raise DataSetError(f"{self.path}: {reason}") from error
            raise Fault(f"{self.path} cannot be opened: {error}") from error

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def accept(self, row: TaskRow) -> TaskRow:
        """Keep a task, on disk when this returns. If its submitter used its key before, return that task.

        Raises:
            DataSetError: traces could not be written: a link in the set stands in the way, or its folder cannot be.
        """
        check_append(self._file_of(row), self._root)
        values = {**asdict(row), "workloads": json.dumps(row.workloads)}
        marks = ", ".join(f":{name}" for name in NAMES)
        self._database.execute(f"INSERT OR IGNORE INTO tasks ({COLUMNS}) VALUES ({marks})", values)
        return self._find("id = :id OR (submitter = :submitter AND key = :key)", values)[0]

    def forget(self, task: str) -> None:
        """Remove a task that was not accepted after all."""
        self._database.execute("DELETE FROM tasks WHERE id = ?", (task,))

    def record(self, row: TaskRow, trace: Trace) -> None:
        """Append a trace to the set, then keep it with its task. A verdict of two tasks is one line."""
        line = next((line for known, line in self._written if known is trace), None)
        if line is None:
            line, path = _with_task(trace, row.id).to_json(), self._file_of(row)
            append_line(path, line, root=self._root)
            with os.fdopen(open_to_read(path), "rb") as file:
                os.fsync(file.fileno())  # before the database says that it is there
            self._written.append((trace, line))
        self._keep_verdict(row.id, trace.workload.uuid, line)

    def end(self, ended: TaskRow) -> None:
        """Keep how a task ended, unless it is over already."""
        change = "UPDATE tasks SET state = ?, error = ?, ended_at = ? WHERE id = ? AND state = ?"
        self._database.execute(change, (ended.state, ended.error, ended.ended_at, ended.id, OPEN))

    def read(self, task: str) -> tuple[TaskRow | None, dict[str, str]]:
        """Return a task, or None, with its verdicts: workload → trace as JSON."""
        verdicts = self._database.execute("SELECT workload, trace FROM verdicts WHERE task = ?", (task,))
        return next(iter(self._find("id = ?", (task,))), None), dict(verdicts.fetchall())

    def open_tasks(self) -> list[tuple[TaskRow, list[str]]]:
        """Return the open tasks in the order of their acceptance, each with its workloads that have no verdict."""
        rows = {row.id: row for row in self._find("state = ? ORDER BY accepted_at, rowid", (OPEN,))}
        for file in sorted(filter(Path.exists, set(map(self._file_of, rows.values())))):
            for _, line, _ in read_lines(file):
                task, workload = _read_names(line)
                if task in rows:
                    self._keep_verdict(task, workload, line.decode())
        recorded = {task: self.read(task)[1] for task in rows}
        return [(row, [uuid for uuid in row.workloads if uuid not in recorded[row.id]]) for row in rows.values()]

    def list_tasks(self, submitter: str | None, most: int) -> list[TaskRow]:
        """Return the latest tasks without their solutions, of one submitter or of all."""
        where = "(? IS NULL OR submitter = ?) ORDER BY accepted_at DESC, rowid DESC LIMIT ?"
        return self._find(where, (submitter, submitter, most), COLUMNS.replace(" solution,", " '' AS solution,"))

    def clean(self, before: float) -> None:
        """Forget tasks that ended before a time."""
        self._database.execute("DELETE FROM tasks WHERE state != ? AND ended_at < ?", (OPEN, before))

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # one process; and WAL without shared memory, which NFS lacks
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA foreign_keys = ON")
        self.path.chmod(0o600)
        (version,) = execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise DataSetError(f"{self.path} was written by another version (format {version}, not {VERSION})")
        execute("BEGIN EXCLUSIVE")
        for statement in (*SCHEMA.split(";"), f"PRAGMA user_version = {VERSION}", "COMMIT"):
            execute(statement)

    def _find(self, where: str, values: Any, columns: str = COLUMNS) -> list[TaskRow]:
        found = self._database.execute(f"SELECT {columns} FROM tasks WHERE {where}", values)
        return [TaskRow(**{**row, "workloads": tuple(json.loads(row["workloads"]))}) for row in map(dict, found)]

    def _keep_verdict(self, task: str, workload: str, trace: str) -> None:
        self._database.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", (task, workload, trace))

    def _file_of(self, row: TaskRow) -> Path:
        definition = self._trace_set.definitions.get(row.definition)
        op_type = definition.op_type if definition is not None else ""
        author = Solution.model_validate_json(row.solution).author
        return traces_path(self._root, author=author, op_type=op_type, definition=row.definition)


def _check_files(folder: Path) -> None:
    """Refuse a folder with a link in place of a file that SQLite opens by its path, or with a foreign journal."""
    with open_folder(folder, folder.parent, mode=0o700) as there:
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", JOURNAL):
            with contextlib.suppress(FileNotFoundError):
                os.close(there.open(name, os.O_RDWR))
                if name == JOURNAL:
                    raise WriteRefused(errno.EINVAL, f"{folder / name} is no file of a server; remove it", str(folder))


def _with_task(trace: Trace, task: str) -> Trace:
    """Return the trace with the id of its task."""
    if trace.evaluation is None:
        return trace
    extra = dict(trace.evaluation.extra or {})
    extra["run"] = {**(extra.get("run") or {}), "task": task}
    return trace.model_copy(update={"evaluation": trace.evaluation.model_copy(update={"extra": extra})})


def _read_names(line: bytes) -> tuple[str, str]:
    """Return task and workload of a line; empty for one that was cut off, or has no task."""
    try:
        parsed = json.loads(line)
        return str(parsed["evaluation"]["extra"]["run"]["task"]), str(parsed["workload"]["uuid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""
