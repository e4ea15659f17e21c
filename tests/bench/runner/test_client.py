"""The host's handle on a session: a single run on a GPU, requests that are not read, the end."""

import errno
import os
import signal
import time
from contextlib import ExitStack, suppress

import pytest

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner import device_lock, launcher
from flashinfer_bench.bench.runner.client import LocalSlots
from flashinfer_bench.bench.runner.device_lock import ask_for_device
from flashinfer_bench.bench.runner.protocol import SessionConfig
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.sandbox.process_tree import descendants, is_alive
from tests.kit.strange import STRANGE

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(120)]
CPU = Device("cpu", 0, "a CPU", "cpu")
GPU, OTHER = Device("cuda", 0, "a GPU", "GPU-1234"), Device("cuda", 1, "a GPU", "GPU-5678")


@pytest.fixture
def client(tmp_path, monkeypatch):
    """A session that is up."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    session_config = {
        "device": "cpu",
        "hardware": "cpu",
        "isolated": False,
        "profile_baseline": False,
        "needs_triton": False,
    }
    limits = {"timeout_seconds": 5.0, "time_budget_s": 1.0, "baseline_budget_s": 1.0, "worker_memory_bytes": None}
    opened = LocalSlots([CPU]).open(CPU, SessionConfig(**session_config, **limits, cache_root=str(tmp_path)))
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


def test_a_session_whose_fork_server_is_stopped_is_ended_with_all_below_it(client, monkeypatch):
    monkeypatch.setattr(launcher, "CLOSE_LIMIT_S", 0.2)
    below = wait_for(lambda: descendants(client._process.pid))
    assert below
    for pid in below:
        with suppress(ProcessLookupError):  # a parent that ends when it has forked
            os.kill(pid, signal.SIGSTOP)
    client.end()
    assert not any(is_alive(pid) for pid in below)


def test_the_folder_of_a_session_that_does_not_end_is_removed(client, tmp_path):
    folders = list(tmp_path.glob("flashinfer-bench.run.*"))
    os.kill(client._process.pid, signal.SIGSTOP)
    client.end()
    assert folders
    assert not any(folder.exists() for folder in folders)


@pytest.fixture
def locks(tmp_path, monkeypatch):
    """The folder of locks."""
    monkeypatch.setattr(device_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path


def test_a_second_run_waits_until_its_limit_or_the_device_is_free_and_says_who_holds_it(locks):
    with ExitStack() as first, ExitStack() as second:
        assert list(ask_for_device(GPU, first)) + list(ask_for_device(OTHER, second)) == []
        path = device_lock.lock_path(GPU)
        assert (path.parent.stat().st_mode & 0o7777, path.stat().st_mode & 0o777) == (0o1777, 0o666)  # of all users
        waiting = ask_for_device(GPU, second, limit_s=0.05)
        assert f"process {os.getpid()}" in next(waiting)
        with pytest.raises(DeviceFault, match=r"cuda:0 was not free within 0\.05 s"):
            list(waiting)
        waiting = ask_for_device(GPU, second)
        next(waiting)
        first.close()
        assert not any(waiting)
        assert list(ask_for_device(CPU, second)) + list(ask_for_device(CPU, second)) == []


def test_the_lock_of_another_user_is_opened_and_not_made(locks, monkeypatch):
    def open_protected(path, flags, *arguments, really=os.open, **options):
        if flags & os.O_CREAT:
            raise PermissionError(errno.EACCES, "as fs.protected_regular has it")
        return really(path, flags, *arguments, **options)

    with ExitStack() as held:
        list(ask_for_device(GPU, held))
    monkeypatch.setattr(os, "open", open_protected)
    with ExitStack() as held:
        assert list(ask_for_device(GPU, held)) == []
        with pytest.raises(DeviceFault, match="cannot be locked"):
            list(ask_for_device(OTHER, held))


@pytest.mark.parametrize("words", STRANGE)
def test_a_foreign_file_in_place_of_a_lock_is_reported_and_neither_waited_for_nor_emptied(locks, words):
    path = device_lock.lock_path(GPU)
    path.parent.mkdir()
    STRANGE[words](path)
    if words == "has more than":
        path.unlink()
        (locks / "kept").write_text("kept")
        path.symlink_to(locks / "kept")
    with ExitStack() as held, pytest.raises(DeviceFault, match="cannot be locked"):
        list(ask_for_device(GPU, held))
    assert words != "has more than" or (locks / "kept").read_text() == "kept"
