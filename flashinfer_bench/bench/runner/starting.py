"""Starts sessions, as the host sees it: one process imports torch, and every session of the host is forked from it.

So several devices, and runs that follow one another in a program, pay one import. `session/start.py` is that process.
It ends with the host, or when it was idle for two minutes.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Final

from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame

MODULE: Final = "flashinfer_bench.bench.runner.session.start"
AT_IMPORT: Final = ("PYTHON", "OMP_", "GOMP_", "KMP_", "MKL_", "TORCH", "LD_", "OPENBLAS_", "CUDA_MODULE_", "MALLOC_")
"""Variables that begin with one of these count when libraries are loaded. Sessions that differ in them have
different starters."""
STDERR_TAIL_BYTES: Final = 4096
FORK_LIMIT_S: Final = 0.2
"""Seconds in which a starter forks a session, or kills one that nobody wants. One that says nothing for longer is still
importing: it will fork nothing for a session that is not wanted any more."""
FORCE_LIMIT_S: Final = 30.0
"""Seconds that a killed session may take to be gone."""


def read_tail(file: IO[bytes]) -> str:
    """Return the end of what a process has printed into a file."""
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - STDERR_TAIL_BYTES))
    return file.read().decode("utf-8", "replace").strip()


class SessionStarter:
    """One process that forks sessions.

    Args:
        environment: the variables that it is started with.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its id."""
        return self._process.pid

    @property
    def is_there(self) -> bool:
        """Whether it can fork another session. One that was idle closes its channel, and then takes a while to end."""
        if self._process.poll() is not None:
            return False
        return not wait([self._sock], 0)  # it never says anything here

    def start(self, environment: Mapping[str, str], sock: int, lifeline: int, output: int) -> StartedSession:
        """Have a session forked; return at once.

        Args:
            environment: the session's variables.
            sock: the session's end of the channel to its host.
            lifeline: held by everything below the session.
            output: the file for what it prints.
        """
        ours, theirs = socket.socketpair()
        order: dict[str, object] = {"environment": dict(environment), "folder": str(Path.cwd())}
        with theirs, suppress(OSError):  # it has ended: the session's channels close, which says so
            send_frame(self._sock, order, [sock, lifeline, output, theirs.fileno()])
        return StartedSession(self, ours)

    def last_words(self) -> str:
        """Return the end of what it printed."""
        return "" if self._output.closed else read_tail(self._output)

    def end(self) -> None:
        """End it, and with it every session that it has forked."""
        self._process.kill()
        self._process.wait()
        self._sock.close()
        self._output.close()


class StartedSession:
    """The process of one session.

    Args:
        starter: forks it.
        told: where the starter tells how it fares.
    """

    def __init__(self, starter: SessionStarter, told: socket.socket) -> None:
        self.starter = starter
        self._told = told
        self._reader = FrameReader(told, takes_fds=False)
        self._pid: int | None = None
        self.code: int | None = None
        """How it ended: its exit code, or the number of a signal below zero."""
        self._has_ended = False

    @property
    def pid(self) -> int | None:
        """Its id; None while its starter is importing, and where it was never started."""
        self.wait(0)
        return self._pid

    def wait(self, limit_s: float) -> bool:
        """Wait until it has ended; say whether it has."""
        deadline = time.monotonic() + limit_s
        while not self._has_ended:
            if not self._hear(max(0.0, deadline - time.monotonic())):
                break
        return self._has_ended

    def _hear(self, limit_s: float) -> bool:
        """Take what the starter tells next; say whether it told anything before the limit."""
        if not wait([self._told], limit_s):
            return False
        try:
            self._reader.pump()
        except WireClosed:  # its starter is gone, or has forked nothing: there is no session
            self._has_ended = True
        while (message := self._reader.pop()) is not None:
            self._pid = message.get("pid", self._pid)
            if "exit" in message:
                self.code, self._has_ended = message["exit"], True
        return True

    def kill(self) -> None:
        """Kill it, and wait until it is gone. One that is not forked yet never will be; its starter goes on."""
        with suppress(OSError):
            self._told.shutdown(socket.SHUT_WR)  # the starter kills what it has forked for this, now or later
        deadline = time.monotonic() + FORK_LIMIT_S
        while self.pid is None and not self._has_ended and time.monotonic() < deadline:
            self._hear(max(0.0, deadline - time.monotonic()))
        if self._pid is None or self.wait(FORK_LIMIT_S):
            return
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)  # its starter is stopped
        self.wait(FORCE_LIMIT_S)

    def close(self) -> None:
        """Give up the channel to its starter."""
        self._told.close()


Key = tuple[object, ...]
_STARTERS: dict[Key, SessionStarter] = {}


def starter_for(environment: Mapping[str, str]) -> SessionStarter:
    """Return a process of this thread that forks sessions whose libraries were loaded under these variables.

    The kernel ends it with the thread that started it, so each thread has its own.
    """
    loading = {name: value for name, value in environment.items() if name.startswith(AT_IMPORT)}
    cores = tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()
    key = (os.getpid(), threading.get_native_id(), os.geteuid(), cores, *sorted(loading.items()))
    known = _STARTERS.get(key)
    if known is None or not known.is_there:
        if known is not None:
            known.end()
        _STARTERS[key] = SessionStarter(environment)
    return _STARTERS[key]


def starter_ids() -> set[int]:
    """Return the ids of the processes that fork sessions for this one."""
    return {starter.pid for key, starter in _STARTERS.items() if key[0] == os.getpid()}


def end_starters_of_thread() -> None:
    """End the processes that fork sessions for this thread."""
    mine = [key for key in _STARTERS if key[:2] == (os.getpid(), threading.get_native_id())]
    for key in mine:
        _STARTERS.pop(key).end()


@atexit.register
def end_starters() -> None:
    """End every process that forks sessions for this one."""
    mine = [key for key in _STARTERS if key[0] == os.getpid()]
    for key in mine:
        _STARTERS.pop(key).end()
