"""The database of a server: one process, one user, one format; and untrusted files at its path."""

import os
import sqlite3
from pathlib import Path

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.serve.store import TaskRow, TaskStore
from tests.kit import make_solution, make_trace
from tests.serve.conftest import write_set


def open_store(root):
    return TaskStore(root / ".serve", TraceSet.from_path(root), root)


def test_one_user_holds_it_and_it_knows_its_format(tmp_path):
    store = open_store(write_set(tmp_path))
    assert (store.path.parent.stat().st_mode & 0o777, store.path.stat().st_mode & 0o777) == (0o700, 0o600)
    store._database.execute("PRAGMA user_version = 9")
    store.close()
    with pytest.raises(DataSetError, match="another version"):
        open_store(tmp_path)


def test_a_verdict_is_on_disk_before_its_task_has_it(tmp_path, monkeypatch):
    store, synced = open_store(write_set(tmp_path)), []
    solution = make_solution().to_json()
    asked = {"submitter": "s", "key": None, "request": "", "priority": 0, "confirm": "never", "accepted_at": 0.0}
    names = {"definition": "double", "solution_name": "double_python", "solution": solution, "workloads": ("w0",)}
    row = store.accept(TaskRow("t", **asked, **names))
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())))
    store.record(row, make_trace())
    store.close()
    assert [path for path in synced if path.endswith("double.jsonl")]


def super_journal(file, mine):
    """Make a journal that SQLite rolls back, and that names a file for removal."""
    open_store(file.parents[1]).close()
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA journal_mode = PERSIST")
    database.execute("CREATE TABLE x (y)")
    database.close()
    name = str(mine).encode()
    parts = [(1).to_bytes(4, "big"), name, len(name).to_bytes(4, "big"), (sum(name) & 0xFFFFFFFF).to_bytes(4, "big")]
    with file.with_name("tasks.sqlite-journal").open("r+b") as journal:
        journal.write(bytes.fromhex("d9d505f920a163d7"))
        journal.seek(0, os.SEEK_END)
        journal.write(b"".join(parts) + bytes.fromhex("d9d505f920a163d7"))


TRAPS = {
    "a linked database": lambda file, mine: file.symlink_to(mine),
    "a linked log": lambda file, mine: file.with_name("tasks.sqlite-wal").symlink_to(mine),
    "a linked folder": lambda file, mine: (file.parent.rmdir(), file.parent.symlink_to(mine.parent)),
    "a hard link": lambda file, mine: file.hardlink_to(mine),
    "a pipe": lambda file, mine: os.mkfifo(file),
    "a journal": super_journal,
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_strangers_database_leads_no_write_out_of_the_set(tmp_path, trap):
    root, mine = write_set(tmp_path / "set"), tmp_path / "home/mine"
    for folder in (root / ".serve", mine.parent):
        folder.mkdir()
    mine.write_text("mine")
    TRAPS[trap](root / ".serve/tasks.sqlite", mine)
    with pytest.raises((DataSetError, Fault), match="cannot be opened"):
        open_store(root)
    assert [(file.name, file.read_text()) for file in mine.parent.iterdir()] == [("mine", "mine")]
