"""The template: a process that has imported torch and made no CUDA context, from which workers are forked.

A device session forks it before it touches its device, and speaks to it over one socket: each frame {"spawn":
SpawnOrder} comes with the child's ends of four channels, in this order: the worker's socket, its stdout, its
stderr, the guard's socket. The template sends no answer: the new guard and the new worker report to the session
themselves. One whose workers precompile sends one byte when it is ready. When the session's end closes, the template
ends every guard that it started, and then itself.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.timing.clocks import import_cupti
from flashinfer_bench.worker.guard import run_guard
from flashinfer_bench.worker.jit.stand_in import prepare_stand_in
from flashinfer_bench.worker.jit.start import prepare_triton
from flashinfer_bench.worker.linux import (
    adopt_orphans,
    await_children,
    count_own_tasks,
    die_with_parent,
    fork,
    hide_memory,
    kill_below,
)
from flashinfer_bench.worker.wire import FrameReader, WireClosed

READY: Final = b"\0"
"""What a template says whose workers precompile, once all is imported for them."""
GUARDS_LIMIT_S: Final = 2.0
"""Seconds that guards have at the end of the session to end their workers: they kill at once what keeps forking."""
END_LIMIT_S: Final = 30.0
"""Seconds to kill everything below the template at its end."""
MORE_TASKS, MORE_TASKS_PER_CORE = 4096, 512
"""A worker's user may have this many threads and processes more than at the start. The limit counts all of the user's,
so it has room for workers and compilers on all devices. It is half of the ids that Linux has on a large machine."""


@dataclass(frozen=True)
class Preparation:
    """What a template has ready for all of its workers."""

    is_for_gpu: bool = False
    """Workers are to time calls on a GPU."""
    with_triton: bool = False
    """Solutions are to use Triton."""
    capability: tuple[int, int] | None = None
    """Of the GPU; None where it is not known."""
    precompiles: bool = False
    """Workers precompile, and launch nothing. They find no GPU."""

    def prepare(self) -> None:
        """Import and compute what solutions find in this process, beyond what `prepare_clock` has."""
        if self.with_triton and self.is_for_gpu:
            prepare_triton(self.capability)
        elif self.with_triton:
            with suppress(ImportError):  # its solutions will say so
                importlib.import_module("triton")
        if self.precompiles:
            prepare_stand_in()

    def prepare_clock(self) -> None:
        """Import what times calls on a GPU."""
        if self.is_for_gpu and not self.precompiles:
            import_cupti()


def start_template(
    run_directory: Path | None, preparation: Preparation, *, not_for_it: Iterable[socket.socket]
) -> socket.socket:
    """Fork the template from this process; call it before anything has touched the device or started threads.

    Args:
        run_directory: removed by the template when it ends; None where another one does.
        preparation: what its workers are to find ready.
        not_for_it: sockets of this process that the template must not keep open.
    """
    ours, theirs = socket.socketpair()
    if fork() == 0:
        for sock in (ours, *not_for_it):
            sock.close()
        run_template(theirs, run_directory, preparation)
    theirs.close()
    return ours


def hear_ready(template: socket.socket) -> bool | None:
    """Tell whether a template whose workers precompile has said that it is ready: None so far, False if it is gone."""
    try:
        return bool(template.recv(len(READY), socket.MSG_DONTWAIT))
    except BlockingIOError:
        return None
    except OSError:
        return False


def run_template(sock: socket.socket, run_directory: Path | None, preparation: Preparation | None = None) -> None:
    """Serve spawn orders until the session is gone; never returns to the caller's code.

    Args:
        sock: the session's orders come from it.
        run_directory: the session's folder; removed at the end. None for what another template removes.
        preparation: what its workers are to find ready; None where that is nothing.
    """
    hide_memory()  # forks inherit it: a worker is hidden until it gets a solution
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    tasks = count_own_tasks()
    most_tasks = None if tasks is None else tasks + MORE_TASKS + MORE_TASKS_PER_CORE * (os.cpu_count() or 1)
    preparation = preparation or Preparation()
    try:
        if preparation.precompiles:
            die_with_parent(signal.SIGKILL)  # it takes seconds to be ready, and may not be in time to hear of an end
        with suppress(WireClosed):  # the session ended: so do we
            preparation.prepare_clock()
            reader = FrameReader(sock)
            held = _serve_references(sock, reader, most_tasks)
            preparation.prepare()
            gc.freeze()  # workers do not walk what is here, nor write to its pages, when they collect garbage
            if preparation.precompiles:
                sock.sendall(READY)
            while True:
                order = held if held is not None else reader.read()
                _serve(order, reader.take_fds(), sock, most_tasks)
                held = None
    finally:
        await_children(GUARDS_LIMIT_S)
        kill_below(os.getpid(), END_LIMIT_S)
        if run_directory is not None:
            remove_tree(run_directory)
        os._exit(0)


def _serve_references(sock: socket.socket, reader: FrameReader, most_tasks: int | None) -> dict[str, Any] | None:
    """Start the references' workers whose orders are there: they need nothing of Triton's. Return the order after them.

    No order is read beyond that: its channels would be open in the workers that are forked before it.
    """
    while select.select([sock], [], [], 0)[0]:
        order = reader.read()
        if not order["spawn"].get("is_reference"):
            return order
        _serve(order, reader.take_fds(), sock, most_tasks)
    return None


def _serve(order: dict[str, Any], fds: list[int], sock: socket.socket, most_tasks: int | None) -> None:
    """Fork the guard of a worker; the channels stay open in it alone."""
    if fork() == 0:
        sock.close()
        _become_guard({"most_tasks": most_tasks, **order["spawn"]}, fds)
    for fd in fds:
        os.close(fd)


def _become_guard(order: dict[str, Any], fds: list[int]) -> None:
    """Run the guard in this fresh child and end the process with it."""
    code = 1
    try:
        run_guard(order, fds, fork)
        code = 0
    except BaseException:  # the process must end here, whatever happened
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)
