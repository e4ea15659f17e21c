"""A worker and what it started stand still while inputs are written."""

import os
import signal
import sys
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner.workers.stillness import held_still
from flashinfer_bench.worker.linux import tree_below

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the process table of Linux")


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def test_all_below_a_guard_stand_still_and_go_on():
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.fork()
        os.write(write, b"x")
        signal.pause()
    for _ in range(2):
        os.read(read, 1)
    below = tree_below(os.getpid())
    with held_still(os.getpid()):
        stopped = [state_of(pid) for pid in below]
    resumed = [state_of(pid) for pid in below]
    for pid in reversed(below):
        os.kill(pid, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(read)
    os.close(write)
    assert len(below) >= 2
    assert set(stopped) == {"T"}
    assert "T" not in resumed


def test_where_no_guard_is_known_nothing_is_stopped():
    with held_still(None):
        pass
