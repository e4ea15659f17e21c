"""Sessions are forked from one process that has imported torch; it ends with its host."""

import os
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from flashinfer_bench.bench.runner import starting
from flashinfer_bench.bench.runner.session.start import Starter
from flashinfer_bench.bench.runner.starting import SessionStarter, starter_for
from flashinfer_bench.sandbox.processes import is_alive
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


class Played(SessionStarter):
    """A starter in a fork of this process, which imports nothing."""

    def __init__(self):
        self._sock, theirs = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the fixture
        child = os.fork()
        if child == 0:
            try:
                self._sock.close()
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not what the tests' program captures
                Starter(theirs, act).run()
            finally:
                os._exit(0)
        theirs.close()
        self.child = child


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Start a session (its variables) → it, its channel, what it prints, the lifeline's read end."""
    monkeypatch.chdir(tmp_path)
    starter = Played()
    opened = []

    def begin(**environment):
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115 - closed below
        session = starter.start(environment, theirs.fileno(), writing, output.fileno())
        theirs.close()
        os.close(writing)
        opened.extend([ours, output, session])
        return session, ours, output, reading

    begin.starter = starter
    yield begin
    for one in opened:
        one.close()
    starter._sock.close()
    starter._output.close()
    os.waitpid(starter.child, 0)


def test_a_session_has_the_surroundings_of_its_order(begin, tmp_path):
    session, channel, output, _ = begin(GIVEN="a")
    other, second, said, _ = begin(GIVEN="b")
    for one, sock in ((session, channel), (other, second)):
        sock.send(b"end")
        assert one.wait(60)
    assert (session.code, other.code) == (0, 0)
    assert session.pid != other.pid
    assert starting.read_tail(output) == f"a {tmp_path} True"
    assert starting.read_tail(said) == f"b {tmp_path} True"


@pytest.mark.parametrize(("word", "code", "said"), [(b"raise", 1, "ValueError: as told"), (b"leave", 7, "")])
def test_how_a_session_ended_is_told(begin, word, code, said):
    session, channel, output, _ = begin()
    channel.send(word)
    assert session.wait(60)
    assert session.code == code
    assert said in starting.read_tail(output)


def test_a_killed_session_is_gone_and_its_lifeline_with_it(begin):
    session, _, _, lifeline = begin()
    while session.pid is None:
        session.wait(0.1)
    session.kill()
    assert session.code == -signal.SIGKILL
    assert not is_alive(session.pid)
    assert os.read(lifeline, 1) == b""
    session.kill()  # of no consequence


def test_a_session_that_is_killed_before_it_is_forked_never_is_and_others_live_on(begin):
    other, channel, _, _ = begin(GIVEN="a")
    while other.pid is None:
        other.wait(0.1)
    os.kill(begin.starter.child, signal.SIGSTOP)
    session, _, output, lifeline = begin(GIVEN="b")
    session.kill()
    assert session.pid is None
    os.kill(begin.starter.child, signal.SIGCONT)
    assert session.wait(60)
    assert (session.pid, session.code, starting.read_tail(output)) == (None, None, "")
    assert os.read(lifeline, 1) == b""
    assert not other.wait(0)
    channel.send(b"end")
    assert other.wait(60)
    assert other.code == 0


def test_a_session_whose_host_has_closed_its_channel_is_killed(begin):
    session, _, _, lifeline = begin()
    while session.pid is None:
        session.wait(0.1)
    session.close()
    assert os.read(lifeline, 1) == b""


def test_sessions_end_with_their_starter(begin):
    session, _, _, lifeline = begin()
    while session.pid is None:
        session.wait(0.1)
    os.kill(begin.starter.child, signal.SIGKILL)
    assert session.wait(60)
    assert session.code is None
    assert os.read(lifeline, 1) == b""


def test_a_session_whose_starter_has_ended_before_it_looked_serves_nobody(tmp_path):
    """The kernel would not tell it any more, and it would live on."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ours, theirs = socket.socketpair()
        starter = Starter(ours, lambda host: os.write(writing, b"served"))
        fds = [theirs.fileno(), os.dup(writing), os.open(tmp_path / "said", os.O_CREAT | os.O_RDWR), os.dup(writing)]
        starter._become_session({"environment": {}, "folder": str(tmp_path)}, fds, starter=os.getpid())
    os.close(writing)
    assert os.read(reading, 6) == b""
    os.waitpid(child, 0)
    os.close(reading)


def test_an_order_to_one_that_has_ended_is_a_session_that_has_ended(begin):
    os.kill(begin.starter.child, signal.SIGKILL)
    os.waitid(os.P_PID, begin.starter.child, os.WEXITED | os.WNOWAIT)
    session, _, _, _ = begin()
    assert session.wait(60)
    assert (session.pid, session.code) == (None, None)


@pytest.fixture
def started(monkeypatch):
    """Return the environments that starters were started with; none of them runs."""
    environments = []

    class Noted:
        is_there = True

        def __init__(self, environment):
            environments.append(environment)

        def end(self):
            self.is_there = False

    monkeypatch.setattr(starting, "SessionStarter", Noted)
    monkeypatch.setattr(starting, "_STARTERS", {})
    return environments


def test_a_starter_serves_sessions_whose_libraries_load_alike(started):
    first = starter_for({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "a"})
    assert starter_for({"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "b"}) is first
    assert starter_for({"OMP_NUM_THREADS": "2"}) is not first
    first.end()
    assert starter_for({"OMP_NUM_THREADS": "1"}) is not first
    assert len(started) == 3


def test_each_thread_has_a_starter_since_the_kernel_ends_it_with_its_thread(started):
    found = [starter_for({})]
    thread = threading.Thread(target=lambda: found.append(starter_for({})))
    thread.start()
    thread.join()
    assert found[0] is not found[1]


def test_one_that_was_idle_and_is_about_to_end_is_not_there(monkeypatch, tmp_path):
    (tmp_path / "ends_slowly.py").write_text("import os, sys, time\nos.close(int(sys.argv[1]))\ntime.sleep(1000)\n")
    monkeypatch.setattr(starting, "MODULE", "ends_slowly")
    starter = SessionStarter({"PYTHONPATH": str(tmp_path)})
    assert not wait_until_gone(lambda: starter.is_there)
    assert starter._process.poll() is None
    starter.end()


def test_one_whose_import_does_not_end_is_ended_with_its_session(monkeypatch):
    monkeypatch.setattr(starting, "MODULE", "this_module_is_nowhere")
    starter = SessionStarter(dict(os.environ))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        session = starter.start({}, theirs.fileno(), theirs.fileno(), theirs.fileno())
        assert session.wait(60)
    starter._process.wait()
    assert "this_module_is_nowhere" in starter.last_words()
    session.kill()
    starter.end()
    session.close()
    assert not wait_until_gone(lambda: starter.is_there)
