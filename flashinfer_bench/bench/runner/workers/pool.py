"""Which worker serves which solution: one for each solution (persistent), or one for each workload (isolated).

No worker serves two solutions. A spare worker is forked early, so that it starts up while the session computes expected
outputs. `quiesce` waits until the spare is up: no other process of ours uses the device during a measurement.

A worker with walls is made for one solution from its start: walls cannot be changed, and they have to stand before a
context on a GPU starts threads. So the session tells the pool which solutions come next (`expect`), and the spare is
for one of them.
"""

from __future__ import annotations

import base64
import itertools
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.runner.environments import solution_environment, solution_folder, worker_environment
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.enclosure import Enclosure
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.compile import Artifact
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


@dataclass(frozen=True)
class SolutionFiles:
    """A solution that wants a worker, and where its files are."""

    digest: str
    """The solution's."""
    artifact: Path | None = None
    """The folder of its artifact; None where its sources are still to be written."""


ANY_SOLUTION: Final = SolutionFiles("")


@dataclass
class Spare:
    """A worker that has loaded no solution yet."""

    worker: WorkerProcess
    solution: SolutionFiles
    """What its walls are for; ANY_SOLUTION where it has none."""


class WorkerPool:
    """Hands out workers of one device; a context manager that ends them all.

    Args:
        template: where workers are forked.
        run_directory: each worker gets a folder in it.
        hello: the session's settings.
        on_ready: told of each worker once it can take work.
        enclosure: makes the walls of workers; None where they have none.

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
        enclosure: Enclosure | None = None,
    ) -> None:
        self._enclosure = enclosure
        self._expected: list[SolutionFiles] = []
        self._given: dict[int, Path] = {}
        """Worker, by its object's id → the folder that it alone reads."""
        self.timing_image: bytes | None = None
        self.best_chain_ns: int | None = None
        self._on_ready = on_ready
        self._template = template
        self._run_directory = run_directory
        self._hello = hello
        self._numbers = itertools.count(1)
        self._current: tuple[str, WorkerProcess] | None = None
        self._spare: Spare | None = None
        self._ending: list[WorkerProcess] = []

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
        if self._spare is not None:
            self._ending.append(self._spare.worker)
            self._spare = None
        self.finish_ending()
        self._template.close()

    def worker_for(self, solution: SolutionFiles) -> tuple[WorkerProcess, bool]:
        """Return the solution's worker, ready, and whether it is a fresh one that has loaded nothing yet.

        Raises:
            DeviceFault: no worker can be started.
        """
        if self._current is not None:
            digest, worker = self._current
            if digest == solution.digest:
                return worker, False
            self.discard()
        worker = self._take_fresh(solution)
        self._current = (solution.digest, worker)
        if solution in self._expected:
            self._expected.remove(solution)
        self.prepare_spare()
        return worker, True

    def expect(self, solutions: Sequence[SolutionFiles]) -> None:
        """Learn which solutions will want workers, the next one first; make the spare be for one of them."""
        self._expected = list(solutions)
        if self._current is not None and self._expected and self._expected[0].digest == self._current[0]:
            del self._expected[0]
        self.prepare_spare()

    def prepare_spare(self) -> None:
        """Fork the next worker now, so that it has started when it is needed."""
        if self._enclosure is None:
            if self._spare is None:
                self._spare = Spare(self._spawn(ANY_SOLUTION), ANY_SOLUTION)
            return
        if self._spare is not None and self._spare.solution not in self._expected and self._expected:
            self._spare.worker.begin_end()
            self._ending.append(self._spare.worker)
            self._spare = None
        if self._spare is None and self._expected:
            self._spare = Spare(self._spawn(self._expected[0]), self._expected[0])

    def quiesce(self) -> None:
        """Wait until earlier workers are gone and the spare is up. A spare that fails to start is dropped."""
        if self._spare is not None:
            try:
                self._spare = replace(self._spare, worker=self._settle(self._spare.worker, self._spare.solution))
            except DeviceFault:
                self._spare = None
        self.finish_ending()

    def make_folder(self) -> Path:
        """Return a new folder that lasts as long as the session, and that the current worker reads."""
        folder = Path(tempfile.mkdtemp(dir=self._given_to_current() or self._run_directory))
        folder.chmod(0o755)  # a worker may be of another user; nobody else comes through the folders above
        return folder

    def hand_over(self, artifact: Artifact) -> Artifact:
        """Return an artifact that the current worker can read."""
        given = self._given_to_current()
        return artifact if self._enclosure is None or given is None else self._enclosure.hand_over(artifact, given)

    def solution_environment(self, digest: str) -> dict[str, str]:
        """Return where a solution's compilers keep what they make, with what else is its own."""
        if self._enclosure is not None:
            return self._enclosure.environment(digest)
        return solution_environment(solution_folder(Path(self._hello.cache_root), digest))

    def _given_to_current(self) -> Path | None:
        return None if self._current is None else self._given.get(id(self._current[1]))

    def process_ids(self) -> list[int]:
        """Return the ids of all workers that may hold a context on the device."""
        spare = self._spare.worker if self._spare else None
        workers = [*self._ending, spare, self._current[1] if self._current else None]
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

    def _settle(self, worker: WorkerProcess, solution: SolutionFiles) -> WorkerProcess:
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
            worker = self._spawn(solution)
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

    def _take_fresh(self, solution: SolutionFiles) -> WorkerProcess:
        """Take the spare where it is for this solution, or for any; else start a worker, and leave the spare."""
        spare, walled = self._spare, self._enclosure is not None
        if spare is not None and (not walled or spare.solution == solution):
            self._spare = None
            return self._settle(spare.worker, spare.solution)
        return self._settle(self._spawn(solution), solution)

    def _spawn(self, solution: SolutionFiles) -> WorkerProcess:
        number = next(self._numbers)
        home = self._run_directory / f"worker-{number}"
        own = {"HOME": str(home), "TMPDIR": str(home)}
        order: dict[str, Any] = {
            "environment": worker_environment(os.environ, Path(self._hello.cache_root)) | own,
            "device": "cuda:0" if self._hello.device == "cuda" else "cpu",
            "threads": usable_cores(),
            "memory_limit_bytes": self._hello.worker_memory_bytes or default_memory_limit(),
            "timing": {
                "l2_cache": self._hello.timing.l2_cache,
                "clock": self._hello.timing.clock,
                "image": base64.b64encode(self.timing_image).decode() if self.timing_image else "",
            },
        }
        given = self._run_directory / f"given-{number}"
        try:
            if self._enclosure is not None:
                walls = self._enclosure.make_walls(solution.digest, solution.artifact, given)
                order["walls"] = replace(walls, writable=(str(home), *walls.writable)).to_json()
                order["environment"] |= self._enclosure.environment(solution.digest)
            worker = WorkerProcess(self._template, order, home)
        except OSError as error:
            raise DeviceFault(
                f"the template of workers is gone, or a worker's folders cannot be made: {error}"
            ) from None
        if self._enclosure is not None:
            self._given[id(worker)] = given
        return worker
