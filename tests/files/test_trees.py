"""Walking and removing trees that somebody else has made."""

from __future__ import annotations

import os

import pytest

from flashinfer_bench.base.files import trees
from flashinfer_bench.base.files.trees import remove_tree, walk_files

DEPTH, NAME = 1100, "d" * 100


@pytest.fixture
def deep(tmp_path):
    """A folder with folders in it deeper than Python recurses; their path has 110 kB, more than the system takes."""
    top = tmp_path / "deep"
    dig(top, DEPTH)
    yield top
    remove_tree(top)


def dig(top, depth):
    top.mkdir()
    fd = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(NAME, dir_fd=fd)
        below = os.open(NAME, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("bottom.json", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


def found(folder, **how):
    told = []
    paths = [path.relative_to(folder).as_posix() for path in walk_files(folder, lambda *what: told.append(what), **how)]
    return paths, told


def test_a_tree_deeper_than_any_path_is_walked_to_a_limit_and_removed(deep):
    (deep / "a.json").touch()
    paths, told = found(deep)
    assert paths == ["a.json"]
    assert [why for _, why in told] == ["lies more than 32 folders deep; it is left out"]
    assert remove_tree(deep)
    assert not deep.exists()


def test_folders_without_rights_and_links_are_removed_and_what_links_lead_to_stays(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    top = tmp_path / "top"
    (top / "closed" / "inner").mkdir(parents=True)
    (top / "closed" / "inner" / "file").touch()
    (top / "link").symlink_to(kept)
    os.mkfifo(top / "pipe")
    for folder in (top / "closed" / "inner", top / "closed", top):
        folder.chmod(0o000)
    assert remove_tree(top)
    assert (kept / "file").exists()


def test_a_link_or_a_file_in_place_of_a_folder_is_removed_itself(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    assert remove_tree(tmp_path / "link")
    assert remove_tree(tmp_path / "file")
    assert remove_tree(tmp_path / "nothing")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_removing_gives_up_at_its_limit(tmp_path):
    (tmp_path / "top" / "a").mkdir(parents=True)
    assert not remove_tree(tmp_path / "top", limit_s=0.0)
    assert remove_tree(tmp_path / "top")


def test_removing_looks_at_its_limit_inside_a_large_folder(tmp_path, monkeypatch):
    ticks = iter(range(1000))
    monkeypatch.setattr(trees, "LOOK_EVERY", 2)
    monkeypatch.setattr(trees.time, "monotonic", lambda: next(ticks))
    (tmp_path / "top").mkdir()
    for number in range(20):
        (tmp_path / "top" / str(number)).touch()
    assert not remove_tree(tmp_path / "top", limit_s=3.5)
    assert 0 < len(list((tmp_path / "top").iterdir())) < 20


def test_a_walk_gives_what_lies_in_a_folder_first_and_passes_over_names(tmp_path):
    for path in ("b/two", "a/.hidden/three", "a/one", "z"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert found(tmp_path, passes_over=lambda name: name.startswith(".")) == (["z", "a/one", "b/two"], [])


def test_links_are_followed_once_and_not_out_to_the_system(tmp_path):
    top, other = tmp_path / "top", tmp_path / "other"
    (top / "a").mkdir(parents=True)
    other.mkdir()
    (top / "file").touch()
    (other / "file").touch()
    for name, target in (("again", top / "a"), ("back", top), ("other", other), ("proc", "/proc"), ("root", "/")):
        (top / "a" / name).symlink_to(target)
    paths, told = found(top, follows_links=True)
    assert paths == ["file", "a/other/file"]
    assert sorted(path.name for path, _ in told) == ["proc", "root"]
    assert sorted(found(top)[0]) == ["a/again", "a/back", "a/other", "a/proc", "a/root", "file"]


def test_a_walk_has_a_limit_for_what_it_looks_at(tmp_path, monkeypatch):
    monkeypatch.setattr(trees, "MOST_ENTRIES", 3)
    for name in "abcd":
        (tmp_path / name).touch()
    paths, told = found(tmp_path)
    assert paths == []
    assert told == [(tmp_path, "holds more than 3 files and folders; the rest is left out")]


def test_a_folder_that_is_not_there_is_told(tmp_path):
    assert found(tmp_path / "none") == ([], [(tmp_path / "none", "cannot be read: No such file or directory")])
