"""The supervisor: the parent of exactly one worker or one session, which it outlives by a moment.

It adopts and kills the processes that the worker leaves behind, and reports how the worker ended. It uses one socket:

    supervisor → session   {"started": pid, "supervisor": its own pid}
                           {"exit": {"code": its exit code, or minus the number of a signal, "over_memory": bool}}
    session → supervisor   any byte, or the end of the stream: end the worker now

The worker is ended as a whole: its process group first, then every descendant. If the kernel separates signals
(`landlock.keep_signals_apart`), all are killed at once. Otherwise the supervisor kills all processes that it finds,
with their groups. A process that only forks may have ended by then, but its group still exists. The supervisor ends
when all have ended. If it does not end, the session ends it and its descendants.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

from flashinfer_bench.base.wire import FrameReader, send_frame
from flashinfer_bench.sandbox.landlock import keep_signals_apart, kill_domain
from flashinfer_bench.sandbox.notifications import Notifications
from flashinfer_bench.sandbox.process_tree import (
    Memory,
    adopt_orphans,
    ancestors,
    await_children,
    descendants,
    die_with_parent,
    end_descendants,
    fork,
    proportional_memory,
    reap,
    resident_memory,
)

POLL_S: Final = 0.05
TREE_POLL_S: Final = 0.5
"""Seconds between two checks of the memory of all processes below the supervisor."""

RunWorker = Callable[[dict[str, Any], Sequence[int], socket.socket], None]
"""Becomes the worker. Takes the worker's order, its socket and pipe, and the channel for `Notifications`. Never
returns."""


def start_supervisor(order: dict[str, Any], fds: Sequence[int], run_worker: RunWorker, orders: FrameReader) -> None:
    """Fork the supervisor of a worker. Only the supervisor keeps the channels open.

    Args:
        order, fds, run_worker: see `run_supervisor`.
        orders: the reader of this process's orders. The supervisor closes it: as long as a process holds a worker's
            channels, the worker's end is not noticed.
    """
    if fork() == 0:
        code = 1
        try:
            orders.close()
            run_supervisor(order, fds, run_worker)
            code = 0
        except BaseException:  # the process must end here in any case
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)


def run_supervisor(order: dict[str, Any], fds: Sequence[int], run_worker: RunWorker) -> None:
    """Fork the worker, watch it until its end, clean up after it, and report.

    Args:
        order: the worker's order, which may have a `memory_limit_bytes` and a `sandbox`. If it has a `grace_s`, this
            process ends with its parent, and processes below an ended worker have this many seconds to end.
        fds: the worker's socket, the pipe for its output, the supervisor's socket.
        run_worker: called in the fork.
    """
    grace_s = order.get("grace_s")
    if grace_s is not None:
        die_with_parent(signal.SIGKILL)
    os.setsid()
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ours, theirs = socket.socketpair()
    sandbox = order.get("sandbox") or {}
    is_apart = not sandbox.get("for_tool") and keep_signals_apart()  # a tool's worker may mount, which a domain forbids
    pid = fork()
    if pid == 0:
        run_worker(order, fds[:2], theirs)
    for fd in fds[:2]:
        os.close(fd)
    theirs.close()
    session = socket.socket(fileno=fds[2])
    report(session, {"started": pid, "supervisor": os.getpid()})
    watch = Watch(pid, int(order["memory_limit_bytes"]), Notifications(ours, sandbox.get("writable", ())))
    try:
        code = os.waitstatus_to_exitcode(watch.until_end(session, wake_read))
        await_children(grace_s or 0.0)
    finally:
        end_descendants(kill_domain if is_apart else None)
    report(session, {"exit": {"code": code, "over_memory": watch.over_memory}})
    session.detach()  # the kernel closes it after it has freed this process's memory


def report(session: socket.socket, message: dict[str, Any]) -> None:
    """Send a message to the session, if the session still exists."""
    with suppress(OSError):
        send_frame(session, message)


class Watch:
    """Waits for the end of one worker. Ends the worker on request, or if the worker takes too much memory.

    Meanwhile it answers the questions of the filter on the worker's calls.
    """

    def __init__(self, pid: int, memory_limit_bytes: int, asked: Notifications) -> None:
        self.pid = pid
        self.asked = asked
        self.memory_limit_bytes = memory_limit_bytes
        self.over_memory = False
        self._next_tree_poll = 0.0
        self._session = next(iter(ancestors(os.getpid())[1:]), 0)  # 0 if /proc hides the session
        self._arena_bytes = 0
        """Peak of the session's shared memory: the arena. A worker's memory includes the arena, so this number is
        subtracted."""

    def until_end(self, session: socket.socket, wake_read: int) -> int:
        """Watch the worker until it ends; return its wait status."""
        channels = [session.fileno()]
        while True:
            asked = self.asked.descriptors()
            ready, _, _ = select.select([wake_read, *channels, *asked], [], [], POLL_S)
            if set(asked) & set(ready):
                self.asked.handle()
            if wake_read in ready:
                os.read(wake_read, 4096)
            if session.fileno() in ready:
                channels = []
                self.kill()
            status = dict(reap()[0]).get(self.pid)
            if status is not None:
                return status
            if self.memory_limit_bytes and self.is_over_memory():
                self.over_memory = True
                self.kill()

    def kill(self) -> None:
        """End the worker and all processes in its group."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)  # it has no own group yet

    def is_over_memory(self) -> bool:
        """Check the worker's memory each time, and the memory of all its descendants every TREE_POLL_S seconds."""
        self._arena_bytes = max(self._arena_bytes, resident_memory(self._session).shared)
        if self._is_too_much([resident_memory(self.pid)]):
            return True
        if time.monotonic() < self._next_tree_poll:
            return False
        self._next_tree_poll = time.monotonic() + TREE_POLL_S
        below = descendants(os.getpid())
        # Forks share their parent's pages, which the first sum counts once for each fork.
        return all(self._is_too_much(map(measure, below)) for measure in (resident_memory, proportional_memory))

    def _is_too_much(self, held: Iterable[Memory]) -> bool:
        private = shared = 0
        for one in held:
            private, shared = private + one.private, shared + one.shared
        return private + max(0, shared - self._arena_bytes) > self.memory_limit_bytes
