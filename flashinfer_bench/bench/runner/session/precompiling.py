"""Has what the solutions that come would compile at their first call compiled while the current one is judged.

A kernel of Triton's takes 0.3 s to some ten seconds to compile, a module of FlashInfer's a minute or more, and the GPU
would wait for it. Each solution that is new to this machine gets a worker of its own for that: with the same walls,
without a GPU, at the lowest priority, on some of the cores (`worker/jit/precompile.py`). So it launches nothing beside
a measurement. While a reference is timed, all of them stand still: a slow reference would make a solution look fast.
"""

from __future__ import annotations

import importlib
import logging
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import torch

from flashinfer_bench.base.files.trees import remove_tree
from flashinfer_bench.base.host import cores_for_compilers, spare_cores, usable_memory
from flashinfer_bench.base.wire import WireError
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.planning.first_call import FirstCall, look_at_first_call
from flashinfer_bench.bench.runner.protocol import Announced, BlockJob, BlockOrder, BlockSolution
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.session.wanted import files_of
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerGone, WorkerProcess
from flashinfer_bench.data import Definition, ScalarInput, TensorSpec, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import BuildFault, DeviceFault

MOST_CALLS: Final = 64
"""Workloads that a solution is called for, at the most."""
BYTES_PER_COMPILER: Final = 2 << 30
"""Memory that nvcc may need for one of FlashInfer's larger files."""
MEMORY_SHARE: Final = 4
"""Compilers of modules may need this machine's memory, divided by this."""
LOOK_S: Final = 1.0
"""Seconds between two looks at what else may be begun while a turn waits."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Terms:
    """How solutions of a kind are precompiled."""

    limit_s: float
    """Seconds from its start in which one has to be precompiled; then its worker is ended."""
    wait_limit_s: float
    """Seconds that a solution's turn waits for what is still being precompiled of it. The first call does the rest."""
    most_at_once: int
    """Solutions that are precompiled side by side, at the most."""
    most_processor_s: int
    """Seconds of a processor that it may take, and each compiler that it starts."""
    most_compilers: int = 1
    """Compilers that it runs at once, at the most."""
    is_long: bool = False
    """Compilers take minutes, so they get all cores but a share."""


TERMS: Final = {
    FirstCall.TRITON: Terms(60.0, 10.0, 4, most_processor_s=120),
    FirstCall.MODULES: Terms(400.0, 240.0, 4, most_processor_s=400, most_compilers=8, is_long=True),
}
"""Modules are precompiled where the host announces them; other compilers want a GPU."""


@dataclass(frozen=True)
class Coming:
    """A solution whose turn comes, and the workloads that it will be judged on."""

    solution: BlockSolution
    definition: Definition
    workloads: tuple[Workload, ...]
    terms: Terms


@dataclass(frozen=True)
class UnderWay:
    """A solution that is being precompiled."""

    worker: WorkerProcess
    terms: Terms
    deadline: float


Blocks = Sequence[tuple[BlockContext | BlockOrder, Sequence[BlockJob]]]
"""Blocks, each with its jobs that are left."""


class Precompiler:
    """Precompiles solutions on one device; call `close` at the end.

    Args:
        pool: starts the workers.
        has_modules: modules are precompiled, too: this session alone judges, so nobody else compiles or measures.
        describe: tells what the GPU is; see `worker/jit/stand_in.py`.
        now: monotonic seconds.
    """

    def __init__(
        self,
        pool: WorkerPool,
        *,
        has_modules: bool = False,
        describe: Callable[[], dict[str, Any]] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._terms = TERMS if has_modules else {FirstCall.TRITON: TERMS[FirstCall.TRITON]}
        self._describe = describe or describe_gpu
        self._gpu: dict[str, Any] | None = None
        self._now = now
        self.announced: Sequence[Announced] = ()
        """Solutions of later blocks, to be compiled where those that come next leave room."""
        self._met: set[str] = set()
        """Digests of solutions that need not be looked at any more."""
        self._running: dict[str, UnderWay] = {}
        self._ending: list[WorkerProcess] = []
        """Workers that were ended before they began."""
        self._blocks: Blocks = []
        self._held = ExitStack()
        """Lets those go on that stand still until a job is over."""

    def expect(self, blocks: Blocks) -> None:
        """Precompile what comes, as far as there is room; wait for nothing.

        Args:
            blocks: the blocks that come, each with its jobs that are left. The first job's solution has its turn now.
        """
        self._blocks = blocks
        self._fill()

    def _fill(self) -> None:
        """Begin what there is room for."""
        if not self._pool.may_precompile():
            return
        self._reap()
        running = Counter(one.terms for one in self._running.values())
        for coming in chain(self._list_new(self._blocks), self._list_announced()):
            terms = coming.terms
            if running[terms] < terms.most_at_once:
                running[terms] += 1
                self._met.add(coming.solution.digest)
                self._start(coming)
            elif all(running[one] >= one.most_at_once for one in self._terms.values()):
                return

    def finish(self, digest: str, most_s: float, tell: Callable[[], object]) -> bool:
        """Wait until a solution, whose turn it is, is precompiled, or for as long as it may; nothing of that runs then.

        What has not begun is not waited for: the first call compiles as quickly.

        Args:
            digest: the solution's.
            most_s: wait no longer than these seconds, whatever is under way.
            tell: called where something is waited for; then the answer is True.
        """
        self._met.add(digest)
        running = self._running.pop(digest, None)
        if running is None:
            return False
        tell()
        deadline = min(running.deadline, self._now() + min(running.terms.wait_limit_s, most_s))
        while _has_begun(running.worker) and not running.worker.has_ended and self._now() < deadline:
            self._fill()
            select.select([running.worker], [], [], max(0.0, min(LOOK_S, deadline - self._now())))
        self._end(running.worker, digest)
        return True

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """Let nothing be precompiled meanwhile. What has not begun is begun anew later."""
        with ExitStack() as stack:
            for digest, running in list(self._running.items()):
                if running.worker.has_ended:
                    continue
                if _has_begun(running.worker):
                    stack.enter_context(running.worker.resting())
                    running.worker.rest_all()
                else:
                    del self._running[digest]
                    self._met.discard(digest)
                    self._end(running.worker)
            yield

    def hold(self) -> bool:
        """Let nothing be precompiled until `go_on`; say whether anything was."""
        self._held.enter_context(self.held_still())
        return bool(self._running)

    def go_on(self) -> None:
        """Let go on what `hold` has stopped."""
        self._held.close()

    def close(self) -> None:
        """End all that is running."""
        self.go_on()
        for running in self._running.values():
            self._end(running.worker)
        self._running.clear()

    @property
    def _current(self) -> str:
        """The digest of the solution whose turn it is; empty where none is known."""
        return next((block.solutions[orders[0].solution].digest for block, orders in self._blocks if orders), "")

    def _list_new(self, blocks: Blocks) -> Iterator[Coming]:
        for block, orders in blocks:
            keys = dict.fromkeys(order.solution for order in orders)
            for key in keys:
                solution = block.solutions[key]
                if (terms := self._find_terms(solution)) is None:
                    continue
                definition = block.definition
                if not isinstance(definition, Definition):
                    definition = Definition.model_validate(definition)
                found = [Workload.model_validate(order.workload) for order in orders if order.solution == key]
                yield Coming(solution, definition, tuple(found[:MOST_CALLS]), terms)

    def _list_announced(self) -> Iterator[Coming]:
        for one in self.announced:
            if (terms := self._find_terms(one.solution)) is not None:
                definition = Definition.model_validate(one.definition)
                yield Coming(one.solution, definition, tuple(map(Workload.model_validate, one.workloads)), terms)

    def _find_terms(self, solution: BlockSolution) -> Terms | None:
        """Return how a solution is precompiled; None where it is not, or not any more, or has its turn."""
        if solution.digest in self._met or solution.digest == self._current:
            return None
        compiled = what_compiles(solution)
        if compiled in self._terms and not self._pool.has_compiled(solution.digest, compiled):
            return self._terms[compiled]
        self._met.add(solution.digest)
        return None

    def _start(self, coming: Coming) -> None:
        solution = coming.solution
        calls = [call for workload in coming.workloads if (call := describe_call(coming.definition, workload))]
        if not calls:
            return
        if self._gpu is None:
            try:
                self._gpu = self._describe()
            except Exception as error:  # Triton cannot use this GPU, or is a version that tells nothing
                _log.info("nothing is precompiled: %s", error)
                self._pool.end_precompiling()
                return
        words = {"calls": calls, "gpu": self._gpu, **list_means(coming.terms)}
        made: list[Any] = []

        def make_folder() -> Any:
            made.append(self._pool.make_folder())
            return made[-1]

        try:
            artifact = find_artifact(solution, make_folder)
            worker = self._pool.start_precompiling(files_of(solution), artifact, words)
        except (BuildFault, DeviceFault) as error:
            _log.info("%s is not precompiled: %s", solution.name, error)
            for folder in made:
                remove_tree(folder)
            return
        self._running[solution.digest] = UnderWay(worker, coming.terms, self._now() + coming.terms.limit_s)

    def _reap(self) -> None:
        """Clean up behind those that have ended, and end those that are late."""
        for digest, running in list(self._running.items()):
            if running.worker.has_ended or self._now() > running.deadline:
                del self._running[digest]
                self._end(running.worker, digest)
        for worker in [one for one in self._ending if one.has_ended]:
            self._ending.remove(worker)
            self._end(worker)

    def _end(self, worker: WorkerProcess, digest: str = "") -> None:
        """End a worker; one whose guard has not told of itself yet is looked at again later.

        Where it ended by itself, all is compiled of the solution that it had, or will not be.
        """
        if not _has_begun(worker) and worker.exit is None:
            worker.begin_end()
            self._ending.append(worker)
            return
        ended = worker.end()
        if digest and ended is not None and ended.code == 0:
            self._pool.note_compiled(digest)
        self._pool.forget(worker)
        said = worker.log.take().strip()
        if said:
            _log.info("precompiling said: %s", said)


def _has_begun(worker: WorkerProcess) -> bool:
    """Tell whether a worker and its guard run."""
    with suppress(WorkerGone, WireError):
        worker.hear()
    return worker.supervisor_pid is not None


def what_compiles(solution: BlockSolution) -> FirstCall:
    """Return what compiles at a solution's first call, by its language and its texts."""
    if solution.build_error is not None or solution.kind != "python":
        return FirstCall.NOTHING
    return look_at_first_call(solution.language, solution.sources.values())


def list_means(terms: Terms) -> dict[str, Any]:
    """Return what of this machine a worker may use that precompiles."""
    cores = cores_for_compilers() if terms.is_long else spare_cores()
    room = usable_memory() // MEMORY_SHARE // BYTES_PER_COMPILER // terms.most_at_once
    compilers = max(1, min(terms.most_compilers, 2 * len(cores) // terms.most_at_once, room))
    return {"cores": cores, "compilers": compilers, "most_processor_s": terms.most_processor_s}


def describe_call(definition: Definition, workload: Workload) -> dict[str, Any] | None:
    """Return the shapes and kinds of a call's arguments; None where the workload does not tell them."""
    try:
        inputs = definition.get_input_shapes(workload.axes)
        outputs = definition.get_output_shapes(workload.axes)
        told = [
            describe_argument(spec, shape, workload.inputs.get(name))
            for (name, spec), shape in zip(definition.inputs.items(), inputs, strict=True)
        ]
        left = [
            describe_argument(spec, shape or (), None)
            for spec, shape in zip(definition.outputs.values(), outputs, strict=True)
        ]
    except (KeyError, ValueError):
        return None
    return {"inputs": told, "outputs": left}


def describe_argument(spec: TensorSpec, shape: Sequence[int] | None, given: object) -> dict[str, Any]:
    """Return a tensor's shape and kind, or a number.

    Raises:
        ValueError: the workload does not say which number.
    """
    if shape is None:
        if not isinstance(given, ScalarInput):
            raise ValueError("a number that is not told")
        return {"scalar": given.value}
    dtype = str(torch_dtype(spec.dtype)).removeprefix("torch.")
    return {"shape": list(storage_shape(tuple(shape), spec.dtype)), "dtype": dtype}


def describe_gpu() -> dict[str, Any]:
    """Return what torch and, where it is installed, Triton's driver tell of this session's GPU."""
    found = torch.cuda.get_device_properties(0)
    told = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    by_triton: dict[str, Any] = {}
    with suppress(ImportError):
        driver = importlib.import_module("triton.runtime.driver").driver
        by_triton = dict(driver.active.utils.get_device_properties(0))
    return {
        "torch": {name: value for name, value in told.items() if isinstance(value, (int, str))},
        "triton": by_triton,
    }
