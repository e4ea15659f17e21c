"""Writing below an untrusted root: no file outside of it is written, truncated or made."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest

from flashinfer_bench.base.files.writing import (
    open_folder,
    open_to_replace,
)
from flashinfer_bench.data.store.jsonl import append_lines, check_append, write_whole
from flashinfer_bench.errors import DataSetError, Fault

TORN = '{"mine": 1'


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/keys").write_text(TORN)
    return tmp_path / "home"


FILE = "traces/a/x.jsonl"
TRAPS = {
    "link to a file": (FILE, Path.symlink_to),
    "link to nothing": (FILE, lambda path, keys: path.symlink_to(keys.with_name("new"))),
    "link for a folder": ("traces/a", lambda path, keys: path.symlink_to(keys.parent)),
    "second name": (FILE, Path.hardlink_to),
    "pipe": (FILE, lambda path, _: os.mkfifo(path)),
    "file for a folder": ("traces/a", lambda path, _: path.touch()),
}
"""Name of a trap → its path, and the function that makes it from the path and a file that must not change."""


@pytest.fixture
def root(tmp_path):
    (tmp_path / "set").mkdir()
    return tmp_path / "set"


def lay(root, home, trap):
    location, put = TRAPS[trap]
    (root / location).parent.mkdir(parents=True)
    put(root / location, home / "keys")


@pytest.mark.parametrize("trap", TRAPS)
def test_what_is_written_below_a_root_never_leaves_it(root, home, trap):
    lay(root, home, trap)
    real = f"traces/a is a link to {re.escape(str(home))}, " if trap == "link for a folder" else ""
    with pytest.raises(DataSetError, match=f"nothing can be appended to .*{real}"):
        check_append(root / FILE, root)
    with pytest.raises(Fault, match="cannot append"):
        append_lines(root / FILE, ["{}"], root=root)
    with pytest.raises(OSError):
        open_to_replace(root / FILE, root=root)
    with suppress(OSError):
        write_whole(root / FILE, "{}", root=root)
    assert [(file.name, file.read_text()) for file in home.rglob("*")] == [("keys", TORN)]


def test_the_root_and_the_folders_above_it_may_be_links(tmp_path):
    (tmp_path / "disk/set").mkdir(parents=True)
    (tmp_path / "disk/link").symlink_to("set")
    (tmp_path / "above").symlink_to("disk")
    root = tmp_path / "above/link"
    check_append(root / "traces/a/x.jsonl", root)
    append_lines(root / "traces/a/x.jsonl", ["{}"], root=root)
    assert (tmp_path / "disk/set/traces/a/x.jsonl").read_text() == "{}\n"


def test_no_write_leaves_a_folder_that_becomes_a_link_while_it_is_open(root, home):
    with open_folder(root / "traces", root) as opened:
        (root / "traces").rename(root / "moved")
        (root / "traces").symlink_to(home)
        os.close(opened.open("x.jsonl", os.O_WRONLY | os.O_CREAT))
    assert (root / "moved/x.jsonl").exists()
    assert [file.name for file in home.iterdir()] == ["keys"]


@pytest.mark.parametrize("trap", ["link to a file", "second name"])
def test_a_file_that_becomes_a_trap_after_a_look_is_refused(root, home, monkeypatch, trap):
    plain = (home / "keys").lstat()
    lay(root, home, trap)
    with monkeypatch.context() as patch, pytest.raises(Fault):
        patch.setattr(os, "stat", lambda *_, **__: plain)
        append_lines(root / FILE, ["{}"], root=root)
