"""Locks on extensions that an ended worker has left are removed, and those of a worker that lives are not."""

import subprocess
import sys

import pytest

from flashinfer_bench.worker.jit import left_locks
from flashinfer_bench.worker.jit.left_locks import enter_extensions

pytestmark = pytest.mark.cpu
USER = """
import sys, time
from pathlib import Path
from flashinfer_bench.worker.jit.left_locks import enter_extensions
enter_extensions(Path(sys.argv[1]))
Path(sys.argv[1], "twice").mkdir()
Path(sys.argv[1], "twice", "lock").touch()
print("builds", flush=True)
time.sleep(600)
"""


@pytest.fixture
def builder(tmp_path):
    """A process that builds an extension, and has said so."""
    with subprocess.Popen([sys.executable, "-c", USER, str(tmp_path / "torch")], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"builds\n"
        yield process
        process.kill()


def test_the_lock_of_one_that_was_killed_is_removed_and_that_of_another_stays(tmp_path, monkeypatch, builder):
    monkeypatch.setattr(left_locks, "PATIENCE_S", 0.2)
    lock = tmp_path / "torch" / "twice" / "lock"
    enter_extensions(tmp_path / "torch")
    assert lock.exists()
    builder.kill()
    builder.wait()
    command = [sys.executable, "-c", USER.replace("mkdir()", "mkdir(exist_ok=True)").split("Path(sys.argv[1], ")[0]]
    subprocess.run([*command, str(tmp_path / "torch")], check=True)
    assert lock.exists()  # this process uses the folder, too


def test_one_that_is_about_to_end_is_waited_for(tmp_path, builder):
    lock = tmp_path / "torch" / "twice" / "lock"
    builder.kill()
    enter_extensions(tmp_path / "torch")
    assert not lock.exists()


@pytest.mark.parametrize("kind", ["file", "dangling", "folder"])
def test_what_a_solution_puts_in_the_way_harms_nobody(tmp_path, kind):
    folder = tmp_path / "torch"
    if kind == "file":
        folder.write_text("x")
    else:
        folder.mkdir()
        (folder / "twice").mkdir()
        (folder / "twice" / "lock").mkdir()
        if kind == "dangling":
            (folder / left_locks.IN_USE).symlink_to(tmp_path / "elsewhere")
    enter_extensions(folder)
    assert not (tmp_path / "elsewhere").exists()
