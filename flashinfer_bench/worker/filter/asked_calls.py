"""The guard's answers to a worker's filtered calls (`call_filter.py`): free below the guard, refused everywhere else.
What concerns the worker's own files the guard does itself (`asked_files.py`), and so it connects a tool's sockets
(`asked_sockets.py`).

The worker sends the guard the kernel's descriptor once, before it loads other code; it must not keep that descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from flashinfer_bench.worker.filter.call_filter import CALLS, NAMES_A_PROCESS
from flashinfer_bench.worker.linux import parent_of, process_groups
from flashinfer_bench.worker.walls.asked_files import change_file
from flashinfer_bench.worker.walls.asked_sockets import connect_socket
from flashinfer_bench.worker.walls.walled_calls import BY_THE_GUARD, WALLED_CALLS

QUESTION: Final = struct.Struct("=QIIiIQ6Q")
"""What the kernel asks: id, pid, flags; then the call's number, architecture, instruction and arguments."""
ANSWER: Final = struct.Struct("=QqiI")
"""What the kernel is answered: id, value, error, flags."""
RECEIVE, SEND = 0xC0502100, 0xC0182101
GO_ON: Final = 1
PRIO_PGRP, IOPRIO_WHO_PGRP = 1, 2
MOST_CONNECTS: Final = 64
"""Sockets that the guard connects at one time; further calls are told to try again."""


class AskedCalls:
    """Answers what the filter of one worker asks.

    Args:
        channel: the kernel's descriptor comes over it.
        folders: the worker's own, where it has walls.
    """

    def __init__(self, channel: socket.socket, folders: Sequence[str] = ()) -> None:
        self._channel: socket.socket | None = channel
        self._listener: int | None = None
        self._connects = threading.BoundedSemaphore(MOST_CONNECTS)
        self._folders = [os.path.realpath(folder) for folder in folders]
        tables = (CALLS.get(platform.machine(), {}), WALLED_CALLS.get(platform.machine(), {}))
        self._names = {number: name for table in tables for name, number in table.items()}

    def descriptors(self) -> list[int]:
        """Return what to wait on; call `turn` when it is readable."""
        if self._listener is not None:
            return [self._listener]
        return [] if self._channel is None else [self._channel.fileno()]

    def turn(self) -> None:
        """Take the kernel's descriptor, or answer one question."""
        if self._listener is not None:
            with suppress(OSError):  # whoever asked has ended
                self._answer(self._listener)
        elif self._channel is not None:
            _, fds, _, _ = socket.recv_fds(self._channel, 1, 1)
            self._listener = fds[0] if fds else None
            self._channel.close()
            self._channel = None

    def _answer(self, listener: int) -> None:
        question = bytearray(QUESTION.size)
        fcntl.ioctl(listener, RECEIVE, question)
        number, pid, _, call, _, _, *arguments = QUESTION.unpack(question)
        name = self._names[call]
        if name == "connect":
            self._connect(listener, number, arguments, pid)
            return
        is_ours = name in BY_THE_GUARD
        try:
            if is_ours:
                error = change_file(name, arguments, pid, self._folders)
            else:
                error = judge_call(name, arguments, os.getpid())
        except OSError:  # whoever asked has ended
            raise
        except Exception:  # the guard lives on, whatever it was asked with
            error = errno.EINVAL
        send_answer(listener, number, error, 0 if error or is_ours else GO_ON)

    def _connect(self, listener: int, number: int, arguments: Sequence[int], pid: int) -> None:
        """Connect a socket in a thread of its own: a peer that never accepts holds up whoever asked, not the guard."""

        def connect() -> None:
            error = errno.EIO
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # else the end of a child interrupts it
            try:
                error = connect_socket(arguments, pid)
            finally:
                self._connects.release()
                with suppress(OSError):  # whoever asked has ended
                    send_answer(listener, number, error)

        if not self._connects.acquire(blocking=False):
            send_answer(listener, number, errno.EAGAIN)
            return
        try:
            threading.Thread(target=connect, daemon=True).start()
        except RuntimeError:  # no room for a thread
            self._connects.release()
            send_answer(listener, number, errno.EAGAIN)


def send_answer(listener: int, number: int, error: int, flags: int = 0) -> None:
    """Answer one question of the kernel's: the call's error, 0 for none."""
    fcntl.ioctl(listener, SEND, bytearray(ANSWER.pack(number, 0, -error, flags)))


def judge_call(name: str, arguments: list[int], guard: int) -> int:
    """Return the error of a call that names a process, 0 where it may go on."""
    aim = struct.unpack("i", struct.pack("I", arguments[NAMES_A_PROCESS[name]] & 0xFFFFFFFF))[0]
    if is_group(name, arguments[0]) and aim > 0:
        aim = -aim
    if aim > 0:
        return 0 if is_below(aim, guard) else errno.EPERM
    members = process_groups().get(-aim, []) if aim < -1 else []
    return 0 if members and all(is_below(pid, guard) for pid in members) else errno.EPERM


def is_group(name: str, which: int) -> bool:
    """Tell whether a call that takes a kind and an id means a group of processes."""
    return (name, which & 0xFFFFFFFF) in (("setpriority", PRIO_PGRP), ("ioprio_set", IOPRIO_WHO_PGRP))


def is_below(pid: int, guard: int) -> bool:
    """Tell whether a process, or the process of a thread, descends from the guard."""
    above = parent_of(pid)
    while above not in (None, 0, guard):
        assert above is not None  # mypy cannot tell by a membership
        above = parent_of(above)
    return above == guard
