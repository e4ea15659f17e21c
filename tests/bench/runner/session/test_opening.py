"""What a session's start imports when: nothing slow before it is tied to its host, no judge before workers start."""

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from flashinfer_bench.base.wire import send_frame
from flashinfer_bench.bench.evaluators.inputs import threads
from flashinfer_bench.bench.runner import launcher
from flashinfer_bench.bench.runner.launcher import ForkServer
from flashinfer_bench.bench.runner.session import opening

pytestmark = pytest.mark.cpu

LOADED = """
import importlib, json, sys
from flashinfer_bench.bench.runner import launcher
light = sorted(sys.modules)
opening = importlib.import_module(launcher.OPENING)
opened = sorted(sys.modules)
print(json.dumps([light, opened]))
"""
JUDGE = "flashinfer_bench.bench.evaluators.default"


def test_a_starter_imports_nothing_slow_before_it_is_tied_to_its_host_and_no_judge_before_workers_start():
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    light, opened = (set(names) for names in json.loads(said))
    assert not {"torch", "pydantic", JUDGE} & light
    assert {"torch", "flashinfer_bench.bench.runner.workers.pool"} <= opened
    assert not {JUDGE, "flashinfer_bench.bench.runner.session.device_session"} & opened


def test_sessions_that_somebody_waits_for_are_forked_at_once_and_later_ones_find_the_judge_imported(monkeypatch):
    told = []
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(launcher, "fork", lambda: told.append("fork") or len(told))
    server = ForkServer(theirs, lambda _fd: None, lambda: told.append("import"))
    kept = []
    with ours, theirs:
        for count in (2, 1):
            for _ in range(count):
                fds = [*socket.socketpair(), *socket.socketpair()]
                send_frame(ours, {}, [one.fileno() for one in fds])
                kept += fds
            server._take_requests()
    for one in (*server._sessions.values(), *kept):
        one.close()
    assert told == ["fork", "fork", "import", "fork"]


def test_a_session_beside_a_gpu_computes_in_one_thread_from_its_start(monkeypatch, tmp_path):
    before, made = torch.get_num_threads(), []
    monkeypatch.setattr(threads, "_usual", [])
    monkeypatch.setattr(opening, "make_context", lambda: made.append("context"))
    monkeypatch.delenv("CUDA_CACHE_PATH", raising=False)
    torch.set_num_threads(2)
    try:
        assert opening.start_context(SimpleNamespace(device="cpu", cache_root=tmp_path)) is None
        assert torch.get_num_threads() == 2
        monkeypatch.setenv("CUDA_CACHE_PATH", "")
        opening.start_context(SimpleNamespace(device="cuda", cache_root=tmp_path)).join()
        assert (torch.get_num_threads(), made) == (1, ["context"])
        with threads.usual_threads():
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
