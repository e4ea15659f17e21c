"""A worker that the session does not listen to, that does not listen to it, or that starts processes without end."""

import os
import signal
import threading
import time

import pytest
import torch

from flashinfer_bench.bench.runner.workers import worker_handle
from flashinfer_bench.bench.runner.workers.claims import OutputSpec
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.sandbox.process_tree import read_process
from flashinfer_bench.worker.protocol import Claim
from tests.kit.workers import wait_ready, worker_order

pytestmark = pytest.mark.cpu


def test_a_channel_that_closes_while_the_supervisor_is_late_does_not_keep_a_worker_from_its_end(
    template, tmp_path, monkeypatch
):
    monkeypatch.setattr(worker_handle, "END_LIMIT_S", 0.5)
    worker = WorkerProcess(template, worker_order(), tmp_path / "home")
    wait_ready(worker)
    os.kill(worker.supervisor_pid, signal.SIGSTOP)
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.end().signal == signal.SIGKILL


def test_a_worker_that_reads_no_request_is_late(template, tmp_path):
    with WorkerProcess(template, worker_order(), tmp_path / "home") as worker:
        wait_ready(worker)
        os.kill(worker.pid, signal.SIGSTOP)
        later = threading.Timer(8.0, os.kill, (worker.pid, signal.SIGCONT))
        later.start()
        start = time.monotonic()
        with pytest.raises(WorkerLate):
            worker.ask("recover", Claim, 0.3, filler="x" * (4 << 20))
        assert time.monotonic() - start < 5.0
        later.cancel()


def test_a_worker_that_cannot_be_held_still_in_time_is_ended(template, tmp_path, monkeypatch):
    monkeypatch.setattr(worker_handle, "PAUSE_LIMIT_S", -1.0)
    with WorkerProcess(template, worker_order(), tmp_path / "home") as worker:
        wait_ready(worker)
        with pytest.raises(WorkerGone):
            worker.pause()
            while True:  # it may answer once before its guard gets a core
                worker.ask("recover", Claim, 20.0)


RESUMED_BY_AN_END = """
import ctypes, os, signal, time
def run(x):
    reading, writing = os.pipe()
    if not os.fork():
        if not (child := os.fork()):
            ctypes.CDLL(None).prctl(1, signal.SIGCONT)  # when its parent ends
            while True:
                time.sleep(0.01)
        filled = bytes(b"x" * (256 << 20))
        os.write(writing, b"%d" % child)
        os._exit(0)
    return x + int(os.read(reading, 20))
"""


def test_no_process_that_takes_long_to_end_resumes_a_paused_one(open_kernel):
    one = OutputSpec("y", (1,), torch.float64)
    with open_kernel(RESUMED_BY_AN_END, outputs=(one,)) as kernel:
        child = int(kernel(torch.zeros(1, dtype=torch.float64))[0])
        kernel.worker.pause()
        time.sleep(0.5)
        assert read_process(child).state == "T"
