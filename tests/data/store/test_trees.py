"""Walking and removing untrusted trees, and folders in TMPDIR that are removed with their process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flashinfer_bench.base.files import trees
from flashinfer_bench.base.files.held_folders import hold_folder, sweep_folders, temporary_folder
from flashinfer_bench.base.files.trees import remove_tree, walk_files
from tests.kit.strange import deep_folder


def make(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def found(folder, **how):
    reported = []
    paths = [
        path.relative_to(folder).as_posix() for path in walk_files(folder, lambda *what: reported.append(what), **how)
    ]
    return paths, reported


def test_a_tree_deeper_than_any_path_is_walked_to_a_limit_and_removed(tmp_path):
    with deep_folder(tmp_path / "deep", "d" * 100) as deep:
        make(deep, "a.json")
        paths, reported = found(deep)
        assert paths == ["a.json"]
        assert [why for _, why in reported] == ["lies more than 32 folders deep; it is left out"]
        assert remove_tree(deep)
        assert not deep.exists()


def test_folders_without_rights_links_and_files_are_removed_and_link_targets_stay(tmp_path):
    make(tmp_path, "kept/file", "top/closed/inner/file", "file")
    top = tmp_path / "top"
    for link in (top / "link", tmp_path / "link"):
        link.symlink_to(tmp_path / "kept")
    os.mkfifo(top / "pipe")
    for folder in (top / "closed" / "inner", top / "closed", top):
        folder.chmod(0o000)
    assert all(remove_tree(tmp_path / name) for name in ("top", "link", "file", "nothing"))
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_a_walk_yields_files_before_subfolders_skips_names_and_has_a_limit(tmp_path, monkeypatch):
    make(tmp_path, "b/two", "a/.hidden/three", "a/one", "z")
    assert found(tmp_path, passes_over=lambda name: name.startswith(".")) == (["z", "a/one", "b/two"], [])
    assert found(tmp_path / "none") == ([], [(tmp_path / "none", "cannot be read: No such file or directory")])
    monkeypatch.setattr(trees, "MOST_ENTRIES", 2)
    assert found(tmp_path) == ([], [(tmp_path, "holds more than 2 files and folders; the rest is left out")])


def test_links_are_followed_once_and_not_out_to_the_system(tmp_path):
    make(tmp_path, "top/a/own", "top/file", "other/file")
    top = tmp_path / "top"
    targets = {"again": top / "a", "back": top, "other": "../../other", "proc": "/proc", "root": "/"}
    for name, target in targets.items():
        (top / "a" / name).symlink_to(target)
    paths, reported = found(top, follows_links=True)
    assert paths == ["file", "a/own", "a/other/file"]
    assert sorted(path.name for path, _ in reported) == ["proc", "root"]
    assert {"a/again", "a/other", "a/root"} < set(found(top)[0])


HOLDS = """
import os
from flashinfer_bench.base.files.held_folders import hold_folder
folder, _ = hold_folder("test")
(folder / "file").touch()
child = os.fork()
if child == 0:
    os.read(0, 1)
    os._exit(0)
print(folder, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """Return the folder for TMPDIR."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_what_a_killed_process_left_is_removed_once_its_forks_have_ended_too(temporary):
    ours, theirs = os.pipe()
    with subprocess.Popen([sys.executable, "-c", HOLDS], stdin=ours, stdout=subprocess.PIPE, text=True) as maker:
        os.close(ours)
        left = Path(maker.stdout.readline().strip())
    sweep_folders()
    assert left.parent == temporary
    assert left.exists()
    os.close(theirs)  # the fork ends
    while left.exists():
        sweep_folders()


def test_locked_and_foreign_folders_and_link_targets_stay(temporary):
    kept, link = temporary / "flashinfer-bench-old", temporary / "flashinfer-bench.run.link"
    kept.mkdir()
    link.symlink_to(kept)
    folder, fd = hold_folder("test")
    with temporary_folder("test") as second:
        sweep_folders()
        assert folder.exists()
        assert second.exists()
    os.close(fd)
    sweep_folders()
    assert {*temporary.iterdir()} == {kept, link}
