"""The first steps of a session, until its first workers start, and the mailbox of its host.

The order matters. torch is imported, the templates are forked, and only then are the judge and plug-ins imported and
the device touched, so that no worker has any of them. Each takes some tenths of a second, and so they overlap:
templates import what their workers need, the driver makes the session's context and those of workers, and this process
imports the judge.
"""

from __future__ import annotations

import importlib
import os
import select
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
from flashinfer_bench.base.wire import FrameReader, WireClosed
from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER, share_kernels
from flashinfer_bench.bench.evaluators.inputs.threads import keep_to_one_thread
from flashinfer_bench.bench.runner.protocol import Announced, BlockOrder, BlockSolution, Hello
from flashinfer_bench.bench.runner.readout import Readout
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool, reference_files
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.data import Definition
from flashinfer_bench.timing.driver import make_context
from flashinfer_bench.worker.fork_server import Preparation, let_prepare, start_fork_server

JUDGE: Final = "flashinfer_bench.bench.runner.session.main"
"""The module that goes on from here: `serve`."""
MOST_BYTES: Final = 1 << 28
"""Most bytes of one frame of the host."""


class Orders:
    """The host's orders: the block that runs, and the one that was sent ahead.

    A block that was sent is begun when the host says so. Until then the host may take it back without asking, and give
    it to another device. So no job is done twice. The session knows meanwhile for which solutions to have workers.

    Args:
        host: the socket.
        reader: reads it; nothing else does.
    """

    def __init__(self, host: socket.socket, reader: FrameReader) -> None:
        self._host, self._reader = host, reader
        self._is_begun = False
        self.ahead: BlockOrder | None = None
        """The block that was sent and not begun."""
        self.announced: list[Announced] = []
        """Solutions announced with all blocks so far, those that were taken back included."""

    def poll(self) -> None:
        """Take the frames that have come.

        Raises:
            WireClosed: the host is gone, or wants no more.
        """
        self._take()
        while select.select([self._host], [], [], 0)[0]:
            self._reader.pump()
            self._take()

    def next_block(self) -> BlockOrder:
        """Wait until the next block is begun, and return it.

        Raises:
            WireClosed: the host is gone, or wants no more.
        """
        self._take()
        while not self._is_begun or self.ahead is None:
            self._reader.pump()
            self._take()
        block, self.ahead, self._is_begun = self.ahead, None, False
        return block

    def _take(self) -> None:
        while not self._is_begun and (message := self._reader.pop()) is not None:
            if "close" in message:
                raise WireClosed
            if "block" in message:
                self.ahead = BlockOrder.model_validate(message["block"])
                self.announced += self.ahead.announced
            elif "drop" in message:
                self.ahead = None
            elif "begin" in message:
                self._is_begun = self.ahead is not None


def files_of(solution: BlockSolution) -> SolutionFiles:
    """Return what a worker for a solution is made for. Python that calls torch mostly launches several operations."""
    directory = Path(solution.directory) if solution.directory else None
    return SolutionFiles(solution.digest, directory, wants_fast=solution.language == "python")


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
    """Import the judge; a module is imported once."""
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
    policies = PolicyMaker(hello, os.environ)
    policies.open_to_workers(run_directory)
    if hello.has_walls:
        share_kernels(Path(hello.cache_root))
    readout = Readout(hello.gpu_uuid, our_processes=lambda: pool.process_ids(), keep_samples=hello.keep_samples)
    reported = lambda worker: readout.add_launch_gap(worker.ready.launch_gap_ns)  # noqa: E731 - one line, used once
    with WorkerPool(template, run_directory, hello, policies, on_ready=reported) as pool:
        pool.precompiling = precompiling
        orders = Orders(host, reader)
        orders.poll()
        prepares_beside = hello.device == "cuda" and bool(spare_cores())
        if not prepares_beside:
            let_prepare(template)
        if orders.ahead is not None:
            pool.expect(list_first_files(hello, orders.ahead))
        if prepares_beside:
            let_prepare(template)
        yield OpenedSession(hello, host, orders, pool, readout, context)


def list_first_files(hello: Hello, block: BlockOrder) -> list[SolutionFiles]:
    """Return what the first two workers of a session are for."""
    solutions = [block.solutions[job.solution] for job in block.jobs]
    found = [files_of(solution) for solution in solutions if solution.build_error is None][:1]
    if found and hello.profile_baseline:
        found.insert(0, reference_files(Definition.model_validate(block.definition).digest()))
    return found


def fork_templates(
    hello: Hello, host: socket.socket, run_directory: Path
) -> tuple[socket.socket, socket.socket | None]:
    """Fork the template of workers, and that of workers which precompile if there are any."""
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
    context = threading.Thread(target=make_context, daemon=True)
    context.start()
    return context
