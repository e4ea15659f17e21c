"""Locks: who waits, for how long, and what is said of the holder."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading

import pytest

from flashinfer_bench.base.files.locks import FileLock, locked_folder
from flashinfer_bench.data.store import jsonl
from flashinfer_bench.data.store.blobs import BlobStore
from flashinfer_bench.errors import Fault, WorkloadFault


@contextlib.contextmanager
def _held(path):
    lock = FileLock(path)
    lock.wait(0.0)
    try:
        yield
    finally:
        lock.release()


def test_a_wait_ends_at_its_limit_and_names_the_file_and_its_holder(tmp_path):
    path = tmp_path / "a.lock"
    with _held(path), pytest.raises(TimeoutError, match=rf"held by process {os.getpid()}: '{path}'"):
        FileLock(path).wait(0.02)


def test_a_holder_that_the_system_does_not_name_is_another_process(tmp_path, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.base.files.locks.LOCK_TABLE", tmp_path / "none")
    with _held(tmp_path / "a"), pytest.raises(TimeoutError, match="held by another process"):
        FileLock(tmp_path / "a").wait(0.0)


def test_a_folder_has_one_holder(tmp_path):
    with locked_folder(tmp_path, 0.0), pytest.raises(TimeoutError), locked_folder(tmp_path, 0.0):
        pass
    with locked_folder(tmp_path, 0.0):
        pass


def test_a_lock_file_is_removed_at_its_end_and_can_be_taken_again(tmp_path):
    path = tmp_path / "new" / "a.lock"
    for _ in range(2):
        with _held(path):
            assert not FileLock(path).take()
        assert not path.exists()


def test_who_waits_gets_the_lock_though_its_file_is_removed_meanwhile(tmp_path):
    first, second = FileLock(tmp_path / "a"), FileLock(tmp_path / "a")
    first.wait()
    waiting = threading.Thread(target=second.wait)
    waiting.start()
    first.release()
    waiting.join(timeout=10)
    assert not FileLock(tmp_path / "a").take()
    second.release()


def test_an_append_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "USUAL_LIMIT_S", 0.02)
    path = tmp_path / "a.jsonl"
    with _held(path):
        with pytest.raises(Fault, match=f"{path}: its lock is held by process {os.getpid()}"):
            jsonl.append_line(path, "{}")
        assert path.read_text() == ""


def test_fetching_a_blob_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr("flashinfer_bench.data.store.blobs.FETCH_WAIT_S", 0.02)
    (tmp_path / "a").write_text("version https://git-lfs.github.com/spec/v1\n")
    with locked_folder(tmp_path, 0.0), pytest.raises(WorkloadFault, match=f"held by process {os.getpid()}"):
        BlobStore(tmp_path, fetch=lambda root, path: None).locate("a")


@pytest.fixture(params=[errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def no_flock(request, monkeypatch):
    """Make flock say what it says on a file system without it."""

    def refuse(*_):
        raise OSError(request.param, os.strerror(request.param))

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_without_flock_lines_are_appended_under_a_file_beside(tmp_path, no_flock):
    for line in ('{"a": 1}', '{"b": 1}'):
        jsonl.append_line(tmp_path / "a.jsonl", line, root=tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == '{"a": 1}\n{"b": 1}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]


def test_without_flock_a_folder_has_one_holder_and_the_file_is_named(tmp_path, no_flock):
    with (
        locked_folder(tmp_path, 0.0),
        pytest.raises(TimeoutError, match=r"\.lock; remove that file if no process writes there"),
        locked_folder(tmp_path, 0.0),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_without_flock_a_link_beside_is_not_followed(tmp_path, no_flock):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / ".set.lock").symlink_to(tmp_path / "home")
    with pytest.raises(TimeoutError), locked_folder(tmp_path / "set", 0.0):
        pass
    assert not (tmp_path / "home").exists()


def test_a_lock_file_on_a_file_system_without_flock_says_so(tmp_path, no_flock):
    with pytest.raises(OSError, match="has no file locks"):
        FileLock(tmp_path / "a").take()
