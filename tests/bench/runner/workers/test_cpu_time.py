import os
import signal
import sys
import time

import pytest

from flashinfer_bench.bench.runner.workers.cpu_time import cpu_time_ns, end_account, keep_account, tree_cpu_time_ns
from flashinfer_bench.worker.processor_counter import open_counter

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux names the clock of another process")


def test_computing_counts():
    before, end = cpu_time_ns(os.getpid()), time.process_time() + 0.02
    while time.process_time() < end:
        pass
    assert cpu_time_ns(os.getpid()) - before >= 19_000_000


def test_of_a_process_that_is_not_there_nothing_is_known():
    assert cpu_time_ns(2**22 + 1) is None
    assert cpu_time_ns(None) is None


@pytest.fixture
def counter():
    fd = open_counter()
    if fd is None:
        pytest.skip("this system gives no counter of processor time")
    return fd


def compute(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_a_child_that_nobody_waits_for_counts(counter):
    keep_account(os.getpid(), counter)
    before = tree_cpu_time_ns(os.getpid())
    kept = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    read, write = os.pipe()
    if os.fork() == 0:
        compute(0.02)
        os._exit(0)
    os.close(write)
    os.read(read, 1)  # until it has ended
    os.close(read)
    signal.signal(signal.SIGCHLD, kept)
    after = tree_cpu_time_ns(os.getpid())
    end_account(os.getpid())
    assert after - before >= 19_000_000


def test_a_process_that_the_counter_does_not_hold_counts_while_it_lives(monkeypatch):
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go[0], 1)
        compute(0.02)
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    monkeypatch.setattr("flashinfer_bench.bench.runner.workers.cpu_time.read_counter", lambda fd: 5)
    keep_account(os.getpid(), os.dup(go[0]))
    before = tree_cpu_time_ns(os.getpid())
    os.write(go[1], b"x")
    os.read(ready[0], 1)
    after = tree_cpu_time_ns(os.getpid())
    end_account(os.getpid())
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    for fd in (*ready, *go):
        os.close(fd)
    assert after - before >= 19_000_000
