"""The fork server of sessions: one process imports torch, and every session of the host is forked from it.

So several devices, and successive runs in a program, need only one import. The host's side is `Launcher`. The process
itself is `python -m flashinfer_bench.bench.runner.launcher FD HOST_PID`. The process ties itself to its host before
slow imports, so it ends if the host is killed while torch loads. It uses no device, and ends with the host, or after
some idle minutes. The first sessions import the judge themselves, while their workers start. Later sessions inherit the
imported judge.

A request is a frame {"environment", "folder"} with three descriptors: the session's socket, the file for its output,
and the socket of the session's supervisor (`sandbox/supervisor.py`), which reports start and end to the host. If the
host closes its end of that socket before the fork, no session is forked. The kernel ends supervisors and sessions with
the server.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.process_tree import die_with_parent, end_tree, hide_memory
from flashinfer_bench.sandbox.supervisor import start_supervisor

MODULE: Final = "flashinfer_bench.bench.runner.launcher"
OPENING: Final = "flashinfer_bench.bench.runner.session.opening"
"""The module that runs a session (`serve_host`) and imports the judge (`import_judge`)."""
AT_IMPORT: Final = ("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "LD_", "OPENBLAS_", "CUDA_MODULE_", "MALLOC_")
"""Prefixes of variables that take effect when libraries are loaded. Sessions that differ in these variables are forked
from different servers."""
STDERR_TAIL_BYTES: Final = 4096
GRACE_S, CLOSE_LIMIT_S, FORCE_LIMIT_S = 3.0, 4.0, 30.0
"""Seconds for the processes below an ended session to end by themselves, for the supervisor to end all, and for the
host to end all."""
IDLE_S: Final = 120.0
"""A server ends after this many seconds without a request or a session."""
DESCRIPTORS: Final = 3
"""Number of file descriptors sent with a request."""

Serve = Callable[[int], object]
"""Runs a session for the host on a descriptor, until the host closes its end."""


def read_tail(file: IO[bytes]) -> str:
    """Return the end of a process's output."""
    if file.closed:
        return ""
    file.seek(max(0, file.seek(0, os.SEEK_END) - STDERR_TAIL_BYTES))
    return file.read().decode("utf-8", "replace").strip()


class Launcher:
    """The host's handle on one fork server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._sock, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )

    @property
    def is_there(self) -> bool:
        """Whether the server can fork another session. An idle server closes its channel before it ends."""
        return self.process.poll() is None and not wait([self._sock], 0)  # the server sends no messages on this channel

    def start(self, environment: Mapping[str, str], sock: int, output: int) -> LaunchedSession:
        """Have a session forked; return at once.

        Args:
            sock: the session's end of the channel to its host.
            output: the file for the session's output.
        """
        ours, theirs = socket.socketpair()
        request = {"environment": dict(environment), "folder": str(Path.cwd())}
        with theirs, suppress(OSError):  # if the server has ended, the session's channels close
            send_frame(self._sock, request, [sock, output, theirs.fileno()])
        return LaunchedSession(self, ours)

    def last_words(self) -> str:
        """Return the end of the server's output."""
        return read_tail(self._output)

    def end(self) -> None:
        """End the server, and every session that it has forked."""
        self.process.kill()
        self.process.wait()
        self._sock.close()
        self._output.close()


class LaunchedSession:
    """The process of one session.

    Args:
        supervisor: the socket of its supervisor.
    """

    def __init__(self, launcher: Launcher, supervisor: socket.socket) -> None:
        self.launcher = launcher
        self._supervisor = supervisor
        self._reader = FrameReader(supervisor, takes_fds=False)
        self._started: dict[str, int] = {}
        self._has_ended = False
        self.code: int | None = None
        """How it ended: its exit code, or the negative number of a signal."""

    @property
    def pid(self) -> int | None:
        """The session's process id; None until the server has forked the session."""
        self.wait(0)
        return self._started.get("started")

    def wait(self, limit_s: float) -> bool:
        """Wait at most `limit_s` seconds for the session and all processes below it to end; return whether they have
        ended."""
        deadline = time.monotonic() + limit_s
        while not self._has_ended and wait([self._supervisor], max(0.0, deadline - time.monotonic())):
            try:
                self._reader.pump()
            except WireClosed:  # the supervisor has ended, or was never forked
                self._has_ended = True
            while (message := self._reader.pop()) is not None:
                if (ended := message.get("exit")) is None:
                    self._started = message
                else:
                    self.code = ended["code"]
        return self._has_ended

    def end(self, patience_s: float = 0.0) -> None:
        """End the session with all processes below it, and wait until they have ended. A session that is not forked yet
        will not be forked.

        Args:
            patience_s: seconds in which the session may end by itself.
        """
        if not self.wait(patience_s):
            with suppress(OSError):
                self._supervisor.send(b"x")
            if self.pid is not None and not self.wait(CLOSE_LIMIT_S):
                end_tree(self._started["supervisor"], FORCE_LIMIT_S)
        self._supervisor.close()


_LAUNCHERS: dict[tuple[Any, ...], Launcher] = {}
"""Process, thread and import settings → server. The kernel ends a server when the thread that started it ends."""


def launcher_for(environment: Mapping[str, str]) -> Launcher:
    """Return a server of this thread that has loaded its libraries under these variables."""
    loading = {name: value for name, value in environment.items() if name.startswith(AT_IMPORT)}
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    key = (os.getpid(), threading.get_native_id(), os.geteuid(), cores, *sorted(loading.items()))
    if key in _LAUNCHERS and not _LAUNCHERS[key].is_there:
        _LAUNCHERS.pop(key).end()
    if key not in _LAUNCHERS:
        _LAUNCHERS[key] = Launcher(environment)
    return _LAUNCHERS[key]


@atexit.register
def end_launchers(thread: int | None = None) -> None:
    """End every server of this process, or of one of its threads."""
    for key in [key for key in _LAUNCHERS if key[0] == os.getpid() and thread in (None, key[1])]:
        _LAUNCHERS.pop(key).end()


# From here on: in the process of the fork server.


def main(fd: int, host_pid: int) -> None:
    """Have the kernel end this process when its host ends, then fork sessions."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != host_pid:
        return  # the host ended before this process was tied to it
    hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    with collector_paused():
        opening = importlib.import_module(OPENING)
    gc.freeze()  # sessions and workers need not scan torch's objects
    with socket.socket(fileno=fd) as host:
        fork_sessions(host, opening.serve_host, opening.import_judge)


def fork_sessions(host: socket.socket, serve: Serve, import_more: Callable[[], object] = lambda: None) -> None:
    """Fork sessions for a host until it has ended, or was idle for IDLE_S.

    Args:
        serve: runs a session.
        import_more: imports modules for later sessions. It is called after the first forks, because a user waits for
            the first sessions.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps supervisors
    reader, has_forked = FrameReader(host), False
    with suppress(WireClosed):
        while select.select([host], [], [], IDLE_S)[0] or has_children():
            while is_readable(host):
                reader.pump()
            if has_forked and reader.has_frame:
                import_more()
            while (request := reader.pop()) is not None:
                own = reader.take_fds(DESCRIPTORS)
                with socket.socket(fileno=os.dup(own[-1])) as control:
                    is_wanted = not is_readable(control)  # the host sends nothing before it ends the session
                if is_wanted:
                    has_forked = True
                    order = {**request, "grace_s": GRACE_S, "memory_limit_bytes": 0, "sandbox": {"for_tool": True}}
                    start_supervisor(order, own, partial(become_session, serve), reader)
                else:
                    for fd in own:
                        os.close(fd)


def has_children() -> bool:
    """Return whether a child of this process, which ignores ended children, is alive."""
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return True
    return False


def become_session(serve: Serve, request: dict[str, Any], fds: Sequence[int], asked: socket.socket) -> NoReturn:
    """Serve the host in this new child of a supervisor, then end this process."""
    code = 1
    try:
        host, output = fds
        die_with_parent(signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        asked.detach()
        enter(request, output)
        os.closerange(3, host)
        os.closerange(host + 1, os.sysconf("SC_OPEN_MAX"))
        serve(host)
        code = 0
    except BaseException:  # the process must end here in any case
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def is_readable(sock: socket.socket) -> bool:
    """Return whether data has arrived, or the other end was closed."""
    return bool(select.select([sock], [], [], 0)[0])


def enter(request: dict[str, Any], output: int) -> None:
    """Apply the environment, folder and output that the host gives to a session."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
