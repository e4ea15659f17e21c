"""The ledger: accepted tasks and their verdicts in SQLite, so that they outlive the process.

A task is committed, and the disk has it (`synchronous=FULL`), before its client is told that it was accepted. One
process holds a ledger; a second one is refused. All calls come from one thread.

History of the format (`PRAGMA user_version`): 1, the first; 2, tasks have `confirm`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.writing import WriteRefused, open_folder
from flashinfer_bench.bench.confirm import Confirm
from flashinfer_bench.errors import DataSetError, Fault

FILE: Final = "tasks.sqlite"
OPEN: Final = "open"
"""The state of a task in the ledger that is not over: it waits or runs, or the process ended before it did."""
VERSION: Final = 2
COMPANIONS: Final = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite keeps beside a database."""
SUPER_JOURNAL: Final = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that names a super-journal; see "The Rollback Journal" in SQLite's file format."""
SCHEMA: Final = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY, submitter TEXT NOT NULL, key TEXT, request TEXT NOT NULL, definition TEXT NOT NULL,
    solution_name TEXT NOT NULL, solution TEXT NOT NULL, workloads TEXT NOT NULL, priority INTEGER NOT NULL,
    state TEXT NOT NULL, error TEXT, accepted_at REAL NOT NULL, ended_at REAL, confirm TEXT NOT NULL DEFAULT 'if_best',
    UNIQUE (submitter, key));
CREATE INDEX tasks_by_state ON tasks (state);
CREATE INDEX tasks_by_time ON tasks (accepted_at);
CREATE TABLE verdicts (
    task TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE, workload TEXT NOT NULL, trace TEXT NOT NULL,
    PRIMARY KEY (task, workload)) WITHOUT ROWID;
"""
COLUMNS: Final = (
    "id, submitter, key, request, definition, solution_name, solution, workloads, priority, state, error, accepted_at, "
    "ended_at, confirm"
)
BRIEF: Final = COLUMNS.replace(" solution,", " '' AS solution,")


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
    state: str
    """OPEN, or how it ended."""
    error: str | None
    accepted_at: float
    """Seconds since 1970."""
    ended_at: float | None
    confirm: Confirm = "if_best"


class Ledger:
    """An open ledger.

    Args:
        folder: where its file lies; made where it is missing, for nobody but this user. It is no link.

    Raises:
        DataSetError: another server has it open, it is of a later version, or links or files there are strange.
        Fault: the disk fails.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        try:
            _check_files(folder)
            self._database = sqlite3.connect(self.path, timeout=1.0, isolation_level=None, check_same_thread=False)
            self._prepare()
        except WriteRefused as error:
            raise DataSetError(f"{self.path} cannot be opened: {error.strerror}") from error
        except sqlite3.OperationalError as error:
            if "locked" in str(error):
                raise DataSetError(
                    f"{self.path}: another server has these tasks open; end it, or serve another set"
                ) from error
            raise Fault(f"{self.path} cannot be opened: {error}") from error
        except (sqlite3.DatabaseError, OSError) as error:
            raise Fault(f"{self.path} cannot be opened: {error}") from error

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def accept(self, row: TaskRow) -> TaskRow:
        """Keep a task, on disk when this returns. Where its submitter used its key before, return that task."""
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            if row.key is not None and (known := self._one("submitter = ? AND key = ?", (row.submitter, row.key))):
                return known
            values = (*_values(row),)
            self._database.execute(f"INSERT INTO tasks ({COLUMNS}) VALUES ({', '.join('?' * len(values))})", values)
        return row

    def forget(self, task: str) -> None:
        """Remove a task that was not accepted after all."""
        with self._database:
            self._database.execute("DELETE FROM tasks WHERE id = ?", (task,))

    def keep_verdict(self, task: str, workload: str, trace: str) -> None:
        """Keep a verdict of a task that its set has recorded. A verdict that is there stays."""
        with self._database:
            self._database.execute("INSERT OR IGNORE INTO verdicts VALUES (?, ?, ?)", (task, workload, trace))

    def end(self, ended: TaskRow) -> None:
        """Keep how a task ended, unless it is over already."""
        change = "UPDATE tasks SET state = ?, error = ?, ended_at = ? WHERE id = ? AND state = ?"
        with self._database:
            self._database.execute(change, (ended.state, ended.error, ended.ended_at, ended.id, OPEN))

    def find(self, task: str) -> TaskRow | None:
        """Return a task, or None."""
        return self._one("id = ?", (task,))

    def verdicts(self, task: str) -> dict[str, str]:
        """Return the recorded verdicts of a task: workload → trace as JSON."""
        return dict(self._database.execute("SELECT workload, trace FROM verdicts WHERE task = ?", (task,)))

    def open_tasks(self) -> list[TaskRow]:
        """Return the tasks that are not over, in the order in which they were accepted."""
        return self._many(COLUMNS, "state = ? ORDER BY accepted_at, rowid", (OPEN,))

    def list_tasks(self, submitter: str | None, most: int) -> list[TaskRow]:
        """Return the latest tasks without their solutions, of one submitter or of all."""
        if submitter is None:
            return self._many(BRIEF, "TRUE ORDER BY accepted_at DESC, rowid DESC LIMIT ?", (most,))
        return self._many(BRIEF, "submitter = ? ORDER BY accepted_at DESC, rowid DESC LIMIT ?", (submitter, most))

    def counts(self) -> dict[str, int]:
        """Return how many tasks there are in each state."""
        return dict(self._database.execute("SELECT state, count(*) FROM tasks GROUP BY state"))

    def clean(self, before: float) -> int:
        """Forget tasks that ended before a time; return how many."""
        with self._database:
            done = self._database.execute("DELETE FROM tasks WHERE state != ? AND ended_at < ?", (OPEN, before))
        return done.rowcount

    def _prepare(self) -> None:
        execute = self._database.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")  # one process; and WAL without shared memory, which NFS lacks
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA foreign_keys = ON")
        self.path.chmod(0o600)
        (version,) = execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise DataSetError(
                f"{self.path} was written by a later version (format {version}; this one knows {VERSION})"
            )
        execute("BEGIN EXCLUSIVE")
        if version == 0:
            for statement in SCHEMA.split(";"):
                execute(statement)
        if version == 1:
            execute("ALTER TABLE tasks ADD COLUMN confirm TEXT NOT NULL DEFAULT 'if_best'")
        execute(f"PRAGMA user_version = {VERSION}")
        execute("COMMIT")

    def _one(self, where: str, values: tuple[Any, ...]) -> TaskRow | None:
        return next(iter(self._many(COLUMNS, where, values)), None)

    def _many(self, columns: str, where: str, values: tuple[Any, ...]) -> list[TaskRow]:
        found = self._database.execute(f"SELECT {columns} FROM tasks WHERE {where}", values)
        return [_row(item) for item in found]


def _check_files(folder: Path) -> None:
    """Refuse a folder with a link in place of a file that SQLite opens by its path, or with a journal of several files.

    SQLite rolls back a journal that it finds, and removes the file that the journal names as its super-journal.
    """
    with open_folder(folder, folder.parent, mode=0o700) as there:
        for name in (FILE, *(f"{FILE}{ending}" for ending in COMPANIONS)):
            with contextlib.suppress(FileNotFoundError), os.fdopen(there.open(name, os.O_RDWR), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - len(SUPER_JOURNAL)))
                if name != FILE and file.read() == SUPER_JOURNAL:
                    raise WriteRefused(errno.EINVAL, f"{folder / name} names another journal; remove it", str(folder))


def _values(row: TaskRow) -> Iterable[Any]:
    return (
        *(row.id, row.submitter, row.key, row.request, row.definition, row.solution_name, row.solution),
        *(json.dumps(row.workloads), row.priority, row.state, row.error, row.accepted_at, row.ended_at, row.confirm),
    )


def _row(item: tuple[Any, ...]) -> TaskRow:
    parts: Mapping[str, Any] = dict(zip(TaskRow.__dataclass_fields__, item, strict=True))
    return TaskRow(**{**parts, "workloads": tuple(json.loads(parts["workloads"]))})
