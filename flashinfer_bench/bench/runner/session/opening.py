"""The first steps of a session, until its first workers start; what judges is imported after them.

The order matters. torch is imported, the templates are forked, and only then are the judge and plug-ins imported and
the device touched, so that no worker has any of them. Each takes some tenths of a second, and so they overlap:
templates import what their workers need, the driver makes the session's context and those of workers, and this process
imports the judge.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Final

from flashinfer_bench.base.files.held_folders import hold_folder
from flashinfer_bench.base.host import spare_cores
from flashinfer_bench.base.wire import FrameReader
from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER, share_kernels
from flashinfer_bench.bench.evaluators.inputs.threads import keep_to_one_thread
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.session.orders import Orders
from flashinfer_bench.bench.runner.session.wanted import list_first_wanted
from flashinfer_bench.bench.runner.workers.policies import PolicyMaker
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.timing.driver import make_context, set_connections
from flashinfer_bench.worker.fork_server import Preparation, start_fork_server

JUDGE: Final = "flashinfer_bench.bench.runner.session.main"
"""The module that goes on from here: `serve`."""
MOST_BYTES: Final = 1 << 28
"""Of one frame of the host's."""


@dataclass(frozen=True)
class OpenedSession:
    """A session whose first workers are starting."""

    hello: Hello
    host: socket.socket
    orders: Orders
    pool: WorkerPool
    readout: Readout
    context: threading.Thread | None
    """Makes the context on a GPU."""


def serve_host(fd: int) -> None:
    """Serve the host at the other end of a socket until it closes its end."""
    with open_session(fd) as opened:
        import_judge().serve(opened)


def import_judge() -> ModuleType:
    """Import what a session judges with, and how it serves its host then; a module is imported once."""
    return importlib.import_module(JUDGE)


@contextmanager
def open_session(fd: int) -> Iterator[OpenedSession]:
    """Open the session of the host at the other end of a socket; in the end its workers are ended.

    Call it before anything has touched the device or started threads.
    """
    host = socket.socket(fileno=fd)
    reader = FrameReader(host, max_bytes=MOST_BYTES)
    hello = Hello.model_validate(reader.read()["hello"])
    run_directory, _ = hold_folder("run")  # until this process and its forks have ended
    template, precompiling = fork_templates(hello, host, run_directory)
    context = start_context(hello)
    policies = PolicyMaker(hello, os.environ) if hello.has_walls else None
    if policies is not None:
        policies.open_to_workers(run_directory)
        share_kernels(Path(hello.cache_root))
    readout = Readout(hello.gpu_uuid, our_processes=lambda: pool.process_ids(), keep_samples=hello.keep_samples)
    with WorkerPool(
        template,
        run_directory,
        hello,
        on_ready=lambda worker: readout.add_launch_gap(worker.launch_gap_ns),
        policies=policies,
    ) as pool:
        pool.precompiling = precompiling
        orders = Orders(host, reader)
        orders.look()
        if orders.ahead is not None:
            pool.expect(list_first_wanted(hello, orders.ahead))
        yield OpenedSession(hello, host, orders, pool, readout, context)


def fork_templates(
    hello: Hello, host: socket.socket, run_directory: Path
) -> tuple[socket.socket, socket.socket | None]:
    """Fork the template of workers, and that of workers which precompile where there are any."""
    preparation = Preparation(hello.device == "cuda", hello.needs_triton, hello.gpu_capability)
    compiles = hello.needs_triton or hello.compiles_ahead
    has_precompiled = preparation.is_for_gpu and compiles and hello.has_walls and bool(spare_cores())
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # workers must not write into each other's artifacts
    try:
        template = start_fork_server(run_directory, preparation, not_for_it=[host])
        if not has_precompiled:
            return template, None
        return template, start_fork_server(None, replace(preparation, precompiles=True), not_for_it=[host, template])
    finally:
        sys.dont_write_bytecode = before


def start_context(hello: Hello) -> threading.Thread | None:
    """Have this process's context on its GPU made in the background; return the thread that waits for it.

    This process computes in one thread from here on.
    """
    if hello.device != "cuda":
        return None
    keep_to_one_thread()
    os.environ["CUDA_CACHE_PATH"] = str(Path(hello.cache_root, JUDGE_FOLDER, "cuda"))  # not in the user's HOME
    set_connections(1)  # what is judged here runs on one stream
    context = threading.Thread(target=make_context, daemon=True)
    context.start()
    return context
