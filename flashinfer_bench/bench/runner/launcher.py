"""The fork server of sessions: one process imports torch, and every session of the host is forked from it.

So several devices, and successive runs in a program, need only one import. The host's side is `Launcher`. The process
itself is `python -m flashinfer_bench.bench.runner.launcher FD HOST_PID`. The process ties itself to its host before
slow imports, so it ends if the host is killed while torch loads. It uses no device, and ends with the host, or after
some idle minutes. The first sessions import the judge themselves, while their workers start. Later sessions inherit the
imported judge.

A request is a frame {"environment", "folder"} with four descriptors: the session's socket, the lifeline, the file for
its output, and a socket on which the server reports {"pid"}, then {"exit"}. If the host closes its end of that socket
before the fork, no session is forked.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.process_tree import die_with_parent, fork, hide_memory

MODULE: Final = "flashinfer_bench.bench.runner.launcher"
OPENING: Final = "flashinfer_bench.bench.runner.session.opening"
"""The module that runs a session (`serve_host`) and imports the judge (`import_judge`)."""
AT_IMPORT: Final = ("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "LD_", "OPENBLAS_", "CUDA_MODULE_", "MALLOC_")
"""Prefixes of variables that take effect when libraries are loaded. Sessions that differ in these variables are forked
from different servers."""
STDERR_TAIL_BYTES: Final = 4096
FORCE_LIMIT_S: Final = 30.0
"""Seconds for a killed session to end."""
IDLE_S: Final = 120.0
"""A server ends after this many seconds without a request or a session."""
DESCRIPTORS: Final = 4
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

    def start(self, environment: Mapping[str, str], sock: int, lifeline: int, output: int) -> LaunchedSession:
        """Have a session forked; return at once.

        Args:
            sock: the session's end of the channel to its host.
            lifeline: write end of a pipe, which all processes below the session inherit.
            output: the file for the session's output.
        """
        ours, theirs = socket.socketpair()
        request = {"environment": dict(environment), "folder": str(Path.cwd())}
        with theirs, suppress(OSError):  # if the server has ended, the session's channels close
            send_frame(self._sock, request, [sock, lifeline, output, theirs.fileno()])
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
        reports: the socket on which the fork server reports.
    """

    def __init__(self, launcher: Launcher, reports: socket.socket) -> None:
        self.launcher = launcher
        self._reports = reports
        self._reader = FrameReader(reports, takes_fds=False)
        self._pid: int | None = None
        self._has_ended = False
        self.code: int | None = None
        """How it ended: its exit code, or the negative number of a signal."""

    @property
    def pid(self) -> int | None:
        """The session's process id; None until the server has forked the session."""
        self.wait(0)
        return self._pid

    def wait(self, limit_s: float) -> bool:
        """Wait at most `limit_s` seconds for the session to end; return whether it has ended."""
        deadline = time.monotonic() + limit_s
        while not self._has_ended and wait([self._reports], max(0.0, deadline - time.monotonic())):
            try:
                self._reader.pump()
            except WireClosed:  # the server has reported the end, has ended, or has forked no session
                self._has_ended = True
            while (message := self._reader.pop()) is not None:
                self._pid, self.code = message.get("pid", self._pid), message.get("exit")
        return self._has_ended

    def kill(self) -> None:
        """Kill the session, and wait until it has ended. A session that is not forked yet will not be forked."""
        pid = self.pid
        if pid is None:
            with suppress(OSError):
                self._reports.shutdown(socket.SHUT_WR)
        elif not self._has_ended:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.wait(FORCE_LIMIT_S)

    def close(self) -> None:
        """Close the channel to its server."""
        self._reports.close()


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


def launcher_ids() -> set[int]:
    """Return the process ids of this process's servers."""
    return {one.process.pid for key, one in _LAUNCHERS.items() if key[0] == os.getpid()}


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
        ForkServer(host, opening.serve_host, opening.import_judge).run()


class ForkServer:
    """Forks sessions for one host and reports how they end.

    Args:
        import_more: imports modules for later sessions. The server calls it after the first forks, because a user waits
            for the first sessions.
    """

    def __init__(self, host: socket.socket, serve: Serve, import_more: Callable[[], object] = lambda: None) -> None:
        self._host, self._serve, self._import_more = host, serve, import_more
        self._reader = FrameReader(host)
        self._fds: list[int] = []
        self._has_forked = False
        self._sessions: dict[int, socket.socket] = {}
        """Process id of a session → socket for its reports."""

    def run(self) -> None:
        """Serve requests until the host has ended, or was idle for IDLE_S."""
        signal.signal(signal.SIGCHLD, lambda *_: self._reap())
        with suppress(WireClosed):
            while select.select([self._host], [], [], IDLE_S)[0] or self._sessions:
                self._take_requests()

    def _take_requests(self) -> None:
        while is_readable(self._host):
            self._reader.pump()
        if self._has_forked and self._reader.has_frame:
            self._import_more()
        while (request := self._reader.pop()) is not None:
            self._fds += self._reader.take_fds()
            self._start(request, *self._fds[:DESCRIPTORS])
            del self._fds[:DESCRIPTORS]

    def _start(self, request: dict[str, Any], host: int, lifeline: int, output: int, control: int) -> None:
        """Fork a session, unless the host has closed its end of the report socket. The host never writes to that
        socket, so the socket is readable only after the host has closed its end."""
        reports, server = socket.socket(fileno=control), os.getpid()
        if is_readable(reports):
            reports.close()
        else:
            self._has_forked = True
            pid = fork()
            if pid == 0:
                reports.close()
                self._become_session(request, server, host, lifeline, output)
            self._report(reports, {"pid": pid})
            self._sessions[pid] = reports
            self._reap()  # the session may have ended before it was recorded
        for fd in (host, lifeline, output):
            os.close(fd)

    def _reap(self) -> None:
        """Report sessions that have ended. The kernel does not reuse a session's process id before the session is
        reported.

        A signal can call this method while it runs. In this case the inner call does the work.
        """
        for pid in list(self._sessions):
            with suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                reports = self._sessions.pop(pid, None) if ended is not None else None
                if ended is not None and reports is not None:
                    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    self._report(reports, {"exit": code})
                    reports.close()
                    os.waitpid(pid, 0)

    def _report(self, reports: socket.socket, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the host does not wait for this session any more
            send_frame(reports, message)

    def _become_session(self, request: dict[str, Any], server: int, host: int, lifeline: int, output: int) -> NoReturn:
        """Serve the host in this new child of the server, then end this process."""
        code = 1
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() == server:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (self._host, *self._sessions.values()):
                    one.close()
                os.set_inheritable(lifeline, True)
                enter(request, output)
                self._serve(host)
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
