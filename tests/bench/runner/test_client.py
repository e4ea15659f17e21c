"""The end of a session, seen from the host."""

import os
import signal
import time

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import client as session_client
from flashinfer_bench.bench.runner.client import SessionClient
from flashinfer_bench.bench.runner.protocol import BlockOrder, Hello
from flashinfer_bench.sandbox.process_tree import descendants, is_alive

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(120)]


@pytest.fixture
def client(tmp_path):
    """A session that is up."""
    hello = Hello(
        device="cpu",
        hardware="cpu",
        isolated=False,
        timeout_seconds=5.0,
        profile_baseline=False,
        time_budget_s=1.0,
        baseline_budget_s=1.0,
        worker_memory_bytes=None,
        needs_triton=False,
        cache_root=str(tmp_path),
    )
    opened = SessionClient(Device("cpu", 0, "cpu", "cpu"), hello)
    try:
        while not opened.is_ready:
            list(opened.messages())
        yield opened
    finally:
        opened.end()


def wait_for(found, limit_s=60.0):
    deadline = time.monotonic() + limit_s
    while not found() and time.monotonic() < deadline:
        time.sleep(0.01)
    return found()


def test_a_block_that_is_larger_than_the_channel_holds_up_nobody(client):
    os.kill(client._process.pid, signal.SIGSTOP)
    large = BlockOrder(definition={"text": "x" * (4 << 20)}, config={}, solutions={}, jobs=[])
    client.send(large)
    client.drop()
    assert client.has_unsent
    os.kill(client._process.pid, signal.SIGCONT)
    assert wait_for(lambda: client.flush() or not client.has_unsent)
    client.begin()  # nothing is there to begin: the session goes on to wait
    client.end()


def test_a_session_whose_fork_server_is_stopped_is_ended_with_all_below_it(client, monkeypatch):
    monkeypatch.setattr(session_client, "CLOSE_LIMIT_S", 0.2)
    session = client._process.pid
    below = wait_for(lambda: descendants(session))
    assert below
    for pid in below:
        os.kill(pid, signal.SIGSTOP)
    client.end()
    assert not any(is_alive(pid) for pid in below)
