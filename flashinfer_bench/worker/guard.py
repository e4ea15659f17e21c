"""The guard: the parent of exactly one worker, alive a moment longer than it.

It adopts whatever the worker leaves behind, kills it, and tells the session how the worker ended. It speaks over
one socket:

    guard → session   {"started": pid, "guard": its own pid}, on a CPU with the counter of the worker's processor time
                      {"exit": {"code": int or null, "signal": int or null, "leftover": int, "over_memory": bool}}
    session → guard   any byte, or the end of the stream: end the worker now

The worker is ended as a whole: its process group first, then every descendant that moved to a group of its own. Where
the kernel lets a guard and its worker have a domain for signals, all in that are killed at once. Else the guard kills
what it sees, with the groups of that: a process that only forks and ends is gone by then, its group is not. The guard
ends when none is left; where it does not, the session ends it and them.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any, Final

from flashinfer_bench.worker.filter.asked_calls import AskedCalls
from flashinfer_bench.worker.linux import (
    Memory,
    adopt_orphans,
    ancestors,
    descendants,
    kill_with_groups,
    proportional_memory,
    resident_memory,
)
from flashinfer_bench.worker.main import run_worker
from flashinfer_bench.worker.privileges import enter_outer_domain, kill_domain
from flashinfer_bench.worker.wire import send_frame

POLL_S: Final = 0.05
TREE_POLL_S: Final = 0.5
"""Seconds between two looks at the memory of all processes below the guard."""
MOST_REAPED: Final = 1000
"""Reap at most this many processes in one turn: a worker may make orphans without end, and the guard has more to do."""


def run_guard(order: dict[str, Any], fds: list[int], fork: Callable[[], int]) -> None:
    """Fork the worker, watch it to its end, clean up after it and report."""
    worker_fd, out_fd, err_fd, guard_fd = fds
    os.setsid()
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ours, theirs = socket.socketpair()
    walls = order.get("walls") or {}
    is_apart = not walls.get("openings") and enter_outer_domain(has_walls=bool(walls))  # a tool's worker may mount
    pid = fork()
    if pid == 0:
        run_worker(order, (worker_fd, out_fd, err_fd), theirs)
    for fd in (worker_fd, out_fd, err_fd):
        os.close(fd)
    theirs.close()
    session = socket.socket(fileno=guard_fd)
    report(session, {"started": pid, "guard": os.getpid()})
    if is_apart:
        kill_when_told(session)
    asked = AskedCalls(ours, walls.get("writable", ()))
    watch = Watch(pid, int(order["memory_limit_bytes"]), asked)
    try:
        status = watch.until_end(session, wake_read)
    finally:
        leftover = end_descendants(is_apart=is_apart)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    signal_number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    ended = {"code": code, "signal": signal_number, "leftover": leftover, "over_memory": watch.over_memory}
    report(session, {"exit": ended})


def kill_when_told(session: socket.socket) -> None:
    """Kill all below this process as soon as the session says so, also in the middle of a look at the process table.

    Where thousands of processes wait to be reaped and others take all processors, such a look takes seconds.
    """

    def kill(*_: object) -> None:
        if select.select([session], [], [], 0)[0]:
            kill_domain()

    signal.signal(signal.SIGIO, kill)
    fcntl.fcntl(session, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(session, fcntl.F_SETFL, fcntl.fcntl(session, fcntl.F_GETFL) | os.O_ASYNC)


def report(session: socket.socket, message: dict[str, Any]) -> None:
    """Tell the session, if it is still there."""
    try:
        send_frame(session, message)
    except OSError:
        return


class Watch:
    """One worker's life: waits for its end, ends it when told to or when it takes too much memory.

    Meanwhile it answers what the filter on the worker's calls asks.
    """

    def __init__(self, pid: int, memory_limit_bytes: int, asked: AskedCalls) -> None:
        self.pid = pid
        self.asked = asked
        self.memory_limit_bytes = memory_limit_bytes
        self.over_memory = False
        self._next_tree_poll = 0.0
        self._session = next(iter(ancestors(os.getpid())[1:]), 0)  # /proc may be mounted so that it cannot be seen
        self._arena_bytes = 0
        """The most shared memory that the session has had: the arena. A worker that maps the arena shows it as its own
        memory too, so this number is taken off."""

    def until_end(self, session: socket.socket, wake_read: int) -> int:
        """Return the worker's wait status."""
        told = False
        while True:
            told_by = [] if told else [session.fileno()]
            ready, _, _ = select.select([wake_read, *told_by, *self.asked.descriptors()], [], [], POLL_S)
            if any(fd in ready for fd in self.asked.descriptors()):
                self.asked.turn()
            if wake_read in ready:
                os.read(wake_read, 4096)
            if session.fileno() in ready:
                told = True
                self.kill()
            status = self._reap()
            if status is not None:
                return status
            if self.memory_limit_bytes and self._is_over_memory():
                self.over_memory = True
                self.kill()

    def _reap(self) -> int | None:
        """Reap what has ended, orphans too, which would stay in the process table; return the worker's own status."""
        for _ in range(MOST_REAPED):
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == self.pid:
                return status
            if pid == 0:
                return None
        return None

    def kill(self) -> None:
        """End the worker and all that is in its group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)  # it has not made its group yet

    def _is_over_memory(self) -> bool:
        """Look at the worker each time. Looking at all below it costs more, and is done every TREE_POLL_S seconds."""
        self._arena_bytes = max(self._arena_bytes, resident_memory(self._session).shared)
        if self._is_too_much(resident_memory(self.pid)):
            return True
        now = time.monotonic()
        if now < self._next_tree_poll:
            return False
        self._next_tree_poll = now + TREE_POLL_S
        below = descendants(os.getpid())
        if not self._is_too_much(sum(map(resident_memory, below), Memory())):
            return False
        # Forks share their parent's pages, which that sum counts once for each of them.
        return self._is_too_much(sum(map(proportional_memory, below), Memory()))

    def _is_too_much(self, memory: Memory) -> bool:
        return memory.private + max(0, memory.shared - self._arena_bytes) > self.memory_limit_bytes


def end_descendants(*, is_apart: bool = False) -> int:
    """Kill and reap every process below this one; return how many there were, as far as they were seen.

    It goes on until none is left: a session that waits for that has a deadline.

    Args:
        is_apart: `kill_domain` reaches what is below this process, and nothing else.
    """
    own = os.getpid()
    seen: set[int] = set()
    while True:
        if is_apart:
            kill_domain()
        else:
            seen.update(alive := descendants(own))
            kill_with_groups(own, alive)
        try:
            for _ in range(MOST_REAPED):
                pid = os.waitpid(-1, os.WNOHANG)[0]
                if pid == 0:
                    time.sleep(0.001)
                    break
                seen.add(pid)
        except ChildProcessError:
            return len(seen)
