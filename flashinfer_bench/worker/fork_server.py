"""The fork server of workers: a process with torch imported and without a CUDA context.

A device session forks it before it uses its device. The session and the server share one socket. Each frame {"spawn":
order} comes with descriptors of three channels, in this order: the worker's socket, the pipe for its output, the
supervisor's socket. The server sends no answer: the new supervisor and the new worker report to the session themselves.
At {"prepare": true} it prepares imports for all workers. A worker forked earlier prepares itself while its context
starts. A server of workers that precompile prepares at once, and sends one byte when it is ready. When the session
closes its end of the socket, the server ends all its supervisors, and then itself.

The fork server of sessions (`bench/runner/launcher.py`) is another process. It outlives sessions and is trusted by all
of them, while this server passes a session's own descriptors and imports to its forks.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.wire import FrameReader, WireClosed, send_frame
from flashinfer_bench.sandbox.process_tree import (
    adopt_orphans,
    await_children,
    count_tasks,
    die_with_parent,
    fork,
    hide_memory,
    kill_below,
)
from flashinfer_bench.sandbox.supervisor import start_supervisor
from flashinfer_bench.timing.clocks import import_cupti
from flashinfer_bench.worker.jit.precompile import prepare_stand_in
from flashinfer_bench.worker.jit.start import prepare_triton
from flashinfer_bench.worker.main import run_worker

DESCRIPTORS: Final = 3
"""Number of file descriptors that come with an order."""
READY: Final = b"\0"
"""Message that a server has imported its modules. Only a server whose workers precompile sends it."""
SUPERVISORS_LIMIT_S: Final = 2.0
"""Seconds for supervisors to end their workers at the session's end. Processes that keep forking are killed at once."""
END_LIMIT_S: Final = 30.0
"""Seconds for killing all processes below the server at its end."""
MORE_TASKS, MORE_TASKS_PER_CORE = 4096, 512
"""Number of threads and processes that a worker's user may add after the start: a base, and a number for each core. The
limit counts all processes of the user, so workers and compilers on all devices must fit."""


@dataclass(frozen=True)
class Preparation:
    """The preparation of a server for all of its workers."""

    is_for_gpu: bool = False
    """Workers will time calls on a GPU."""
    with_triton: bool = False
    """Solutions may use Triton."""
    capability: tuple[int, int] | None = None
    """Compute capability of the GPU; None if it is unknown."""
    precompiles: bool = False
    """Workers precompile, and launch no kernels. They see no GPU."""

    def prepare(self) -> None:
        """Import and compute everything that solutions need in this process, except for the timing on a GPU."""
        if self.with_triton and self.is_for_gpu:
            prepare_triton(self.capability)
        elif self.with_triton:
            with suppress(ImportError):  # its solutions will report it
                importlib.import_module("triton")
        if self.precompiles:
            prepare_stand_in()


def start_fork_server(
    run_directory: Path | None, preparation: Preparation, *, not_for_it: Iterable[socket.socket]
) -> socket.socket:
    """Fork the server from this process. Call it before the device is used or threads are started.

    Args:
        run_directory: folder that the server removes at its end; None if another server removes it.
        not_for_it: sockets of this process that the server must close.
    """
    ours, theirs = socket.socketpair()
    if fork() == 0:
        for sock in (ours, *not_for_it):
            sock.close()
        run_fork_server(theirs, run_directory, preparation)
    theirs.close()
    return ours


def let_prepare(server: socket.socket) -> None:
    """Have the server prepare for all of its workers. Workers ordered earlier prepare themselves."""
    with suppress(OSError):  # it has ended; the next spawn will show it
        send_frame(server, {"prepare": True})


def run_fork_server(sock: socket.socket, run_directory: Path | None, preparation: Preparation = Preparation()) -> None:
    """Serve spawn orders until the session has ended. It never returns.

    Args:
        sock: source of the session's orders.
        run_directory: the session's folder, removed at the end; None if another server removes it.
    """
    os.setpgid(0, 0)  # a session is killed with its group, and this server then removes the session's folder
    hide_memory()  # inherited by forks: a worker is hidden until it gets a solution
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    most_tasks = count_tasks() + MORE_TASKS + MORE_TASKS_PER_CORE * (os.cpu_count() or 1)
    try:
        if preparation.precompiles:
            die_with_parent(signal.SIGKILL)  # preparing takes seconds, without noticing the session's end
        elif preparation.is_for_gpu:
            import_cupti()
        with suppress(WireClosed):  # the session has ended, so this server ends
            _serve_all(sock, preparation, most_tasks)
    finally:
        await_children(SUPERVISORS_LIMIT_S)
        kill_below(os.getpid(), END_LIMIT_S)
        if run_directory is not None:
            remove_tree(run_directory)
        os._exit(0)


def _serve_all(sock: socket.socket, preparation: Preparation, most_tasks: int) -> None:
    """Fork a supervisor for each order; prepare on request."""
    reader, is_prepared = FrameReader(sock), False
    if preparation.precompiles:
        preparation.prepare()
        gc.freeze()
        sock.sendall(READY)
        is_prepared = True
    while True:
        message = reader.read()
        if "spawn" not in message:
            preparation.prepare()
            gc.freeze()  # keeps the garbage collection of workers away from these objects and their pages
            is_prepared = True
            continue
        order = {"most_tasks": most_tasks, **message["spawn"]}
        needs_nothing = is_prepared or order.get("is_reference")  # references launch no Triton kernels
        prepare = (lambda: None) if needs_nothing else preparation.prepare
        start_supervisor(order, reader.take_fds(DESCRIPTORS), partial(run_worker, prepare=prepare), reader)
