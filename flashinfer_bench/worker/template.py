"""The template: a process that has imported torch and made no CUDA context, from which workers are forked.

A device session forks it before it touches its device, and speaks to it over one socket: each frame {"spawn":
SpawnOrder} comes with the child's ends of four channels, in this order: the worker's socket, its stdout, its
stderr, the guard's socket. The template sends no answer: the new guard and the new worker report to the session
themselves. When the session's end closes, the template ends every guard that it started, and then itself.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.worker.guard import run_guard
from flashinfer_bench.worker.jit.stand_in import prepare_stand_in
from flashinfer_bench.worker.jit.start import prepare_triton
from flashinfer_bench.worker.linux import adopt_orphans, count_own_tasks, die_with_parent, hide_memory, kill_below
from flashinfer_bench.worker.wire import FrameReader, WireClosed

END_LIMIT_S: Final = 30.0
"""Seconds to kill everything below the template at its end."""
MORE_TASKS, MORE_TASKS_PER_CORE = 4096, 512
"""A worker's user may have this many threads and processes more than at the start. The limit counts all of the user's,
so it has room for workers and compilers on all devices. It is half of the ids that Linux has on a large machine."""


def fork() -> int:
    """Fork. Python warns of threads that hold locks; this process has no threads of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def run_template(
    sock: socket.socket,
    run_directory: Path | None,
    *,
    with_triton: bool = False,
    capability: tuple[int, int] | None = None,
    precompiles: bool = False,
) -> None:
    """Serve spawn orders until the session is gone; never returns to the caller's code.

    Args:
        sock: the session's orders come from it.
        run_directory: the session's folder; removed at the end. None for what another template removes.
        with_triton: have what a first Triton launch needs ready in every worker.
        capability: of the GPU that they launch on; None where it is not known.
        precompiles: have ready what precompiling needs. Its workers find no GPU.
    """
    hide_memory()  # forks inherit it: a worker is hidden until it gets a solution
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # guards are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    tasks = count_own_tasks()
    most_tasks = None if tasks is None else tasks + MORE_TASKS + MORE_TASKS_PER_CORE * (os.cpu_count() or 1)
    try:
        if with_triton:
            prepare_triton(capability)
        if precompiles:
            die_with_parent(signal.SIGKILL)  # it takes seconds to be ready, and may not be in time to hear of an end
            prepare_stand_in()
        gc.freeze()  # workers do not walk what is here, nor write to its pages, when they collect garbage
        with suppress(WireClosed):  # the session ended: so do we
            _serve_orders(sock, most_tasks)
    finally:
        kill_below(os.getpid(), END_LIMIT_S)
        if run_directory is not None:
            remove_tree(run_directory)
        os._exit(0)


def _serve_orders(sock: socket.socket, most_tasks: int | None) -> NoReturn:
    reader = FrameReader(sock)
    while True:
        order = reader.read()
        fds = reader.take_fds()
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
