"""Sessions are forked from one process that has imported torch; it ends with its host."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench.runner import launcher
from flashinfer_bench.bench.runner.launcher import Launcher, fork_sessions, read_tail
from flashinfer_bench.sandbox.process_tree import is_alive
from tests.kit.processes import wait_until_gone

pytestmark = pytest.mark.cpu


def act(host):
    """Print the environment of a session, then follow the host's commands."""
    print(os.environ.get("GIVEN"), Path.cwd(), os.getsid(0) == os.getpid(), flush=True)
    word = os.read(host, 9)
    if word == b"raise":
        raise ValueError("as told")
    if word == b"leave":
        os._exit(7)


class Played(Launcher):
    """A fork server in a fork of this process, which imports nothing."""

    def __init__(self):
        self._sock, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the fixture
        child = os.fork()
        if child == 0:
            try:
                self._sock.close()
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not what the tests' program captures
                fork_sessions(theirs, act)
            finally:
                os._exit(0)
        theirs.close()
        self.child = child


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Start a session (its variables) → it, its channel, its output."""
    monkeypatch.chdir(tmp_path)
    server = Played()
    opened = []

    def begin(*, waits=False, **environment):
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        session = server.start(environment, theirs.fileno(), output.fileno())
        theirs.close()
        opened.extend([ours, output, SimpleNamespace(close=session.end)])
        if waits:
            assert not wait_until_gone(lambda: session.pid is None)
        return session, ours, output

    begin.server = server.child
    yield begin
    for one in opened:
        one.close()
    server._sock.close()
    server._output.close()
    os.waitpid(server.child, 0)


@pytest.mark.parametrize(
    ("word", "code", "said"), [(b"end", 0, ""), (b"raise", 1, "ValueError: as told"), (b"leave", 7, "")]
)
def test_a_session_has_the_surroundings_of_its_request_and_its_end_is_reported(begin, tmp_path, word, code, said):
    session, channel, output = begin(GIVEN="a")
    other, second, printed = begin(GIVEN="b")
    channel.send(word)
    second.send(b"end")
    assert [one.wait(60) for one in (session, other)] == [True, True]
    assert (session.code, other.code) == (code, 0)
    assert session.pid != other.pid
    assert read_tail(output).startswith(f"a {tmp_path} True")
    assert said in read_tail(output)
    assert read_tail(printed) == f"b {tmp_path} True"


def test_the_end_of_a_session_is_noticed_while_one_that_was_requested_with_it_lives(begin):
    os.kill(begin.server, signal.SIGSTOP)
    others = [begin() for _ in range(2)]
    os.kill(begin.server, signal.SIGCONT)
    for session, channel, _ in reversed(others):
        assert not wait_until_gone(lambda session=session: session.pid is None)
        os.kill(session.pid, signal.SIGKILL)
        assert channel.recv(1) == b""
        assert session.wait(60)
        assert session.code == -signal.SIGKILL


@pytest.mark.parametrize("way", ["killed", "server gone"])
def test_an_unwanted_session_ends(begin, way):
    session = begin(waits=True)[0]
    pid = session.pid
    if way == "killed":
        session.end()
        assert (session.code, is_alive(pid)) == (-signal.SIGKILL, False)
    else:
        os.kill(begin.server, signal.SIGKILL)
        assert session.wait(60)
        assert session.code is None
        later = begin()[0]
        assert later.wait(60)
        assert (later.pid, later.code) == (None, None)
    assert not wait_until_gone(lambda: is_alive(pid))


def test_a_server_whose_import_fails_is_ended_with_its_session(monkeypatch):
    monkeypatch.setattr(launcher, "MODULE", "this_module_is_nowhere")
    server = Launcher(dict(os.environ))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = server.start({}, theirs.fileno(), theirs.fileno())
        assert session.wait(60)
    server.process.wait()
    assert "this_module_is_nowhere" in server.last_words()
    session.end()
    server.end()
    assert not wait_until_gone(lambda: server.is_there)


LOADED = """
import importlib, json, sys
from flashinfer_bench.bench.runner import launcher
light = sorted(sys.modules)
importlib.import_module(launcher.OPENING)
print(json.dumps([light, sorted(sys.modules)]))
"""
JUDGE = "flashinfer_bench.bench.evaluators.default"


def test_a_server_imports_nothing_slow_before_it_is_tied_to_its_host_and_no_judge_before_workers_start():
    said = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    light, opened = (set(names) for names in json.loads(said))
    assert not {"torch", "pydantic", JUDGE} & light
    assert {"torch", "flashinfer_bench.bench.runner.workers.pool"} <= opened
    assert not {JUDGE, "flashinfer_bench.bench.runner.session.device_session"} & opened
