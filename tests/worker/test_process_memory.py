"""What the kernel tells of a process's memory, which may have any name, and may have lost its first thread."""

import errno
import os
import signal
import socket
import subprocess
import sys
import textwrap

import pytest

from flashinfer_bench.worker import guard
from flashinfer_bench.worker.filter import asked_calls
from flashinfer_bench.worker.filter.asked_calls import AskedCalls
from flashinfer_bench.worker.linux import hidden_memory, proportional_memory, read_kilobytes, resident_memory

pytestmark = [pytest.mark.cpu, pytest.mark.skipif(sys.platform != "linux", reason="the files are Linux's")]
MEGABYTE = 1 << 20
HOLDS = """
import ctypes, os, sys, threading, time
libc = ctypes.CDLL(None)
held = bytearray(64 << 20)
held[::4096] = b"x" * len(held[::4096])
"""


class Plain:
    """A module some of whose functions only give a value."""

    def __init__(self, module, **given):
        self._module, self._given = module, given

    def __getattr__(self, name):
        if name in self._given:
            return lambda *_, **__: self._given[name]
        return getattr(self._module, name)


class Unused:
    """A socket that nobody uses."""

    def close(self):
        """Do nothing."""


@pytest.fixture
def start():
    """Start a program that writes a line once it is to be looked at; return its process id."""
    started = []

    def begin(source):
        program = subprocess.Popen([sys.executable, "-c", HOLDS + textwrap.dedent(source)], stdout=subprocess.PIPE)
        started.append(program)
        assert program.stdout.readline() == b"ready\n"
        return program.pid

    yield begin
    for program in started:
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()


@pytest.mark.parametrize("name", [b"RssAnon: z", b"\rRssAnon: z", b"\x0bRssAnon:1 kB", b"\x85RssAnon: 1"])
def test_a_name_is_no_line(start, name):
    pid = start(f"""
        libc.prctl(15, {name!r}, 0, 0, 0)
        print("ready", flush=True)
        time.sleep(60)
    """)
    assert 64 * MEGABYTE < resident_memory(pid).private < 256 * MEGABYTE
    assert 64 * MEGABYTE < proportional_memory(pid).private < 256 * MEGABYTE


def test_a_process_whose_first_thread_has_ended_holds_what_it_held(start):
    pid = start("""
        def tell():
            while "State:\\tZ" not in open("/proc/self/status").read():
                time.sleep(0.01)
            os.write(1, b"ready\\n")
            time.sleep(60)
        libc.prctl(15, b"\\rRssAnon: z", 0, 0, 0)
        threading.Thread(target=tell).start()
        libc.syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    """)
    assert 64 * MEGABYTE < resident_memory(pid).private < 256 * MEGABYTE
    assert 64 * MEGABYTE < proportional_memory(pid).private < 256 * MEGABYTE


def test_memory_that_no_process_shows_is_what_is_left_of_the_machines(tmp_path):
    told = tmp_path / "meminfo"
    told.write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 300 kB\nAnonPages:   400 kB\nShmem: 7 kB\n")
    assert hidden_memory(told)[0] == 300 * 1024


@pytest.mark.parametrize("told", ["", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: 3 kB\n"])
def test_a_kernel_that_does_not_tell_hides_nothing(tmp_path, told):
    (tmp_path / "meminfo").write_text(told)
    assert hidden_memory(tmp_path / "meminfo") == hidden_memory(tmp_path / "none") == (0, 0)


def test_of_a_process_that_is_gone_nothing_is_known():
    assert resident_memory(1 << 30).private == proportional_memory(1 << 30).private == 0


@pytest.mark.parametrize(
    "status", [b"", b"Name:\tRssAnon:\t5 kB\n", b"RssAnon:\tz\n", b"RssAnon:\t5\n", b"xRssAnon:\t5 kB\n"]
)
def test_only_a_line_of_the_kernels_form_tells_a_size(status):
    assert read_kilobytes(status, b"RssAnon") is None
    assert read_kilobytes(status + b"\nRssAnon:\t       7 kB\n", b"RssAnon") == 7 * 1024


@pytest.mark.parametrize("error", [OverflowError("a time"), ValueError("a word"), KeyError("a name")])
@pytest.mark.parametrize(("name", "judge"), [("utimensat", "change_file"), ("kill", "judge_call")])
def test_whatever_a_guard_is_asked_with_is_answered(monkeypatch, error, name, judge):
    def fail(*_):
        raise error

    given = []
    monkeypatch.setattr(asked_calls, judge, fail)
    monkeypatch.setattr(asked_calls, "BY_THE_GUARD", {"utimensat"})
    monkeypatch.setattr(asked_calls.fcntl, "ioctl", lambda _, code, data: given.append((code, bytes(data))))
    asked = AskedCalls(None)
    asked._names = {0: name}
    asked._answer(-1)
    code, answer = given[-1]
    assert code == asked_calls.SEND
    assert asked_calls.ANSWER.unpack(answer) == (0, 0, -errno.EINVAL, 0)


def test_a_guard_that_fails_ends_what_is_below_it_first(monkeypatch):
    ended = []

    def fail(*_):
        raise ValueError("what no guard expects")

    monkeypatch.setattr(guard.Watch, "until_end", fail)
    monkeypatch.setattr(guard, "end_descendants", lambda **_: ended.append(os.getpid()))
    for name in ("adopt_orphans", "enter_outer_domain", "report"):
        monkeypatch.setattr(guard, name, lambda *_, **__: False)
    monkeypatch.setattr(guard, "os", Plain(os, setsid=None, pipe=(-1, -1), set_blocking=None, close=None))
    monkeypatch.setattr(guard, "signal", Plain(signal, set_wakeup_fd=-1, signal=None))
    monkeypatch.setattr(guard, "socket", Plain(socket, socketpair=(Unused(), Unused()), socket=Unused()))
    monkeypatch.setattr(guard, "AskedCalls", lambda *_: None)
    with pytest.raises(ValueError, match="no guard expects"):
        guard.run_guard({"memory_limit_bytes": 0}, [0, 1, 2, 3], lambda: 1)
    assert ended == [os.getpid()]
