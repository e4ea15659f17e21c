"""The storage of a server: accepted tasks and their verdicts in SQLite, and lines of the set.

A task is committed to disk (`synchronous=FULL`) before its client receives the acceptance. A verdict is first written
as a line of the set with its task's id (`extra.run.task`), then as a row here. At its start a server reads the lines of
open tasks, so a crash between the two writes neither loses nor repeats a verdict. A truncated last line counts as not
written, and stays as a separate line. Only one process can open a store. All calls come from one thread.
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
from flashinfer_bench.data.store.jsonl import append_lines, check_append, read_lines
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.errors import DataSetError, Fault

FILE: Final = "tasks.sqlite"
JOURNAL: Final = f"{FILE}-journal"
"""Name of a rollback journal. This store has a WAL instead. SQLite would remove files that a planted journal names."""
OPEN: Final = "open"
"""State of a task that has not ended: it waits, it runs, or its server ended first."""
VERSION: Final = 2
"""Version of the format, in `PRAGMA user_version`."""
RECENT_LINES: Final = 256
"""Number of latest written lines that are remembered. If a second task gets the same trace, its line is found among
these, and is not written again."""
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
    """A task as accepted, with its end."""

    id: str
    submitter: str
    key: str | None
    """The client's key of the submission. A repeated key returns the first task with the key."""
    request: str
    """Digest of the request."""
    definition: str
    solution_name: str
    solution: str
    """The solution as JSON; empty in lists."""
    workloads: tuple[str, ...]
    """Uuids at the acceptance of the task."""
    priority: int
    confirm: Confirm
    accepted_at: float
    """Seconds since 1970."""
    state: str = OPEN
    """OPEN, or the status of the ended task."""
    error: str | None = None
    ended_at: float | None = None

    @property
    def author(self) -> str:
        """The author of the solution. A row from `list_tasks` has no solution, so this fails."""
        return Solution.model_validate_json(self.solution).author


NAMES: Final = [field.name for field in fields(TaskRow)]
COLUMNS: Final = ", ".join(NAMES)


class TaskStore:
    """The tasks of a set, and their recorded verdicts.

    Args:
        folder: folder of the database, not a link. If missing, it is made with access only for this user.
        trace_set: the set of the tasks.
        root: the root for the traces.

    Raises:
        DataSetError: another server has opened it, its version differs, or it contains links or unexpected files.
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
        """Store a task durably. If the submitter has used the key before, return that earlier task instead.

        Raises:
            DataSetError: traces could not be written, since the set contains a link or a folder cannot be made.
        """
        check_append(self._file_of(row), self._root)
        values = {**asdict(row), "workloads": json.dumps(row.workloads)}
        placeholders = ", ".join(f":{name}" for name in NAMES)
        self._database.execute(f"INSERT OR IGNORE INTO tasks ({COLUMNS}) VALUES ({placeholders})", values)
        return self._find("id = :id OR (submitter = :submitter AND key = :key)", values)[0]

    def forget(self, task: str) -> None:
        """Remove a task whose acceptance failed."""
        self._database.execute("DELETE FROM tasks WHERE id = ?", (task,))

    def record(self, row: TaskRow, trace: Trace) -> None:
        """Append a trace to the set, then store it with its task. A trace that two tasks share is written once."""
        line = next((line for known, line in self._written if known is trace), None)
        if line is None:
            line, path = _with_task(trace, row).to_json(), self._file_of(row)
            append_lines(path, [line], root=self._root)
            with os.fdopen(open_to_read(path), "rb") as file:
                os.fsync(file.fileno())  # before the database records it
            self._written.append((trace, line))
        self._keep_verdict(row.id, trace.workload.uuid, line)

    def end(self, ended: TaskRow) -> None:
        """Store the end of a task, unless it has ended before."""
        change = "UPDATE tasks SET state = ?, error = ?, ended_at = ? WHERE id = ? AND state = ?"
        self._database.execute(change, (ended.state, ended.error, ended.ended_at, ended.id, OPEN))

    def read(self, task: str) -> tuple[TaskRow | None, dict[str, str]]:
        """Return a task with its verdicts (workload → trace as JSON), or None."""
        verdicts = self._database.execute("SELECT workload, trace FROM verdicts WHERE task = ?", (task,))
        return next(iter(self._find("id = ?", (task,))), None), dict(verdicts.fetchall())

    def open_tasks(self) -> list[tuple[TaskRow, list[str]]]:
        """Return the open tasks in the order of their acceptance, each with the workloads that lack a verdict."""
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
        """Delete tasks that ended before a time."""
        self._database.execute("DELETE FROM tasks WHERE state != ? AND ended_at < ?", (OPEN, before))

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # one process; WAL then needs no shared memory, which NFS lacks
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
        return traces_path(self._root, author=row.author, op_type=op_type, definition=row.definition)


def _check_files(folder: Path) -> None:
    """Refuse a folder with a foreign journal, or with a link at a path that SQLite opens."""
    with open_folder(folder, folder.parent, mode=0o700) as there:
        for name in (FILE, f"{FILE}-wal", f"{FILE}-shm", JOURNAL):
            with contextlib.suppress(FileNotFoundError):
                os.close(there.open(name, os.O_RDWR))
                if name == JOURNAL:
                    raise WriteRefused(errno.EINVAL, f"{folder / name} is no file of a server; remove it", str(folder))


def _with_task(trace: Trace, row: TaskRow) -> Trace:
    """Return a copy of the trace with its task and the author of its solution in `extra.run`."""
    if trace.evaluation is None:
        return trace
    extra = dict(trace.evaluation.extra or {})
    extra["run"] = {**(extra.get("run") or {}), "task": row.id, "author": row.author}
    return trace.model_copy(update={"evaluation": trace.evaluation.model_copy(update={"extra": extra})})


def _read_names(line: bytes) -> tuple[str, str]:
    """Return task and workload of a line; empty for a truncated line, or a line without a task."""
    try:
        parsed = json.loads(line)
        return str(parsed["evaluation"]["extra"]["run"]["task"]), str(parsed["workload"]["uuid"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""
