"""The first steps of a session, until its first workers start, and its queue of requests from the host.

The order matters. First torch is imported, then the fork servers are forked. Only then are the judge and plug-ins
imported and the device used, so that workers inherit none of them. The steps overlap, since each takes some tenths of a
second: the fork servers import modules for their workers, the driver makes contexts, and this process imports the
judge.
"""

from __future__ import annotations

import importlib
import os
import select
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Final

from flashinfer_bench.base.files.held_folders import hold_folder
from flashinfer_bench.base.host import spare_cores
from flashinfer_bench.base.wire import FrameReader
from flashinfer_bench.bench.evaluators.compare.kernel_cache import JUDGE_FOLDER, share_kernels
from flashinfer_bench.bench.evaluators.inputs.threads import keep_to_one_thread
from flashinfer_bench.bench.runner.protocol import Announced, RequestedSolution, SessionConfig, SessionRequest
from flashinfer_bench.bench.runner.run_metadata import RunMetadata
from flashinfer_bench.bench.runner.workers.pool import SolutionFiles, WorkerPool, reference_files
from flashinfer_bench.bench.runner.workers.sandbox_policy import PolicyMaker
from flashinfer_bench.data import Definition
from flashinfer_bench.timing.driver import make_context
from flashinfer_bench.worker.fork_server import Preparation, let_prepare, start_fork_server

JUDGE: Final = "flashinfer_bench.bench.runner.session.main"
"""The module whose `serve` continues the session."""
MOST_BYTES: Final = 1 << 28
"""Largest size of a frame from the host, in bytes."""


class Requests:
    """The host's requests: the running request, and the request that was sent ahead.

    A request begins when the host says so. Until then the host can take the request back, and give it to another
    device. So no job is done twice. The session starts workers for the solutions of a request before the request
    begins.

    Args:
        reader: the only reader of the socket.
    """

    def __init__(self, host: socket.socket, reader: FrameReader) -> None:
        self._host, self._reader = host, reader
        self._is_begun = False
        self.ahead: SessionRequest | None = None
        """The request that was sent and has not begun."""
        self.announced: list[Announced] = []
        """Solutions announced with all requests so far, including requests that were taken back."""

    def poll(self) -> None:
        """Read the frames that have arrived.

        Raises:
            WireClosed: the host has ended, or closed the session.
        """
        self._take()
        while select.select([self._host], [], [], 0)[0]:
            self._reader.pump()
            self._take()

    def next_request(self) -> SessionRequest:
        """Wait until the next request begins, and return it.

        Raises:
            WireClosed: the host has ended, or closed the session.
        """
        self._take()
        while not self._is_begun or self.ahead is None:
            self._reader.pump()
            self._take()
        request, self.ahead, self._is_begun = self.ahead, None, False
        return request

    def _take(self) -> None:
        while not self._is_begun and (message := self._reader.pop()) is not None:
            if "request" in message:
                self.ahead = SessionRequest.model_validate(message["request"])
                self.announced += self.ahead.announced
            elif "drop" in message:
                self.ahead = None
            elif "begin" in message:
                self._is_begun = self.ahead is not None


def files_of(solution: RequestedSolution) -> SolutionFiles:
    """Return the files for a solution's worker. Python solutions get fast contexts, because with torch most of them
    launch several operations."""
    directory = Path(solution.directory) if solution.directory else None
    return SolutionFiles(solution.digest, directory, wants_fast=solution.language == "python")


def import_judge() -> ModuleType:
    """Import the judge. Later calls return the same module."""
    return importlib.import_module(JUDGE)


def serve_host(fd: int) -> None:
    """Serve the host at the other end of a socket until it closes its end. Then the session's workers end.

    Call it before the device is used or threads are started.
    """
    host = socket.socket(fileno=fd)
    reader = FrameReader(host, max_bytes=MOST_BYTES)
    session_config = SessionConfig.model_validate(reader.read()["config"])
    run_directory, _ = hold_folder("run")  # until this process and its forks have ended
    fork_server, precompiling = fork_servers(session_config, host, run_directory)
    context = start_context(session_config)
    policies = PolicyMaker(session_config, os.environ)
    policies.open_to_workers(run_directory)
    if session_config.is_sandboxed:
        share_kernels(Path(session_config.cache_root))
    run_metadata = RunMetadata(
        session_config.gpu_uuid, our_processes=lambda: pool.process_ids(), keep_samples=session_config.keep_samples
    )
    reported = lambda worker: run_metadata.add_launch_gap(worker.ready.launch_gap_ns)  # noqa: E731 - one line, used once
    with WorkerPool(fork_server, run_directory, session_config, policies, on_ready=reported) as pool:
        pool.precompiling = precompiling
        requests = Requests(host, reader)
        requests.poll()
        prepares_beside = session_config.device == "cuda" and bool(spare_cores())
        if not prepares_beside:
            let_prepare(fork_server)
        if requests.ahead is not None:
            pool.expect(list_first_files(session_config, requests.ahead))
        if prepares_beside:
            let_prepare(fork_server)
        import_judge().serve(session_config, host, requests, pool, run_metadata, context)


def list_first_files(session_config: SessionConfig, request: SessionRequest) -> list[SolutionFiles]:
    """Return the files for the first two workers of a session."""
    solutions = [request.solutions[job.solution] for job in request.jobs]
    found = [files_of(solution) for solution in solutions if solution.build_error is None][:1]
    if found and session_config.profile_baseline:
        found.insert(0, reference_files(Definition.model_validate(request.definition).digest()))
    return found


def fork_servers(
    session_config: SessionConfig, host: socket.socket, run_directory: Path
) -> tuple[socket.socket, socket.socket | None]:
    """Fork the fork server of workers, and, if needed, the fork server of workers that precompile."""
    preparation = Preparation(
        session_config.device == "cuda", session_config.needs_triton, session_config.gpu_capability
    )
    compiles = session_config.needs_triton or session_config.compiles_ahead
    has_precompiled = preparation.is_for_gpu and compiles and session_config.is_sandboxed and bool(spare_cores())
    before = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # workers must not write into each other's artifacts
    try:
        fork_server = start_fork_server(run_directory, preparation, not_for_it=[host])
        if not has_precompiled:
            return fork_server, None
        return fork_server, start_fork_server(
            None, replace(preparation, precompiles=True), not_for_it=[host, fork_server]
        )
    finally:
        sys.dont_write_bytecode = before


def start_context(session_config: SessionConfig) -> threading.Thread | None:
    """Start to make this process's context on its GPU in the background; return the thread that makes it.

    Afterwards this process computes in one thread.
    """
    if session_config.device != "cuda":
        return None
    keep_to_one_thread()
    os.environ["CUDA_CACHE_PATH"] = str(Path(session_config.cache_root, JUDGE_FOLDER, "cuda"))  # not in the user's HOME
    context = threading.Thread(target=make_context, daemon=True)
    context.start()
    return context
