"""The database of a server: one process, one user, one format; and what a stranger's set may hold in its place."""

import os
import sqlite3

import pytest

from flashinfer_bench.data import TraceSet
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.serve.store import TaskStore
from tests.serve.conftest import write_set


def open_store(root):
    return TaskStore(root / ".serve", TraceSet.from_path(root), root)


def test_one_process_of_one_user_holds_it_and_knows_its_format(tmp_path):
    store = open_store(write_set(tmp_path))
    assert (store.path.parent.stat().st_mode & 0o777, store.path.stat().st_mode & 0o777) == (0o700, 0o600)
    with pytest.raises(DataSetError, match="another server"):
        open_store(tmp_path)
    store._database.execute("ALTER TABLE tasks DROP COLUMN confirm")  # as the first format was
    store._database.execute("PRAGMA user_version = 1")
    values = ("t", "me", None, "r", "double", "k", "{}", "[]", 0, "completed", None, 1.0, 2.0)
    store._database.execute(f"INSERT INTO tasks VALUES ({', '.join('?' * len(values))})", values)
    store.close()
    store = open_store(tmp_path)
    assert [(row.id, row.confirm) for row in store.list_tasks(None, 9)] == [("t", "if_best")]
    store._database.execute("PRAGMA user_version = 9")
    store.close()
    with pytest.raises(DataSetError, match="later version"):
        open_store(tmp_path)


def link_file(root, home):
    (root / ".serve").mkdir()
    (root / ".serve/tasks.sqlite").symlink_to(home / "mine")


def link_wal(root, home):
    open_store(root).close()
    (root / ".serve/tasks.sqlite-wal").symlink_to(home / "mine")


def link_folder(root, home):
    (root / ".serve").symlink_to(home)


def hard_link(root, home):
    (root / ".serve").mkdir()
    (root / ".serve/tasks.sqlite").hardlink_to(home / "mine")


def pipe(root, home):
    (root / ".serve").mkdir()
    os.mkfifo(root / ".serve/tasks.sqlite")


def super_journal(root, home):
    """Make a journal that SQLite rolls back, and that names a file to be removed then."""
    open_store(root).close()
    database = sqlite3.connect(root / ".serve/tasks.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = DELETE")
    database.execute("PRAGMA journal_mode = PERSIST")
    database.execute("CREATE TABLE x (y)")
    database.close()
    name = str(home / "mine").encode()
    parts = [(1).to_bytes(4, "big"), name, len(name).to_bytes(4, "big"), (sum(name) & 0xFFFFFFFF).to_bytes(4, "big")]
    with (root / ".serve/tasks.sqlite-journal").open("r+b") as journal:
        journal.write(bytes.fromhex("d9d505f920a163d7"))
        journal.seek(0, os.SEEK_END)
        journal.write(b"".join(parts) + bytes.fromhex("d9d505f920a163d7"))


@pytest.mark.parametrize("trap", [link_file, link_wal, link_folder, hard_link, pipe, super_journal])
def test_a_strangers_database_leads_no_write_out_of_the_set(tmp_path, trap):
    root, home = write_set(tmp_path / "set"), tmp_path / "home"
    home.mkdir()
    (home / "mine").write_text("mine")
    trap(root, home)
    with pytest.raises((DataSetError, Fault), match="cannot be opened"):
        open_store(root)
    assert [(file.name, file.read_text()) for file in home.iterdir()] == [("mine", "mine")]
