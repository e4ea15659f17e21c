"""Runs one program in a worker's walls, with a worker's limits and under a guard, and takes what it prints.

The template forks it as it forks workers (`worker/template.py`); in place of the worker's loop it becomes the program.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.sandbox.processes import end_tree

KEPT_BYTES: Final = 16 << 20
"""Of what a program prints, so many bytes of the beginning and of the end are kept."""
READ_BYTES: Final = 1 << 20
END_LIMIT_S: Final = 20.0
"""Seconds that a guard may take to end its program with all that it started; then it is ended from here."""
REMOVE_LIMIT_S: Final = 20.0


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    text: str
    code: int | None = None
    signal: int | None = None
    is_late: bool = False
    over_memory: bool = False

    def describe(self, limit_s: float) -> str:
        """Say in words how it ended; nothing where it ended by itself with 0."""
        if self.is_late:
            return f"it did not end within {limit_s:g} s"
        if self.over_memory:
            return "it was ended because it took more host memory than a worker may"
        if self.signal is not None:
            names = {one.value: one.name for one in signal.Signals}
            return f"it was killed by {names.get(self.signal, self.signal)}"
        return "" if self.code == 0 else f"it ended with exit code {self.code}"


def run_enclosed(template: socket.socket, order: dict[str, Any], home: Path, limit_s: float) -> ProgramEnd:
    """Run the order's `program`; nothing of it is left when this returns.

    Args:
        template: the socket of the template.
        order: as a worker's: environment, sandbox, memory limit.
        home: a folder of the program's own, made here and removed at the end.
        limit_s: the program is ended after so many seconds.

    Raises:
        DeviceFault: something of it does not end.
    """
    home.mkdir(parents=True)
    user = (order.get("sandbox") or {}).get("user")
    if user is not None:
        os.chown(home, user, user)
    guard, guard_end = socket.socketpair()
    unused, unused_end = socket.socketpair()  # a worker would answer on it
    out_read, out_write = os.pipe()
    ends = [unused_end.fileno(), out_write, out_write, guard_end.fileno()]
    try:
        send_frame(template, {"spawn": {**order, "home": str(home)}}, ends)
    finally:
        for end in (unused_end, guard_end):
            end.close()
        os.close(out_write)
    with unused, guard:
        try:
            return _watch(guard, out_read, limit_s)
        finally:
            os.close(out_read)
            remove_tree(home, REMOVE_LIMIT_S)


def _watch(guard: socket.socket, out: int, limit_s: float, now: Callable[[], float] = time.monotonic) -> ProgramEnd:
    """Read what is printed until the guard has told of the end, or the time is over."""
    reader, log = FrameReader(guard, takes_fds=False), BoundedLog(head_bytes=KEPT_BYTES, tail_bytes=KEPT_BYTES)
    os.set_blocking(out, False)
    deadline, is_late, guard_pid = now() + limit_s, False, None
    ended: dict[str, Any] | None = None
    with selectors.DefaultSelector() as selector:
        selector.register(out, selectors.EVENT_READ)
        selector.register(guard, selectors.EVENT_READ)
        while ended is None:
            if now() >= deadline:
                if is_late:
                    break
                is_late, deadline = True, now() + END_LIMIT_S
                with suppress(OSError):
                    guard.send(b"x")
            ready = {key.fd for key, _ in selector.select(max(0.0, deadline - now()))}
            if out in ready and not _take(out, log):
                selector.unregister(out)
            if guard.fileno() in ready:
                try:
                    reader.pump()
                except WireClosed:
                    ended = {}
                while (message := reader.pop()) is not None:
                    guard_pid = message.get("supervisor", guard_pid)
                    ended = message.get("exit", ended)
    if ended is None and (guard_pid is None or not end_tree(guard_pid, END_LIMIT_S)):
        raise DeviceFault("a program in its walls, or something that it started, does not end")
    while _take(out, log):
        pass
    found = ended or {}
    return ProgramEnd(log.take(), found.get("code"), found.get("signal"), is_late, bool(found.get("over_memory")))


def _take(out: int, log: BoundedLog) -> bool:
    """Take what is there to read; say whether more may come."""
    try:
        data = os.read(out, READ_BYTES)
    except BlockingIOError:
        return False
    log.add(data)
    return bool(data)
