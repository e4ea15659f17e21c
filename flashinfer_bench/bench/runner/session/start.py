"""The process that sessions are forked from: `python -m flashinfer_bench.bench.runner.session.start FD HOST_PID`.

It ties itself to its host before anything slow is imported. So a host that is killed while torch loads leaves no
process behind. It imports torch once for all sessions of the host, touches no device, and forks a session for each
order. The first sessions import the judge themselves, beside the start of their workers; later ones find it imported.
`starting.py` is the host's side.

An order is a frame {"environment", "folder"} with four descriptors: the session's socket, the lifeline, the
file for what it prints, and a socket on which this process tells how the session fares: {"pid"}, then {"exit"}. Where
the host closes its end of that socket, nobody wants the session: it is killed, or not forked at all.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NoReturn

from flashinfer_bench.base.host import collector_paused
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.processes import die_with_parent, fork, hide_memory

DESCRIPTORS: Final = 4
"""Descriptors that come with an order."""
IDLE_S: Final = 120.0
"""Seconds without a session and without an order after which this process ends."""

OPENING: Final = "flashinfer_bench.bench.runner.session.opening"
"""The module whose `serve_host` is a session, and whose `import_judge` imports what that goes on with."""

Serve = Callable[[int], object]
"""Serves the host on a descriptor, as a session, until the host closes its end."""


def start(fd: int, host_pid: int) -> None:
    """Have the kernel end this process with its host, then fork sessions."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != host_pid:
        return  # the host ended before the kernel was told
    hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    with collector_paused():
        opening = importlib.import_module(OPENING)
    gc.freeze()  # neither sessions nor workers walk what torch has made
    with socket.socket(fileno=fd) as host:
        Starter(host, opening.serve_host, opening.import_judge).run()


class Starter:
    """Forks sessions for one host and tells it how they end.

    Args:
        host: the host's orders come from it.
        serve: what a session does.
        import_more: imports what sessions would import themselves. It is called before any fork but the first ones,
            which somebody has waited for since the start of this process.
    """

    def __init__(self, host: socket.socket, serve: Serve, import_more: Callable[[], object] = lambda: None) -> None:
        self._host = host
        self._serve = serve
        self._import_more = import_more
        self._reader = FrameReader(host)
        self._fds: list[int] = []
        self._has_forked = False
        self._sessions: dict[int, socket.socket] = {}
        """Session's process → where its fate is told."""
        self._killed: set[int] = set()
        """Sessions that nobody wants any more, and that have not been reaped."""
        self._woken, self._wake = os.pipe()

    def run(self) -> None:
        """Serve orders until the host is gone, or idle for IDLE_S."""
        os.set_blocking(self._wake, False)
        os.set_blocking(self._woken, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            limit_s = None if self._sessions else IDLE_S
            sources = [self._host.fileno(), self._woken]
            watched = {control.fileno(): pid for pid, control in self._sessions.items() if pid not in self._killed}
            readable, _, _ = select.select([*sources, *watched], [], [], limit_s)
            if not readable:
                return
            if self._woken in readable:
                with suppress(BlockingIOError):
                    os.read(self._woken, 1 << 12)
            self._kill_unwanted([pid for control, pid in watched.items() if control in readable])
            self._reap()
            if sources[0] in readable:
                try:
                    self._reader.pump()
                except WireClosed:
                    return
                self._take_orders()

    def _take_orders(self) -> None:
        if self._has_forked:
            self._import_more()
        while (order := self._reader.pop()) is not None:
            self._fds += self._reader.take_fds()
            given, self._fds = self._fds[:DESCRIPTORS], self._fds[DESCRIPTORS:]
            if is_unwanted(given[-1]):
                for fd in given:
                    os.close(fd)
                continue
            starter = os.getpid()
            self._has_forked = True
            pid = fork()
            if pid == 0:
                self._become_session(order, given, starter)
            *others, control = given
            for fd in others:
                os.close(fd)
            self._sessions[pid] = socket.socket(fileno=control)
            self._tell(pid, {"pid": pid})

    def _kill_unwanted(self, sessions: list[int]) -> None:
        """Kill sessions whose host has closed its end; none of them is reaped yet, so that the ids are theirs."""
        for pid in sessions:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self._killed.add(pid)

    def _reap(self) -> None:
        """Tell of sessions that have ended. Until it is told, a session's id is nobody else's."""
        for pid in list(self._sessions):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._tell(pid, {"exit": code})
                self._sessions.pop(pid).close()
                self._killed.discard(pid)
                os.waitpid(pid, 0)

    def _tell(self, pid: int, message: dict[str, Any]) -> None:
        with suppress(OSError):  # the host has lost interest in this session
            send_frame(self._sessions[pid], message)

    def _become_session(self, order: dict[str, Any], fds: list[int], starter: int) -> NoReturn:
        """Serve the host in this fresh child of the starter, and end the process with it."""
        code = 1
        try:
            die_with_parent(signal.SIGKILL)
            if os.getppid() == starter:
                self._let_go()
                host, lifeline, output, control = fds
                os.set_inheritable(lifeline, True)
                os.close(control)
                enter(order, output)
                self._serve(host)
                code = 0
        except BaseException:  # the process must end here, whatever happened
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _let_go(self) -> None:
        """Give up what belongs to the starter."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._wake)
        self._host.close()
        for control in self._sessions.values():
            control.close()


def is_unwanted(control: int) -> bool:
    """Tell whether the host has closed its end of a session's socket; it sends nothing on it."""
    readable, _, _ = select.select([control], [], [], 0)
    return bool(readable)


def enter(order: dict[str, Any], output: int) -> None:
    """Take on the surroundings that a host gives a session."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, target)
    os.close(nothing)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["folder"])


if __name__ == "__main__":
    start(int(sys.argv[1]), int(sys.argv[2]))
