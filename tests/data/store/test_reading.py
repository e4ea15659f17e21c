"""Opening files that may be of any kind, and locks: waits, timeouts, and the message about the holder."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from unittest.mock import Mock

import pytest

from flashinfer_bench.base.files.locks import locked_file, locked_folder
from flashinfer_bench.base.files.reading import open_stream, read_whole
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.compile.cache import ArtifactCache
from flashinfer_bench.data.store import jsonl
from flashinfer_bench.errors import ConfigError, Fault
from tests.kit.strange import STRANGE


@pytest.mark.parametrize("words", STRANGE)
def test_what_is_no_file_of_a_sensible_size_is_refused_in_words(tmp_path, words):
    STRANGE[words](tmp_path / "file")
    for read in (read_whole, lambda path, most: open_stream(path, most).close()):
        with pytest.raises(OSError) as caught:
            read(tmp_path / "file", 1 << 20)
        assert words in caught.value.strerror


def test_a_file_and_a_link_to_it_are_read_up_to_the_limit_also_if_it_grows(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_whole(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_whole(tmp_path / "link", 4)
    monkeypatch.setattr(os, "read", lambda fd, count: b"x" * count)  # the file never ends
    with pytest.raises(OSError, match="more than 100 bytes"):
        read_whole(tmp_path / "file", 100)


def test_a_file_that_is_swapped_between_two_looks_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"1")
    os.mkfifo(tmp_path / "strange")
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened(tmp_path / "strange", *rest))
    with pytest.raises(OSError, match="a pipe"):
        read_whole(tmp_path / "file", 100)


@contextmanager
def held(path, limit_s=0.0):
    with open_folder(path.parent) as folder, locked_file(folder, path.name, limit_s):
        yield


def test_who_waits_gets_the_lock_though_its_file_is_removed_meanwhile(tmp_path):
    with ExitStack() as first, ThreadPoolExecutor() as pool:
        first.enter_context(held(tmp_path / "a"))
        waiting = pool.submit(ExitStack().enter_context, held(tmp_path / "a", 60.0))
        (tmp_path / "a").unlink()
        first.close()
        waiting.result(10)
        assert (tmp_path / "a").exists()


def test_an_append_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(jsonl, "USUAL_LIMIT_S", 0.02)
    path = tmp_path / "a.jsonl"
    with held(path):
        with pytest.raises(Fault, match=f"{re.escape(str(path))}: its lock is held by another process"):
            jsonl.append_lines(path, ["{}"])
        assert path.read_text() == ""


@pytest.mark.parametrize("has_flock", [True, False])
def test_with_and_without_flock_a_folder_and_a_file_have_one_holder(tmp_path, monkeypatch, has_flock):
    if not has_flock:
        monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, "No locks available")))
    words = "held by another process" if has_flock else r"\.lock; remove that file if no process writes there"
    with locked_folder(tmp_path, 0.0), pytest.raises(TimeoutError, match=words), locked_folder(tmp_path, 0.0):
        pass
    for line in ('{"a": 1}', '{"b": 1}'):
        jsonl.append_lines(tmp_path / "a.jsonl", [line], root=tmp_path)
    assert (tmp_path / "a.jsonl").read_text() == '{"a": 1}\n{"b": 1}\n'
    assert [file.name for file in tmp_path.iterdir()] == ["a.jsonl"]
    if has_flock:
        return
    with pytest.raises(ConfigError, match="has no file locks"), ArtifactCache(tmp_path).used():
        pass
    (tmp_path / f".{tmp_path.name}.lock").symlink_to(tmp_path / "home")
    with pytest.raises(TimeoutError), locked_folder(tmp_path, 0.0):
        pass
    assert not (tmp_path / "home").exists()  # the link next to it is not followed
