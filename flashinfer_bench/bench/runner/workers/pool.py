"""Which worker serves which solution: one for each solution (persistent), or one for each workload (isolated).

No worker serves two solutions. A spare worker is forked early, so that it starts up while the session computes expected
outputs. `quiesce` waits until the spare is up: no other process of ours uses the device during a measurement.
"""

from __future__ import annotations

import base64
import itertools
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.runner.environments import worker_environment
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.host import usable_cores, usable_memory
from flashinfer_bench.worker.template import fork, run_template
from flashinfer_bench.worker.wire import WireError

MEMORY_SHARE: Final = 0.6
"""Where the configuration sets no limit, a worker may hold this share of the machine's memory."""
MOST_CONTEXTS: Final = 4
"""Start at most this many workers to get one with a fast context; then take the last."""
SLOW_CONTEXT: Final = 1.04
"""A context is slow where a chain of empty kernels takes more than this times as long as in the best context."""
MOST_ENDING: Final = 2
"""At most this many workers may be ending at once; each still holds descriptors, and a context on a GPU."""


def start_template(run_directory: Path, *, not_for_it: socket.socket, with_triton: bool) -> socket.socket:
    """Fork the template from this process; call it before anything has touched the device or started threads.

    Args:
        run_directory: removed by the template when it ends.
        not_for_it: a socket of this process that the template must not keep open.
        with_triton: workers will launch Triton kernels on a GPU.
    """
    ours, theirs = socket.socketpair()
    if fork() == 0:
        ours.close()
        not_for_it.close()
        run_template(theirs, run_directory, with_triton=with_triton)
    theirs.close()
    return ours


def default_memory_limit() -> int:
    """Return how many bytes a worker may hold on this machine."""
    return int(usable_memory() * MEMORY_SHARE)


class WorkerPool:
    """Hands out workers of one device; a context manager that ends them all.

    Args:
        template: where workers are forked.
        run_directory: each worker gets a folder in it.
        hello: the session's settings.
        on_ready: told of each worker once it can take work.

    `timing_image` is the machine code of the timing kernels, which workers then need not assemble; `best_chain_ns` is
    the shortest `Clock.chain_gap_ns` that was seen.
    """

    def __init__(
        self,
        template: socket.socket,
        run_directory: Path,
        hello: Hello,
        *,
        on_ready: Callable[[WorkerProcess], object],
    ) -> None:
        self.timing_image: bytes | None = None
        self.best_chain_ns: int | None = None
        self._on_ready = on_ready
        self._template = template
        self._run_directory = run_directory
        self._hello = hello
        self._numbers = itertools.count(1)
        self._current: tuple[str, WorkerProcess] | None = None
        self._spare: WorkerProcess | None = None
        self._ending: list[WorkerProcess] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
        if self._spare is not None:
            self._ending.append(self._spare)
            self._spare = None
        self.finish_ending()
        self._template.close()

    def worker_for(self, solution_digest: str) -> tuple[WorkerProcess, bool]:
        """Return the solution's worker, ready, and whether it is a fresh one that has loaded nothing yet.

        Raises:
            DeviceFault: no worker can be started.
        """
        if self._current is not None:
            digest, worker = self._current
            if digest == solution_digest:
                return worker, False
            self.discard()
        worker = self._take_fresh()
        self._current = (solution_digest, worker)
        self.prepare_spare()
        return worker, True

    def prepare_spare(self) -> None:
        """Fork the next worker now, so that it has started when it is needed."""
        if self._spare is None:
            self._spare = self._spawn()

    def quiesce(self) -> None:
        """Wait until earlier workers are gone and the spare is up. A spare that fails to start is dropped."""
        if self._spare is not None:
            try:
                self._spare = self._settle(self._spare)
            except DeviceFault:
                self._spare = None
        self.finish_ending()

    def make_folder(self) -> Path:
        """Return a new folder that lasts as long as the session."""
        return Path(tempfile.mkdtemp(dir=self._run_directory))

    def process_ids(self) -> list[int]:
        """Return the ids of all workers that may hold a context on the device."""
        workers = [*self._ending, self._spare, self._current[1] if self._current else None]
        return [worker.pid for worker in workers if worker is not None and worker.pid is not None]

    def take_output(self) -> str:
        """Return what the current worker printed since the last call."""
        if self._current is None:
            return ""
        worker = self._current[1]
        if worker.exit is None:
            worker.drain()
        else:
            worker.end()
        return worker.log.take()

    def discard(self) -> None:
        """End the current worker and all that it started, without waiting for it."""
        if self._current is not None:
            worker = self._current[1]
            self._current = None
            worker.begin_end()
            self._ending.append(worker)
            self.finish_ending(leave=MOST_ENDING)

    def finish_ending(self, *, leave: int = 0) -> None:
        """Wait until at most `leave` of the ending workers are left."""
        while len(self._ending) > leave:
            self._ending.pop(0).end()

    def _settle(self, worker: WorkerProcess) -> WorkerProcess:
        """Wait until a worker is up; replace it, a few times at most, where its context is slow.

        A context feeds the GPU fast or slowly from its start to its end. On an H200 every second one is slow: work on
        several streams takes 6 % longer there, which says nothing about a solution.

        Raises:
            DeviceFault: it, or the one in its place, does not start.
        """
        for attempt in range(MOST_CONTEXTS):
            if worker.is_ready:
                break
            self._await(worker)
            self._on_ready(worker)
            if not self._is_slow(worker.chain_gap_ns) or attempt == MOST_CONTEXTS - 1:
                break
            worker.begin_end()
            self._ending.append(worker)
            worker = self._spawn()
        return worker

    def _is_slow(self, chain_gap_ns: int) -> bool:
        if chain_gap_ns <= 0:
            return False
        self.best_chain_ns = min(self.best_chain_ns or chain_gap_ns, chain_gap_ns)
        return chain_gap_ns > self.best_chain_ns * SLOW_CONTEXT

    def _await(self, worker: WorkerProcess) -> None:
        try:
            worker.wait_ready()
        except (WorkerGone, WorkerLate, WireError) as error:
            worker.end()
            said = worker.log.take().strip()
            raise DeviceFault(f"a new worker did not start: {error or type(error).__name__}\n{said}".rstrip()) from None

    def _take_fresh(self) -> WorkerProcess:
        worker, self._spare = self._spare or self._spawn(), None
        return self._settle(worker)

    def _spawn(self) -> WorkerProcess:
        number = next(self._numbers)
        home = self._run_directory / f"worker-{number}"
        own = {"HOME": str(home), "TMPDIR": str(home)}
        order: dict[str, Any] = {
            "environment": {**worker_environment(os.environ, Path(self._hello.cache_root)), **own},
            "device": "cuda:0" if self._hello.device == "cuda" else "cpu",
            "threads": usable_cores(),
            "memory_limit_bytes": self._hello.worker_memory_bytes or default_memory_limit(),
            "timing": {
                "l2_cache": self._hello.timing.l2_cache,
                "clock": self._hello.timing.clock,
                "image": base64.b64encode(self.timing_image).decode() if self.timing_image else "",
            },
        }
        try:
            return WorkerProcess(self._template, order, home)
        except OSError as error:
            raise DeviceFault(f"the template of workers is gone: {error}") from None
