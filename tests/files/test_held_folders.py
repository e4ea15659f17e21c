"""Folders in TMPDIR go with the process that made them, and the next one removes what a killed one left."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flashinfer_bench.base.files.held_folders import hold_folder, sweep_folders, temporary_folder

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


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def test_what_a_killed_process_left_is_removed_once_its_forks_have_ended_too(tmp_path):
    ours, theirs = os.pipe()
    maker = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=ours, stdout=subprocess.PIPE, text=True)
    os.close(ours)
    left = Path(maker.stdout.readline().strip())
    maker.wait()
    maker.stdout.close()
    sweep_folders()
    assert left.parent == tmp_path
    assert left.exists()
    os.close(theirs)  # the fork ends
    while left.exists():
        sweep_folders()


def test_what_is_held_or_is_not_ours_stays(tmp_path):
    others = tmp_path / "flashinfer-bench-old"
    others.mkdir()
    folder, fd = hold_folder("test")
    with temporary_folder("test") as second:
        sweep_folders()
        assert folder.exists()
        assert second.exists()
    assert not second.exists()
    os.close(fd)
    sweep_folders()
    assert list(tmp_path.iterdir()) == [others]


def test_a_link_in_place_of_a_folder_leads_nowhere(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / "flashinfer-bench.run.link").symlink_to(kept)
    sweep_folders()
    assert kept.exists()
