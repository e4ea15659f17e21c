"""The fork server of workers: a process that has imported torch and made no CUDA context, from which they are forked.

A device session forks it before it touches its device, and speaks to it over one socket: each frame {"spawn": order}
comes with the child's ends of three channels, in this order: the worker's socket, the pipe for what it prints, the
supervisor's socket. The server sends no answer: the new supervisor and the new worker report to the session themselves.
It prepares what all workers need when it is told to ({"prepare": true}). A worker that is forked before that prepares
itself, beside its context. One whose workers precompile prepares at once, and sends one byte when it is ready. When the
session's end closes, the server ends every supervisor that it started, and then itself.

It cannot be the server from which sessions are forked (`bench/runner/launcher.py`): that one outlives sessions and
is trusted by all of them, and this one gives a session's own descriptors and imports to what it forks.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

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
from flashinfer_bench.sandbox.supervisor import run_supervisor
from flashinfer_bench.timing.clocks import import_cupti
from flashinfer_bench.worker.jit.precompile import prepare_stand_in
from flashinfer_bench.worker.jit.start import prepare_triton
from flashinfer_bench.worker.main import run_worker

READY: Final = b"\0"
"""What a server sends whose workers precompile, once all is imported for them."""
SUPERVISORS_LIMIT_S: Final = 2.0
"""Seconds that supervisors have at the session's end to end their workers: they kill at once what keeps forking."""
END_LIMIT_S: Final = 30.0
"""Seconds to kill everything below the server at its end."""
MORE_TASKS, MORE_TASKS_PER_CORE = 4096, 512
"""A worker's user may have this many threads and processes more than the machine has at the start. The limit counts all
of the user's, so it has room for workers and compilers on all devices. It is half of the ids that Linux has on a large
machine."""


@dataclass(frozen=True)
class Preparation:
    """What a server has ready for all of its workers."""

    is_for_gpu: bool = False
    """Workers are to time calls on a GPU."""
    with_triton: bool = False
    """Solutions are to use Triton."""
    capability: tuple[int, int] | None = None
    """Of the GPU; None where it is not known."""
    precompiles: bool = False
    """Workers precompile, and launch nothing. They find no GPU."""

    def prepare(self) -> None:
        """Import and compute what solutions find in this process, beyond what times calls on a GPU."""
        if self.with_triton and self.is_for_gpu:
            prepare_triton(self.capability)
        elif self.with_triton:
            with suppress(ImportError):  # its solutions will say so
                importlib.import_module("triton")
        if self.precompiles:
            prepare_stand_in()


def start_fork_server(
    run_directory: Path | None, preparation: Preparation, *, not_for_it: Iterable[socket.socket]
) -> socket.socket:
    """Fork the server from this process; call it before anything has touched the device or started threads.

    Args:
        run_directory: removed by the server when it ends; None where another one does.
        preparation: what its workers are to find ready.
        not_for_it: sockets of this process that the server must not keep open.
    """
    ours, theirs = socket.socketpair()
    if fork() == 0:
        for sock in (ours, *not_for_it):
            sock.close()
        run_fork_server(theirs, run_directory, preparation)
    theirs.close()
    return ours


def let_prepare(server: socket.socket) -> None:
    """Have the server prepare what all of its workers need; those that were ordered before prepare themselves."""
    with suppress(OSError):  # it is gone, which the next order will show
        send_frame(server, {"prepare": True})


def hear_ready(server: socket.socket) -> bool | None:
    """Tell whether a server whose workers precompile has said that it is ready: None so far, False if it is gone."""
    try:
        return bool(server.recv(len(READY), socket.MSG_DONTWAIT))
    except BlockingIOError:
        return None
    except OSError:
        return False


def run_fork_server(sock: socket.socket, run_directory: Path | None, preparation: Preparation = Preparation()) -> None:
    """Serve spawn orders until the session is gone; never returns to the caller's code.

    Args:
        sock: the session's orders come from it.
        run_directory: the session's folder; removed at the end. None for what another server removes.
        preparation: what its workers are to find ready.
    """
    hide_memory()  # forks inherit it: a worker is hidden until it gets a solution
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    most_tasks = count_tasks() + MORE_TASKS + MORE_TASKS_PER_CORE * (os.cpu_count() or 1)
    try:
        if preparation.precompiles:
            die_with_parent(signal.SIGKILL)  # it takes seconds to be ready, and may not be in time to hear of an end
        elif preparation.is_for_gpu:
            import_cupti()
        with suppress(WireClosed):  # the session ended: so do we
            _serve_all(sock, preparation, most_tasks)
    finally:
        await_children(SUPERVISORS_LIMIT_S)
        kill_below(os.getpid(), END_LIMIT_S)
        if run_directory is not None:
            remove_tree(run_directory)
        os._exit(0)


def _serve_all(sock: socket.socket, preparation: Preparation, most_tasks: int) -> None:
    """Fork a supervisor for each order; prepare when told to."""
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
            gc.freeze()  # workers do not walk what is here, nor write to its pages, when they collect garbage
            is_prepared = True
            continue
        order = {"most_tasks": most_tasks, **message["spawn"]}
        needs_nothing = is_prepared or order.get("is_reference")  # references launch no kernels of Triton's
        _serve(order, reader.take_fds(), sock, (lambda: None) if needs_nothing else preparation.prepare)


def _serve(order: dict[str, Any], fds: list[int], sock: socket.socket, prepare: Callable[[], object]) -> None:
    """Fork the supervisor of a worker, which prepares itself; the channels stay open in it alone."""
    if fork() == 0:
        code = 1
        try:
            sock.close()
            run_supervisor(order, fds, partial(run_worker, prepare=prepare))
            code = 0
        except BaseException:  # the process must end here, whatever happened
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    for fd in fds:
        os.close(fd)
