"""Compiles the first calls of later solutions while the current solution is judged.

Without precompiling, the GPU would idle: a Triton kernel compiles for up to ten seconds, a FlashInfer module for a
minute or more. Each solution that is new to this machine gets its own worker to precompile it
(`worker/jit/precompile.py`). This worker has the same sandbox, the lowest priority, some of the cores, and no GPU. So
the worker launches nothing during a measurement. All of these workers are stopped while a reference is timed, because a
slow reference would make a solution look fast.
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
from flashinfer_bench.bench.planning.first_call import FirstCall
from flashinfer_bench.bench.runner.protocol import Announced, RequestedJob, RequestedSolution
from flashinfer_bench.bench.runner.session.job import RequestContext
from flashinfer_bench.bench.runner.session.opening import files_of
from flashinfer_bench.bench.runner.workers.artifacts import find_artifact
from flashinfer_bench.bench.runner.workers.pool import WorkerPool
from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.data import Definition, ScalarInput, TensorSpec, Workload
from flashinfer_bench.data.dtypes import torch_dtype
from flashinfer_bench.errors import BuildFault, DeviceFault

MOST_AT_ONCE: Final = 4
"""Maximum number of solutions of a kind (Triton or modules) that are precompiled at once."""
MOST_CALLS: Final = 64
"""Maximum number of workloads for which one solution is precompiled."""
BYTES_PER_COMPILER: Final = 2 << 30
"""Bytes that nvcc may need for one of FlashInfer's larger files."""
MEMORY_SHARE: Final = 4
"""All compilers of modules together may use 1/MEMORY_SHARE of the machine's memory."""
POLL_S: Final = 1.0
"""Seconds between two checks for further solutions while a job waits for its solution's precompilation."""


class Terms(NamedTuple):
    """Limits of precompiling a kind of solution."""

    limit_s: float
    """Seconds after which a solution's precompiling worker is ended."""
    wait_s: float
    """Maximum seconds that a solution's job waits for its precompilation. The first call then compiles the missing
    parts."""
    most_compilers: int = 1
    """Maximum number of compilers at once. Several compilers get most of the cores, because modules take minutes."""

    def list_means(self) -> dict[str, Any]:
        """Return the cores and the number of compilers that a worker may use."""
        cores = cores_for_compilers() if self.most_compilers > 1 else spare_cores()
        room = usable_memory() // MEMORY_SHARE // BYTES_PER_COMPILER // MOST_AT_ONCE
        return {"cores": cores, "compilers": max(1, min(self.most_compilers, 2 * len(cores) // MOST_AT_ONCE, room))}


TERMS: Final = {FirstCall.TRITON: Terms(60.0, 10.0), FirstCall.MODULES: Terms(400.0, 240.0, most_compilers=8)}
"""Limits of each kind whose compilers run without a GPU."""

Wanted = tuple[RequestedSolution, Any, list[Any]]
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
        has_modules: precompile modules, too. Only allowed if no other session compiles or measures.
    """

    def __init__(self, pool: WorkerPool, *, has_modules: bool = False) -> None:
        self._pool = pool
        self._kinds = {*TERMS} if has_modules else {FirstCall.TRITON}
        self._wanted: dict[str, Wanted] = {}
        self._settled: set[str] = set()
        """Digests of solutions that need no precompilation any more."""
        self._running: dict[str, UnderWay] = {}

    def expect(
        self, coming: Sequence[tuple[RequestContext, RequestedJob]], announced: Sequence[Announced] = ()
    ) -> None:
        """Precompile for the coming jobs, up to the limits. Do not wait.

        Args:
            coming: the jobs. The first job's solution runs now.
            announced: solutions of later requests, which are precompiled last, and only within the limits.
        """
        for request, requested in coming[:1]:
            self._settled.add(request.solutions[requested.solution].digest)
        found: list[tuple[RequestedSolution, Any, Sequence[Any]]] = []
        found += [
            (request.solutions[requested.solution], request.definition, [requested.workload])
            for request, requested in coming
        ]
        found += [(one.solution, one.definition, one.workloads) for one in announced]
        self._wanted = {}
        for solution, definition, workloads in found:
            if solution.digest not in self._settled:
                self._wanted.setdefault(solution.digest, (solution, definition, []))[2].extend(workloads)
        self._fill()

    def _fill(self) -> None:
        """End late workers, and start new workers up to the limits."""
        if not self._pool.may_precompile():
            return
        for digest, running in list(self._running.items()):
            if running.worker.has_ended or time.monotonic() > running.deadline:
                self._end(digest)
        for digest, wanted in self._wanted.items():
            if digest not in self._settled:
                kind = wanted[0].first_call
                is_needed = kind in self._kinds and not self._pool.policies.is_compiled(digest)
                if is_needed and sum(one.terms is TERMS[kind] for one in self._running.values()) >= MOST_AT_ONCE:
                    continue
                self._settled.add(digest)
                if is_needed:
                    self._start(*wanted, TERMS[kind])

    def _start(self, solution: RequestedSolution, definition: Any, workloads: list[Any], terms: Terms) -> None:
        definition = Definition.model_validate(definition)
        calls = [describe_call(definition, Workload.model_validate(one)) for one in workloads[:MOST_CALLS]]
        try:
            gpu = describe_gpu()
        except Exception:  # Triton cannot use this GPU, or its version gives no description
            self._kinds = set()
            return
        words = {"calls": [call for call in calls if call is not None], "gpu": gpu, **terms.list_means()}
        with suppress(BuildFault, DeviceFault):  # the solution's own load will report it
            worker = self._pool.start_precompiling(files_of(solution), find_artifact(solution, _refuse), words)
            self._running[solution.digest] = UnderWay(worker, terms, time.monotonic() + terms.limit_s)

    def finish(self, digest: str, most_s: float, report: Callable[[], object]) -> bool:
        """Wait for the precompilation of the current solution, up to its limits, and then end it.

        Args:
            most_s: maximum seconds of the wait.
            report: called if there is a worker to wait for; only then is the result True.
        """
        self._settled.add(digest)
        running = self._running.get(digest)
        if running is None:
            return False
        report()
        deadline = min(running.deadline, time.monotonic() + min(running.terms.wait_s, most_s))
        while not running.worker.has_ended and (left_s := deadline - time.monotonic()) > 0:
            select.select([running.worker], [], [], min(POLL_S, left_s))
            self._fill()
        self._end(digest)
        return True

    def pause(self) -> bool:
        """Stop all workers until `resume`; return whether any ran."""
        for running in self._running.values():
            while running.worker.supervisor_pid is None and not running.worker.has_ended:  # it is being forked
                select.select([running.worker], [], [], POLL_S)
            running.worker.pause()
        return bool(self._running)

    def resume(self) -> None:
        """Resume the workers that `pause` has stopped, and start further workers up to the limits."""
        for running in self._running.values():
            running.worker.resume()
        self._fill()

    def close(self) -> None:
        """End all running workers."""
        self._wanted = {}
        self.resume()
        for digest in list(self._running):
            self._end(digest)

    def _end(self, digest: str) -> None:
        """End a worker if it still exists. A worker that ended by itself has fully compiled its solution."""
        running = self._running.pop(digest, None)
        ended = running.worker.end() if running is not None else None
        if ended is not None and ended.code == 0:
            self._pool.policies.mark_compiled(digest)


def _refuse() -> NoReturn:
    raise BuildFault("its artifact was changed")


def describe_call(definition: Definition, workload: Workload) -> dict[str, Any] | None:
    """Return the shapes and kinds of a call's arguments; None if the workload does not determine them."""

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
    """Return the properties of this session's GPU, from torch and, if installed, from Triton's driver.

    `worker/jit/precompile.py` uses them for its fake GPU.
    """
    found = torch.cuda.get_device_properties(0)
    by_torch = {name: getattr(found, name) for name in dir(found) if not name.startswith("_")}
    by_torch = {name: value for name, value in by_torch.items() if isinstance(value, (int, str))}
    by_triton: dict[str, Any] = {}
    with suppress(ImportError):
        driver = importlib.import_module("triton.runtime.driver").driver
        by_triton = dict(driver.active.utils.get_device_properties(0))
    return {"torch": by_torch, "triton": by_triton}
