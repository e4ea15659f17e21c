"""Opening files where anything may stand in their place."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flashinfer_bench.base.files.reading import open_stream, read_whole
from flashinfer_bench.base.files.writing import open_new, open_to_append
from tests.kit.strange import STRANGE


@pytest.mark.parametrize("words", STRANGE)
def test_what_is_no_file_of_a_sensible_size_is_refused_in_words(tmp_path, words):
    STRANGE[words](tmp_path / "file")
    for read in (read_whole, lambda path, most: open_stream(path, most).close()):
        with pytest.raises(OSError) as caught:
            read(tmp_path / "file", 1 << 20)
        assert words in caught.value.strerror


def test_a_file_and_a_link_to_it_are_read_up_to_the_limit(tmp_path):
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_whole(tmp_path / "link", 5) == b"12345"
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_whole(tmp_path / "link", 4)


def test_a_file_that_grows_while_it_is_read_is_read_up_to_the_limit(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"1")
    monkeypatch.setattr(os, "read", lambda fd, count: b"x" * count)  # there is always more
    with pytest.raises(OSError, match="more than 100 bytes"):
        read_whole(tmp_path / "file", 100)


@pytest.mark.parametrize("words", ["a pipe", "a device"])
def test_a_file_that_is_swapped_between_two_looks_is_refused(tmp_path, monkeypatch, words):
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "strange").parent.mkdir(exist_ok=True)
    STRANGE[words](tmp_path / "strange")
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: opened(tmp_path / "strange", *rest))
    with pytest.raises(OSError, match=words):
        read_whole(tmp_path / "file", 100)


def test_a_pipe_that_the_user_gives_as_a_descriptor_is_read():
    code = (
        "from flashinfer_bench.base.files.reading import read_whole as r; print(r('/dev/stdin', 9), r('/dev/fd/0', 9))"
    )
    said = subprocess.run([sys.executable, "-c", code], input=b"given", capture_output=True, check=True).stdout
    assert said == b"b'given' b''\n"


def test_a_pipe_is_neither_appended_to_nor_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OSError, match="a pipe"):
        open_to_append(tmp_path / "pipe")
    os.close(reader)
    with pytest.raises(OSError):
        open_to_append(tmp_path / "pipe")  # nobody reads it
    os.close(open_new(tmp_path / "pipe"))
    assert (tmp_path / "pipe").is_file()
