"""A worker and what it started stand still while inputs are written."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from flashinfer_bench.bench.runner.workers.stillness import Stillness
from flashinfer_bench.worker.linux import tree_below

X = torch.arange(1.0, 5.0)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the process table of Linux")


def states_of(pids):
    return {Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] for pid in pids}


def wait_for(pids, is_wanted):
    """Return what the processes do; on a busy machine one takes note of a signal late."""
    deadline = time.monotonic() + 10
    while not is_wanted(states := states_of(pids)) and time.monotonic() < deadline:
        os.sched_yield()
    return states


def test_all_below_a_guard_stand_still_and_go_on():
    read, write = os.pipe()
    if (guard := os.fork()) == 0:
        if os.fork() == 0:
            os.fork()
            os.write(write, b"x")
        signal.pause()
    for _ in range(2):
        os.read(read, 1)
    below = tree_below(guard)
    child = below[0]
    stillness = Stillness(guard, child)
    stillness.rest()
    known = wait_for([child], {"T"}.__eq__)
    stillness.rest_all()
    stopped = wait_for(below, {"T"}.__eq__)
    stillness.wake()
    resumed = wait_for(below, lambda states: "T" not in states)
    for pid in reversed(below):
        os.kill(pid, signal.SIGKILL)
    os.kill(guard, signal.SIGKILL)
    os.waitpid(guard, 0)
    os.close(read)
    os.close(write)
    assert len(below) == 2
    assert known == stopped == {"T"}
    assert "T" not in resumed


def test_a_worker_stands_still_after_its_answer_and_answers_again(open_kernel):
    with open_kernel("def run(x):\n    return x * 2") as kernel:
        kernel(X)
        with kernel.worker.resting():
            kernel(X)
            resting = wait_for([kernel.worker.pid], {"T"}.__eq__)
            (again,) = kernel(X)
        awake = wait_for([kernel.worker.pid], lambda states: "T" not in states)
    assert (resting, "T" in awake, again.tolist()) == ({"T"}, False, [2.0, 4.0, 6.0, 8.0])


def test_a_process_that_is_gone_is_let_be():
    stillness = Stillness(os.getpid(), 2**22 + 1)
    stillness.rest()
    stillness.wake()
