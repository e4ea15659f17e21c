"""The walls of one worker: its solution's folders, and the user that it becomes."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.own_user import choose_user
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers import enclosure
from flashinfer_bench.bench.runner.workers.enclosure import Enclosure
from flashinfer_bench.bench.runner.workers.process import REMOVE_LIMIT_S
from flashinfer_bench.compile import Artifact

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="confinement is Linux's")]
as_root = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root can be another user")
DIGEST = "ab" * 32


@pytest.fixture
def place():
    """Yield a folder that every user can enter, which pytest's own is not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def make_enclosure(place, user):
    hello = Hello(
        device="cpu",
        hardware="",
        isolated=False,
        timeout_seconds=1.0,
        profile_baseline=False,
        time_budget_s=1.0,
        baseline_budget_s=1.0,
        worker_memory_bytes=None,
        needs_triton=False,
        cache_root=str(place / "cache"),
        has_walls=True,
        sandbox_user=user,
    )
    return Enclosure(hello, {"PATH": "/usr/bin:/root/bin"})


def test_a_worker_reads_its_artifact_and_writes_to_its_solutions_folder(place):
    made = make_enclosure(place, "the session's")
    walls = made.make_walls(DIGEST, place / "artifact", place / "given-1")
    assert {str(place / "artifact"), str(place / "given-1")} <= set(walls.readable)
    assert walls.writable == (str(place / "cache" / "jit" / "ab" / DIGEST),)
    assert not {str(place), str(place / "cache")} & {*walls.readable, *walls.writable}
    assert (walls.user, walls.reads_all_owners) == (None, False)
    own = made.environment(DIGEST)
    assert own["PATH"] == "/usr/bin"
    folders = [value for value in own.values() if value.startswith(str(place))]
    assert len(folders) == 5
    assert all(folder.startswith(walls.writable[0]) for folder in folders)


@as_root
def test_a_user_of_its_own_has_its_folder_and_a_copy_of_an_artifact_that_it_could_not_read(place):
    made = make_enclosure(place, "own")
    walls = made.make_walls(DIGEST, None, place / "given-1")
    assert walls.user == choose_user(DIGEST)
    assert Path(walls.writable[0]).stat().st_uid == walls.user
    assert (
        walls.writable[0] != make_enclosure(place, "the session's").make_walls(DIGEST, None, place / "g2").writable[0]
    )
    files = place / "closed" / "files"
    files.mkdir(parents=True)
    (files / "main.py").write_text("x = 1")
    files.parent.chmod(0o700)
    artifact = made.hand_over(Artifact(files, "main.py", "run", "python"), place / "given-1")
    assert artifact.directory.is_relative_to(place / "given-1")
    assert (artifact.directory / "main.py").read_text() == "x = 1"
    assert (artifact.directory / "main.py").stat().st_mode & 0o004


@as_root
def test_where_its_user_could_not_come_to_its_folder_a_worker_stays_who_it_is(place):
    (place / "cache" / "jit").mkdir(parents=True)
    (place / "cache").chmod(0o700)
    walls = make_enclosure(place, "own").make_walls(DIGEST, None, place / "given-1")
    assert walls.user is None


def test_removing_the_folder_of_a_worker_for_no_solution_has_a_limit(place, monkeypatch):
    removed = []
    monkeypatch.setattr(enclosure, "remove_tree", lambda *how: removed.append(how))
    walls = make_enclosure(place, "own")
    walls.drop_key(walls.make_key(place / "own-1"))
    assert removed == [(place / "own-1", REMOVE_LIMIT_S)]


@pytest.mark.parametrize("is_new", [True, False])
def test_helpers_are_lent_only_into_a_folder_that_no_worker_has_written_to(place, monkeypatch, is_new):
    lent = []
    monkeypatch.setattr(enclosure, "lend_helpers", lambda folder: lent.append(folder) or [])
    made = make_enclosure(place, "the session's")
    folder = made.folder(DIGEST)
    if not is_new:
        folder.mkdir(parents=True)
        (folder / "triton").symlink_to(place)
    made.make_walls(DIGEST, place / "artifact", place / "given-1")
    assert lent == ([folder / "triton"] if is_new else [])


def test_that_modules_are_compiled_is_noted_where_no_worker_writes_for_these_versions_alone(place, monkeypatch):
    made = make_enclosure(place, "the session's")
    made.mark_compiled(DIGEST)  # there is no folder yet
    assert not made.is_marked(DIGEST)
    walls = made.make_walls(DIGEST, None, place / "given-1")
    made.mark_compiled(DIGEST)
    assert made.is_marked(DIGEST)
    assert not made._mark(DIGEST).is_relative_to(walls.writable[0])
    monkeypatch.setattr(enclosure.metadata, "version", lambda _package: "99")
    assert not make_enclosure(place, "the session's").is_marked(DIGEST)


def test_no_folder_of_a_solution_is_read_for_long(place):
    made = make_enclosure(place, "the session's")
    cache = Path(made.environment(DIGEST)["TRITON_CACHE_DIR"])
    assert not made.has_kernels(DIGEST)
    for number in range(3 * enclosure.LOOKED_AT):
        (cache / f"v{number}").mkdir(parents=True)
    assert made.has_kernels(DIGEST)
    assert len(enclosure._some_entries(cache)) == enclosure.LOOKED_AT
