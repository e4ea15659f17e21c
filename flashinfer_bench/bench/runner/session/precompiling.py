"""Has first calls of solutions that come compiled while the current solution is judged.

A kernel of Triton's takes 0.3 s to some ten seconds to compile, a module of FlashInfer's a minute or more, and the GPU
would wait for it. Each solution that is new to this machine gets a worker of its own for that: with the same walls,
without a GPU, at the lowest priority, on some of the cores (`worker/jit/precompile.py`). So it launches nothing beside
a measurement. While a reference is timed, all of them stand still: a slow reference would make a solution look fast.
"""

from __future__ import annotations

import importlib
import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Final, NamedTuple, NoReturn

import torch

from flashinfer_bench.base.host import cores_for_compilers, spare_cores, usable_memory
from flashinfer_bench.bench.evaluators.compare.packed import storage_shape
from flashinfer_bench.bench.planning.first_call import FirstCall, classify_first_call
from flashinfer_bench.bench.runner.protocol import Announced, BlockJob, BlockSolution
from flashinfer_bench.bench.runner.session.job import BlockContext
from flashinfer_bench.bench.runner.session.opening import files_of
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.data import Definition, ScalarInput, TensorSpec, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import BuildFault, DeviceFault

MOST_AT_ONCE: Final = 4
"""Most solutions of a kind that are precompiled at once."""
MOST_CALLS: Final = 64
"""Most workloads that a solution is called for."""
BYTES_PER_COMPILER: Final = 2 << 30
"""Memory that nvcc may need for one of FlashInfer's larger files."""
MEMORY_SHARE: Final = 4
"""Compilers of modules may need this machine's memory, divided by this."""
POLL_S: Final = 1.0
"""Seconds between two looks for further solutions while one is waited for."""
SERVER_POLL_S: Final = 0.005
"""Seconds between two checks whether the import is over, while the fork server is not ready."""


class Terms(NamedTuple):
    """Limits of precompiling a kind of solution."""

    limit_s: float
    """Seconds until its worker is ended."""
    wait_s: float
    """Seconds that a solution's turn waits for it. The first call does the rest."""
    most_compilers: int = 1
    """Most compilers at once. Several get all cores except for a share, since they take minutes."""

    def list_means(self) -> dict[str, Any]:
        """Return the share of this machine that a worker may use."""
        cores = cores_for_compilers() if self.most_compilers > 1 else spare_cores()
        room = usable_memory() // MEMORY_SHARE // BYTES_PER_COMPILER // MOST_AT_ONCE
        return {"cores": cores, "compilers": max(1, min(self.most_compilers, 2 * len(cores) // MOST_AT_ONCE, room))}


TERMS: Final = {FirstCall.TRITON: Terms(60.0, 10.0), FirstCall.MODULES: Terms(400.0, 240.0, most_compilers=8)}
"""Other compilers want a GPU."""

Wanted = tuple[BlockSolution, Any, list[Any]]
"""A solution to precompile, its definition and its workloads; the last two as objects or as JSON-able values."""


class UnderWay(NamedTuple):
    """A solution that is being precompiled."""

    worker: WorkerProcess
    terms: Terms
    deadline: float


class Precompiler:
    """Precompiles solutions on one device; call `close` at the end.

    Args:
        pool: starts the workers.
        has_modules: precompile modules as well: no other session compiles or measures.
    """

    def __init__(self, pool: WorkerPool, *, has_modules: bool = False) -> None:
        self._pool = pool
        self._kinds = TERMS.keys() if has_modules else {FirstCall.TRITON}
        self._wanted: dict[str, Wanted] = {}
        self._settled: set[str] = set()
        """Digests of solutions that need nothing any more."""
        self._running: dict[str, UnderWay] = {}

    def expect(self, coming: Sequence[tuple[BlockContext, BlockJob]], announced: Sequence[Announced] = ()) -> None:
        """Precompile for jobs that come, as far as there is room; wait for nothing.

        Args:
            coming: the jobs; the solution of the first one has its turn now.
            announced: solutions of later blocks, if the jobs leave room.
        """
        for block, order in coming[:1]:
            self._settled.add(block.solutions[order.solution].digest)
        found: list[tuple[BlockSolution, Any, Sequence[Any]]] = []
        found += [(block.solutions[order.solution], block.definition, [order.workload]) for block, order in coming]
        found += [(one.solution, one.definition, one.workloads) for one in announced]
        self._wanted = {}
        for solution, definition, workloads in found:
            if solution.digest not in self._settled:
                self._wanted.setdefault(solution.digest, (solution, definition, []))[2].extend(workloads)
        self._fill()

    def begin(self, is_over: Callable[[], bool]) -> None:
        """Start the expected compilations as soon as their fork server is ready.

        Args:
            is_over: ends the wait for the server; called again and again.
        """
        while self._wanted and self._pool.precompiling is not None and not self._pool.may_precompile():
            if is_over():
                return
            select.select([self._pool.precompiling], [], [], SERVER_POLL_S)
        self._fill()

    def _fill(self) -> None:
        """End who is late, and begin as many as there is room for."""
        if not self._pool.may_precompile():
            return
        for digest, running in list(self._running.items()):
            if running.worker.has_ended or time.monotonic() > running.deadline:
                self._end(digest)
        for digest, wanted in self._wanted.items():
            if digest not in self._settled:
                kind = what_compiles(wanted[0])
                is_needed = kind in self._kinds and not self._pool.policies.is_compiled(digest)
                if is_needed and sum(one.terms is TERMS[kind] for one in self._running.values()) >= MOST_AT_ONCE:
                    continue
                self._settled.add(digest)
                if is_needed:
                    self._start(*wanted, TERMS[kind])

    def _start(self, solution: BlockSolution, definition: Any, workloads: list[Any], terms: Terms) -> None:
        definition = Definition.model_validate(definition)
        calls = [describe_call(definition, Workload.model_validate(one)) for one in workloads[:MOST_CALLS]]
        try:
            gpu = describe_gpu()
        except Exception:  # Triton cannot use this GPU, or is a version that tells nothing
            self._pool.end_precompiling()
            return
        words = {"calls": [call for call in calls if call is not None], "gpu": gpu, **terms.list_means()}
        with suppress(BuildFault, DeviceFault):  # its turn will tell
            worker = self._pool.start_precompiling(files_of(solution), find_artifact(solution, _refuse), words)
            self._running[solution.digest] = UnderWay(worker, terms, time.monotonic() + terms.limit_s)

    def finish(self, digest: str, most_s: float, tell: Callable[[], object]) -> bool:
        """Wait for a solution whose turn it is, as long as its terms say; then nothing of it runs any more.

        Args:
            digest: the solution's.
            most_s: most seconds in any case.
            tell: called if a worker is waited for; then the answer is True.
        """
        self._settled.add(digest)
        running = self._running.get(digest)
        if running is None:
            return False
        tell()
        deadline = min(running.deadline, time.monotonic() + min(running.terms.wait_s, most_s))
        while not running.worker.has_ended and (left_s := deadline - time.monotonic()) > 0:
            select.select([running.worker], [], [], min(POLL_S, left_s))
            self._fill()
        self._end(digest)
        return True

    def pause(self) -> bool:
        """Stop all until `resume`; say whether anything ran."""
        for running in self._running.values():
            while running.worker.supervisor_pid is None and not running.worker.has_ended:  # it is being forked
                select.select([running.worker], [], [], POLL_S)
            running.worker.pause()
        return bool(self._running)

    def resume(self) -> None:
        """Let all go on that `pause` has stopped."""
        for running in self._running.values():
            running.worker.resume()

    def close(self) -> None:
        """End all that are running."""
        self.resume()
        for digest in list(self._running):
            self._end(digest)

    def _end(self, digest: str) -> None:
        """End a worker, if it is still there. If it ended by itself, all of its solution is compiled."""
        running = self._running.pop(digest, None)
        ended = running.worker.end() if running is not None else None
        if ended is not None and ended.code == 0:
            self._pool.policies.mark_compiled(digest)


def _refuse() -> NoReturn:
    raise BuildFault("its artifact was changed")


def what_compiles(solution: BlockSolution) -> FirstCall:
    """Return what compiles at a solution's first call, by its language and its texts."""
    if solution.build_error is not None or solution.kind != "python":
        return FirstCall.NOTHING
    return classify_first_call(solution.language, solution.sources.values())


def describe_call(definition: Definition, workload: Workload) -> dict[str, Any] | None:
    """Return the shapes and kinds of a call's arguments; None if the workload does not tell them."""

    def describe(spec: TensorSpec, shape: Sequence[int] | None, given: object = None) -> dict[str, Any]:
        if isinstance(given, ScalarInput):
            return {"scalar": given.value}
        if shape is None:
            raise ValueError("a number that is not told")
        dtype = str(torch_dtype(spec.dtype)).removeprefix("torch.")
        return {"shape": list(storage_shape(tuple(shape), spec.dtype)), "dtype": dtype}

    try:
        given = [workload.inputs.get(name) for name in definition.inputs]
        inputs = map(describe, definition.inputs.values(), definition.get_input_shapes(workload.axes), given)
        shapes = [shape or () for shape in definition.get_output_shapes(workload.axes)]
        return {"inputs": list(inputs), "outputs": list(map(describe, definition.outputs.values(), shapes))}
    except (KeyError, ValueError):
        return None


@cache
def describe_gpu() -> dict[str, Any]:
    """Return the properties of this session's GPU by torch and, if it is installed, by Triton's driver.

    `worker/jit/precompile.py` tells a worker without a GPU these.
    """
    found = torch.cuda.get_device_properties(0)
    by_torch = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    by_torch = {name: value for name, value in by_torch.items() if isinstance(value, (int, str))}
    by_triton: dict[str, Any] = {}
    with suppress(ImportError):
        driver = importlib.import_module("triton.runtime.driver").driver
        by_triton = dict(driver.active.utils.get_device_properties(0))
    return {"torch": by_torch, "triton": by_triton}
