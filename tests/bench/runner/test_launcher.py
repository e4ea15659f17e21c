"""Sessions are forked from one process that has imported torch; it ends with its host."""

import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner import launcher
from flashinfer_bench.bench.runner.launcher import ForkServer, Launcher, launcher_for, read_tail
from flashinfer_bench.sandbox.process_tree import is_alive
from tests.kit.processes import wait_until_gone

pytestmark = pytest.mark.cpu


def act(host):
    """What the sessions of these tests do: print their surroundings, then do as their host says."""
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
                ForkServer(theirs, act).run()
            finally:
                os._exit(0)
        theirs.close()
        self.child = child


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Start a session (its variables) → it, its channel, its output, the lifeline's read end."""
    monkeypatch.chdir(tmp_path)
    server = Played()
    opened = []

    def begin(*, waits=False, **environment):
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        session = server.start(environment, theirs.fileno(), writing, output.fileno())
        theirs.close()
        os.close(writing)
        opened.extend([ours, output, session])
        if waits:
            assert not wait_until_gone(lambda: session.pid is None)
        return session, ours, output, reading

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
    session, channel, output, _ = begin(GIVEN="a")
    other, second, printed, _ = begin(GIVEN="b")
    channel.send(word)
    second.send(b"end")
    assert [one.wait(60) for one in (session, other)] == [True, True]
    assert (session.code, other.code) == (code, 0)
    assert session.pid != other.pid
    assert read_tail(output).startswith(f"a {tmp_path} True")
    assert said in read_tail(output)
    assert read_tail(printed) == f"b {tmp_path} True"


@pytest.mark.parametrize("way", ["killed", "server gone"])
def test_a_session_ends_that_nobody_wants_and_its_lifeline_with_it(begin, way):
    session, _, _, lifeline = begin(waits=True)
    pid = session.pid
    if way == "killed":
        session.kill()
        assert (session.code, is_alive(pid)) == (-signal.SIGKILL, False)
        session.kill()  # of no consequence
    else:
        os.kill(begin.server, signal.SIGKILL)
        assert session.wait(60)
        assert session.code is None
        later = begin()[0]
        assert later.wait(60)
        assert (later.pid, later.code) == (None, None)
    assert os.read(lifeline, 1) == b""


def test_a_session_that_is_killed_before_it_is_forked_never_is_and_others_live_on(begin):
    other, channel, _, _ = begin(waits=True, GIVEN="a")
    os.kill(begin.server, signal.SIGSTOP)
    session, _, output, lifeline = begin(GIVEN="b")
    session.kill()
    assert session.pid is None
    os.kill(begin.server, signal.SIGCONT)
    assert session.wait(60)
    assert (session.pid, session.code, read_tail(output), os.read(lifeline, 1)) == (None, None, "", b"")
    assert not other.wait(0)
    channel.send(b"end")
    assert other.wait(60)
    assert other.code == 0


def test_a_session_whose_server_has_ended_before_it_looked_serves_nobody(tmp_path):
    """The kernel would not tell it any more, and it would live on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ours, theirs = socket.socketpair()
        server = ForkServer(ours, lambda host: os.write(writing, b"served"))
        fds = [theirs.fileno(), os.dup(writing), os.open(tmp_path / "said", os.O_CREAT | os.O_RDWR)]
        server._become_session({"environment": {}, "folder": str(tmp_path)}, os.getpid(), *fds)
    os.close(writing)
    assert os.read(reading, 6) == b""
    os.waitpid(child, 0)
    os.close(reading)


def test_a_server_serves_sessions_of_its_thread_whose_libraries_load_alike(monkeypatch):
    class Noted:
        is_there = True

        def __init__(self, environment):
            made.append(self)

        def end(self):
            self.is_there = False

    made = []
    monkeypatch.setattr(launcher, "Launcher", Noted)
    monkeypatch.setattr(launcher, "_LAUNCHERS", {})
    first = launcher_for({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "a"})
    assert launcher_for({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "b"}) is first
    assert launcher_for({"OMP_NUM_THREADS": "2"}) is not first
    first.end()
    again = launcher_for({"OMP_NUM_THREADS": "1"})
    assert again is not first
    thread = threading.Thread(
        target=lambda: launcher_for({"OMP_NUM_THREADS": "1"})
    )  # the kernel ends it with its thread
    thread.start()
    thread.join()
    assert len(made) == 4


def test_a_server_that_was_idle_and_is_about_to_end_is_not_there(monkeypatch, tmp_path):
    (tmp_path / "ends_slowly.py").write_text("import os, sys, time\nos.close(int(sys.argv[1]))\ntime.sleep(1000)\n")
    monkeypatch.setattr(launcher, "MODULE", "ends_slowly")
    server = Launcher({"PYTHONPATH": str(tmp_path)})
    assert not wait_until_gone(lambda: server.is_there)
    assert server.process.poll() is None
    server.end()


def test_a_server_whose_import_fails_is_ended_with_its_session(monkeypatch):
    monkeypatch.setattr(launcher, "MODULE", "this_module_is_nowhere")
    server = Launcher(dict(os.environ))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = server.start({}, theirs.fileno(), theirs.fileno(), theirs.fileno())
        assert session.wait(60)
    server.process.wait()
    assert "this_module_is_nowhere" in server.last_words()
    session.kill()
    server.end()
    session.close()
    assert not wait_until_gone(lambda: server.is_there)
