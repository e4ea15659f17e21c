"""A cache in which somebody left pipes, devices, links and deep folders: nothing waits, and nothing fails whole."""

from __future__ import annotations

import os

import pytest

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.cli.main import cli as main
from flashinfer_bench.compile import BuildFarm, BuildFault, build_solution
from flashinfer_bench.compile import building as building_module
from flashinfer_bench.compile import cache as cache_module
from flashinfer_bench.compile.cache import ArtifactCache, Lease, find_stranger, leased_digests
from tests.kit.make import make_solution
from tests.kit.native import make_native, pretend_compiler
from tests.kit.strange import STRANGE


def make_deep(top):
    """Make folders below a folder, deeper than Python recurses."""
    top.mkdir(parents=True, exist_ok=True)
    fd = os.open(top, os.O_RDONLY)
    for _ in range(1100):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


@pytest.fixture
def built(tmp_path):
    """The folder of an artifact, which holds `files/main.py` and a manifest."""
    return build_solution(make_solution(), tmp_path).directory.parent


@pytest.mark.parametrize("words", STRANGE)
@pytest.mark.parametrize("name", ["manifest.json", "files/main.py"])
def test_an_artifact_with_a_strange_file_is_damaged_and_made_again(tmp_path, built, name, words):
    (built / name).unlink()
    STRANGE[words](built / name)
    (problem,) = ArtifactCache(tmp_path).verify()
    assert problem.digest == built.name
    build_solution(make_solution(), tmp_path)
    assert ArtifactCache(tmp_path).verify() == []


@pytest.fixture
def deep(tmp_path, built):
    """A folder in an artifact, deeper than Python recurses; it is gone afterwards, since pytest cannot remove it."""
    make_deep(built / "files" / "deep")
    yield
    remove_tree(built)


@pytest.mark.usefixtures("deep")
def test_every_command_of_the_cache_ends_where_folders_are_deep_and_clear_removes_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("FIB_CACHE_PATH", str(tmp_path))
    (tmp_path / "artifacts" / "00" / "stray").mkdir(parents=True)
    assert find_stranger(next((tmp_path / "artifacts").glob("*/*/files")), ["main.py"]) is not None
    assert main(["cache", "show"]) == 0
    assert main(["cache", "verify"]) == 1
    assert main(["cache", "clear"]) == 0
    assert "removed 2 artifacts" in capsys.readouterr().out
    assert list((tmp_path / "artifacts").glob("*/*")) == []


def test_what_stands_in_place_of_artifacts_locks_and_leases_does_not_hold_clear_up(tmp_path, built):
    for folder in ("locks", "leases", "staging"):
        (tmp_path / folder).mkdir(exist_ok=True)
        for number, put in enumerate(STRANGE.values()):
            put(tmp_path / folder / f"strange{number}")
    for number, put in enumerate(STRANGE.values()):
        (tmp_path / "artifacts" / f"0{number}").mkdir()
        put(tmp_path / "artifacts" / f"0{number}" / "strange")
    cache = ArtifactCache(tmp_path)
    assert len(cache.entries()) == 1 + len(STRANGE)
    assert leased_digests(tmp_path) == set()
    assert cache.clear() == (1 + len(STRANGE), 0)
    assert list((tmp_path / "artifacts").glob("*/*")) == []


def test_a_lease_that_became_a_pipe_is_a_fault_of_the_cache(tmp_path):
    with Lease(tmp_path) as lease:
        (path,) = (tmp_path / "leases").iterdir()
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(OSError):
            lease.add("digest")


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path, built, monkeypatch):
    monkeypatch.setattr(cache_module, "MOST_FILE_BYTES", 3)
    (problem,) = ArtifactCache(tmp_path).verify()
    assert "cannot be read: it has more than 3 bytes" in problem.reason


def test_a_lock_that_is_held_for_ever_ends_in_a_fault(tmp_path, monkeypatch):
    monkeypatch.setattr(building_module, "USUAL_LIMIT_S", 0.02)
    monkeypatch.setattr(building_module, "PROBE_LIMIT_S", -1e9)
    python, native = make_solution(), make_native("s")
    with BuildFarm(tmp_path / "cache", toolchain=pretend_compiler(tmp_path)) as farm:
        for solution in (python, native):
            held = ArtifactCache(tmp_path / "cache").lock(farm._make(solution).recipe.digest)
            held.wait(0.0)
            (found,) = farm.build_all([solution])
            held.release()
            assert isinstance(found.error, BuildFault)
            assert "held" in str(found.error)
            assert str(held.path) in str(found.error)
