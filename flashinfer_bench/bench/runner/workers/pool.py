"""Which worker serves which solution: one for each solution (persistent), or one for each workload (isolated).

No worker serves two solutions. Several are in stock (`stock.py`), and nothing waits for the end of the worker before:
it ends in the background. `quiesce` waits for what would disturb a measurement. That is what is ending, and on a CPU
also what is starting; on a GPU a context that is made beside a measurement moves calls of more than a millisecond only
(docs/measurements.md), which wait for it (`kernel.py`).

A worker with walls is made for one solution from its start: walls cannot be changed, and they have to stand before a
context on a GPU starts threads. So the session tells the pool which solutions come next (`expect`), and the spares are
for these.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

import torch

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.bench.evaluators.inputs.memory import forget_looks
from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.environments import solution_environment, solution_folder
from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.workers.enclosure import Enclosure
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerLate, WorkerProcess
from flashinfer_bench.bench.runner.workers.spawning import NewWorker, Precompiled, make_order
from flashinfer_bench.bench.runner.workers.stock import (
    ANY_SOLUTION,
    MOST_SPARES,
    UNKNOWN_SOLUTION,
    ContextTraits,
    SolutionFiles,
    Stock,
    StockLimits,
    start_fault,
)
from flashinfer_bench.bench.runner.workers.timed.batches import BatchOverhead, touch
from flashinfer_bench.compile import Artifact
from flashinfer_bench.compile.cache import name_jit_folder
from flashinfer_bench.errors import DeviceFault
from flashinfer_bench.timing.driver import CONNECTIONS
from flashinfer_bench.worker.template import hear_ready
from flashinfer_bench.worker.wire import WireError

MOST_ENDING: Final = 4
"""At most this many workers may be ending at once; each still holds descriptors, and a context on a GPU."""
EARLY_WORKERS: Final = 2
"""While nothing is asked of a GPU's session, this many workers are ready for solutions that nobody has sent yet; on a
CPU one, which starts sooner."""


def reference_files(definition_digest: str) -> SolutionFiles:
    """Return what the worker of a definition's reference is made for: it has a digest and folders as a solution has."""
    digest = hashlib.sha256(f"reference of {definition_digest}".encode()).hexdigest()
    return SolutionFiles(digest, wants_fast=True, is_reference=True)


class WorkerPool:
    """Hands out workers of one device; a context manager that ends them all.

    Args:
        template: where workers are forked.
        run_directory: each worker gets a folder in it.
        hello: the session's settings.
        on_ready: told of each worker once it can take work.
        enclosure: makes the walls of workers; None where they have none.

    `timing_image` is the machine code of the timing kernels, which workers then need not assemble. Where workers are to
    precompile, `precompiling` is the template that these are forked from.
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
        self._keys: dict[WorkerProcess, str] = {}
        """Worker that was made for no solution → what it has in place of the digest of one."""
        self._met: set[str] = set()
        """Digests of solutions that such workers served: from the second time on they have folders of their own."""
        self._given: dict[int, Path] = {}
        """Worker, by its object's id → the folder that it alone reads."""
        self.timing_image: bytes | None = None
        self.precompiling: socket.socket | None = None
        self._precompiles: bool | None = None
        """What `hear_ready` told of that template."""
        self._template = template
        self._run_directory = run_directory
        self._hello = hello
        self._numbers = itertools.count(1)
        self._current: tuple[str, WorkerProcess] | None = None
        self._has_fast = False
        """The current worker's context is as fast as could be had."""
        self._want_fast: set[str] = set()
        """Digests of solutions that a slow context would make slower."""
        self._ending: list[WorkerProcess] = []
        """Workers that have met code that is not ours, and are not known to be gone."""
        self._ending_spares: list[WorkerProcess] = []
        self._reference: tuple[str, WorkerProcess] | None = None
        self._least_overhead: BatchOverhead | None = None
        """The least that empty bursts took in any worker so far."""
        self._has_rested = False
        """The worker that holds a reference maps nothing of the session's."""
        self._gpu_index = hello.gpu_index
        self._may_be_narrow = hello.device == "cuda" and hello.timing.clock == "auto" and CONNECTIONS not in os.environ
        """Contexts that need not be fast have one connection, unless the user says so or no clock sees streams."""
        self._narrow: WeakSet[WorkerProcess] = WeakSet()
        """Workers whose contexts have one connection."""
        limits = StockLimits(hello.device, hello.sessions)
        self.stock = Stock(self._spawn_spare, self._retire_spare, on_ready=on_ready, limits=limits)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.discard()
        self.end_reference()
        self.stock.clear()
        self.finish_ending()
        self._finish_spares()
        self._template.close()
        self.end_precompiling()

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
        self._has_fast = self._made_for(solution).wants_fast  # that of the worker: of early ones none is
        worker = self._take_fresh(solution)
        self._current = (solution.digest, worker)
        self._may_be_narrow = self._may_be_narrow and worker.clock.sees_operations
        self.stock.tend()
        return worker, True

    def reference_worker(self, definition_digest: str) -> WorkerProcess:
        """Return a ready worker for a definition's reference. No solution is loaded in it.

        Raises:
            DeviceFault: no worker can be started.
        """
        files = reference_files(definition_digest)
        if self._reference is not None and (self._reference[0] != files.digest or self._reference[1].has_ended):
            self.end_reference()
        if self._reference is None:
            self._reference = (files.digest, self._take_fresh(files))
            self.stock.tend()
        self._has_rested = False
        return self._reference[1]

    def rest_reference(self) -> None:
        """Have the worker that holds a reference give up the session's memory: a solution is to get that.

        On a GPU it is kept for the next portion of baselines, since another one would cost a context. One that has no
        walls, or does not answer, is ended.
        """
        if self._reference is None or self._has_rested:
            return
        self._has_rested = self._enclosure is not None and self._hello.device == "cuda" and self._reference[1].unbind()
        if not self._has_rested:
            self.end_reference()

    def end_reference(self) -> None:
        """End the worker that holds a reference, without waiting for it."""
        if self._reference is not None:
            worker = self._reference[1]
            self._reference = None
            self._retire(worker)

    def expect(self, solutions: Sequence[SolutionFiles]) -> None:
        """Learn which solutions will want workers, the next one first; keep spares for them."""
        held = [pair[0] for pair in (self._current, self._reference) if pair is not None]
        wanted = list(solutions)
        while wanted and wanted[0].digest in held:
            held.remove(wanted.pop(0).digest)
        self.stock.expect([self._made_for(one) for one in wanted])
        self._reap()

    def expect_any(self) -> None:
        """Start spares before anything is known of what comes; with walls that is not possible."""
        if self._enclosure is None:
            self.stock.expect([ANY_SOLUTION] * MOST_SPARES)

    def expect_unknown(self) -> bool:
        """Keep spares for solutions that nobody has sent yet, where that is wanted; say whether any is starting.

        Call it while nothing is measured, until none is.
        """
        self._reap()
        if not self._hello.has_early_workers or self._enclosure is None:
            return False
        self.stock.expect([UNKNOWN_SOLUTION] * (EARLY_WORKERS if self._hello.device == "cuda" else 1))
        return self.stock.is_starting

    @property
    def is_early(self) -> bool:
        """Whether the current worker was made for no solution: it reaches nothing of the one that it serves."""
        return self._current is not None and self._current[1] in self._keys

    @property
    def has_walls(self) -> bool:
        """Whether no worker reaches another one."""
        return self._enclosure is not None

    def quiesce(self) -> None:
        """Wait until earlier workers are gone, and on a CPU until all spares are up: a measurement begins."""
        if self._hello.device != "cuda":
            self.stock.settle()
        self.finish_ending()
        self._finish_spares()

    def is_awaited(self, solution: SolutionFiles) -> bool:
        """Say whether who asks for a worker for a solution or reference on a GPU would wait until one has started."""
        held = [pair[0] for pair in (self._current, self._reference) if pair is not None]
        is_there = solution.digest in held or self.stock.has_ready(self._made_for(solution))
        return self._hello.device == "cuda" and not is_there

    def work_while(self, steps: list[Callable[[], object]], is_wanted: Callable[[], bool] = lambda: True) -> None:
        """Take steps, one after the other, as long as that is wanted; those that are taken leave the list."""
        self.tend_spares()
        while steps and is_wanted():
            steps.pop(0)()
            self.tend_spares()

    def tend_spares(self) -> None:
        """Have spares that are of no use replaced, and missing ones started, on a GPU; wait for nothing."""
        if self._hello.device == "cuda":
            self.stock.tend()

    def is_starting(self) -> bool:
        """Say whether any spare is starting."""
        return self.stock.hear()

    def settle(self) -> bool:
        """Wait until no spare is starting; say whether any was."""
        was_starting = self.is_starting()
        self.stock.settle()
        return was_starting

    def make_room(self) -> None:
        """End the spares that a GPU has no memory for, now that a solution is to get what it needs."""
        if self._hello.device != "cuda":
            return
        before = len(self._ending_spares)
        forget_looks()
        self.stock.tend()
        if len(self._ending_spares) > before:
            self._finish_spares()

    def await_writers(self) -> None:
        """Wait for earlier workers where they could change files of others: those that have no walls."""
        if self._enclosure is None:
            self.finish_ending()

    @property
    def has_readers(self) -> bool:
        """Whether earlier workers that have not ended may use the arena's memory: on a GPU, where they map it."""
        self._reap()
        return self._hello.device == "cuda" and bool(self._ending)

    def await_readers(self) -> None:
        """Wait for earlier workers where the arena's memory is used again: they map it, and their kernels run on."""
        if self._hello.device == "cuda":
            self.finish_ending()

    def context_of(self, worker: WorkerProcess) -> ContextTraits:
        """Return what of the context of a solution's worker could make calls slower than they have to be.

        Nothing where a fast context was asked for: then no better one is to be had.
        """
        if self._current is None or self._current[1] is not worker or self._has_fast:
            return ContextTraits()
        return ContextTraits(self.stock.excess_ns(worker.chain_gap_ns), worker in self._narrow)

    def end_slow(self) -> None:
        """End the current worker; those of its solution have fast contexts from now on."""
        if self._current is not None:
            self._want_fast.add(self._current[0])
            self.discard()

    def recover(self) -> bool:
        """Make the current worker fit for its solution's next job after an error; say whether it is."""
        return self._current is not None and self._current[1].recover()

    def make_folder(self, worker: WorkerProcess | None = None) -> Path:
        """Return a new folder, which lasts as long as the session; a worker reads it, by default the current one."""
        given = self._given_to_current() if worker is None else self._given.get(id(worker))
        folder = Path(tempfile.mkdtemp(dir=given or self._run_directory))
        folder.chmod(0o755)  # a worker may be of another user; nobody else comes through the folders above
        return folder

    def hand_over(self, artifact: Artifact) -> Artifact:
        """Return an artifact that the current worker can read."""
        given = self._given_to_current()
        return artifact if self._enclosure is None or given is None else self._enclosure.hand_over(artifact, given)

    def solution_environment(self, digest: str) -> dict[str, str]:
        """Return where a solution's compilers keep what they make, with what else is its own."""
        if self._enclosure is not None:
            key = self._keys.get(self._current[1], digest) if self._current is not None else digest
            return self._enclosure.environment(key)
        return solution_environment(solution_folder(Path(self._hello.cache_root), digest))

    def name_folder(self, digest: str, name: str) -> None:
        """Note whose folder of compiled code is used now: `cache show` tells it."""
        folder = solution_folder(Path(self._hello.cache_root), digest)
        name_jit_folder(folder if self._enclosure is None else self._enclosure.folder(digest), name)

    def _given_to_current(self) -> Path | None:
        return None if self._current is None else self._given.get(id(self._current[1]))

    def process_ids(self) -> list[int]:
        """Return the ids of all workers that may hold a context on the device."""
        held = [pair[1] for pair in (self._current, self._reference) if pair is not None]
        workers = [*self._ending, *self._ending_spares, *self.stock.workers, *held]
        return [worker.pid for worker in workers if worker.pid is not None]

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
        """End the current worker and all that it started. One is waited for whose end could disturb the next one."""
        if self._current is not None:
            worker = self._current[1]
            self._current = None
            leave = MOST_ENDING if worker.is_light else 0
            self._retire(worker)
            self._reap()
            self.finish_ending(leave=leave)

    def let_go(self) -> None:
        """Begin to end the current worker, whose work is done, unless `discard` would wait for it; wait for nothing."""
        if self._current is not None and self._current[1].is_light:
            worker = self._current[1]
            self._current = None
            self._retire(worker)

    def finish_ending(self, *, leave: int = 0) -> None:
        """Wait until at most `leave` of the ending workers are left."""
        while len(self._ending) > leave:
            self._end(self._ending.pop(0))

    def _retire(self, worker: WorkerProcess) -> None:
        worker.begin_end()
        self._ending.append(worker)

    def _retire_spare(self, worker: WorkerProcess) -> None:
        if worker.is_on_another_gpu:
            self._gpu_index = None  # CUDA counts this machine's GPUs in another way: they are named by UUID from now on
        worker.begin_end()
        self._ending_spares.append(worker)

    def _reap(self) -> None:
        """Clean up behind the workers that have ended."""
        for ending in (self._ending, self._ending_spares):
            for worker in [one for one in ending if one.has_ended]:
                ending.remove(worker)
                self._end(worker)

    def _finish_spares(self) -> None:
        while self._ending_spares:
            self._end(self._ending_spares.pop(0))

    def _end(self, worker: WorkerProcess) -> None:
        """Wait for a worker's end; remove what it has made where that is no solution's."""
        worker.end()
        key = self._keys.pop(worker, None)
        if key is not None and self._enclosure is not None:
            self._enclosure.drop_key(key)

    def _made_for(self, solution: SolutionFiles) -> SolutionFiles:
        """Return what a worker for a solution is made for.

        Without walls, all are alike. Where workers are made ahead, a solution that comes for the first time takes one.
        """
        if self._enclosure is None:
            return ANY_SOLUTION
        if solution.digest in self._want_fast:
            return replace(solution, wants_fast=True)
        is_new = self._hello.has_early_workers and solution.is_text and solution.digest not in self._met
        return UNKNOWN_SOLUTION if is_new and not self._enclosure.folder(solution.digest).exists() else solution

    def _take_fresh(self, solution: SolutionFiles) -> WorkerProcess:
        """Return a worker that has loaded nothing; one for a GPU is known by what empty bursts take in it."""
        worker = self.stock.take(self._made_for(solution))
        if worker in self._keys:
            self._met.add(solution.digest)
        if self._hello.device == "cpu":
            return worker
        try:
            worker.time_empty_bursts(partial(touch, torch.device(self._hello.device)))
        except (WorkerGone, WorkerLate, WireError) as error:
            raise start_fault(worker, error) from None
        least = self._least_overhead
        worker.overhead = worker.overhead.near(least)
        self._least_overhead = min(worker.overhead, least or worker.overhead, key=lambda one: one.request)
        return worker

    def has_compiled(self, digest: str, what: FirstCall) -> bool:
        """Tell whether a solution has compiled Triton's kernels, or modules, on this machine before."""
        if self._enclosure is None:
            return False
        is_marked = what is FirstCall.MODULES
        return self._enclosure.is_marked(digest) if is_marked else self._enclosure.has_kernels(digest)

    def note_compiled(self, digest: str) -> None:
        """Keep for later sessions that all modules are compiled that a solution wants."""
        if self._enclosure is not None:
            self._enclosure.mark_compiled(digest)

    def start_precompiling(self, solution: SolutionFiles, artifact: Artifact, words: dict[str, Any]) -> WorkerProcess:
        """Start a worker with walls and without a GPU that compiles a solution's kernels, and then ends.

        Args:
            solution: what its walls are for.
            artifact: the solution's.
            words: what else `worker/jit/precompile.py` wants to know.
        """
        worker = self._spawn(solution, (artifact, words))
        worker.deafen()
        return worker

    def may_precompile(self) -> bool:
        """Tell whether workers that precompile can be started: their template has said that it is ready.

        It imports for a second or more. Orders that waited in its socket would fill that, and hold this process up.
        """
        if self.precompiling is not None and not self._precompiles:
            self._precompiles = hear_ready(self.precompiling)
            if self._precompiles is False:  # it is gone
                self.end_precompiling()
        return self.precompiling is not None and bool(self._precompiles)

    def end_precompiling(self) -> None:
        """End the template of such workers."""
        if self.precompiling is not None:
            self.precompiling.close()
            self.precompiling = None

    def forget(self, worker: WorkerProcess) -> None:
        """Remove what such a worker was given to read; it has ended."""
        given = self._given.pop(id(worker), None)
        if given is not None:
            remove_tree(given)

    def _makes_narrow(self, solution: SolutionFiles) -> bool:
        return self._may_be_narrow and not solution.wants_fast

    def _spawn_spare(self, solution: SolutionFiles) -> WorkerProcess:
        worker = self._spawn(solution)
        if self._makes_narrow(solution):
            self._narrow.add(worker)
        return worker

    def _spawn(self, solution: SolutionFiles, precompiled: Precompiled | None = None) -> WorkerProcess:
        number = next(self._numbers)
        home, given = self._run_directory / f"worker-{number}", self._run_directory / f"given-{number}"
        template = self._template if precompiled is None else self.precompiling or self._template
        try:
            key = solution.digest
            if self._enclosure is not None and solution is UNKNOWN_SOLUTION:
                key = self._enclosure.make_key(self._run_directory / f"own-{number}")
            is_narrow = self._makes_narrow(solution)
            where = (home, given, self._gpu_index)
            new = NewWorker(key, solution.artifact, *where, is_narrow, self.timing_image, precompiled)
            order = make_order(self._hello, new, self._enclosure) | {"is_reference": solution.is_reference}
            worker = WorkerProcess(template, order, home)
        except OSError as error:
            raise DeviceFault(
                f"the template of workers is gone, or a worker's folders cannot be made: {error}"
            ) from None
        if self._enclosure is not None:
            self._given[id(worker)] = given
            if solution is UNKNOWN_SOLUTION:
                self._keys[worker] = key
        return worker
