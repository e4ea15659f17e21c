"""Times the reference: once for each workload, as a solution is timed, in a worker of its own. What an earlier run has
kept of the same GPU (`kept_baselines.py`) is not timed again.

The reference is loaded into a worker from its source, and called there by the same launch path, on the same kind of
content, with the same readings as a solution. So a solution that is the reference scores 1. The caller makes
sure that no worker holds a solution meanwhile (`device_session.prepare`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.session.job import BaselineKey, JobContext
from flashinfer_bench.bench.runner.session.kept_baselines import KeptBaselines, move_to_gap
from flashinfer_bench.bench.runner.session.plans import plan_reference
from flashinfer_bench.bench.runner.session.rehearsal import Step
from flashinfer_bench.bench.runner.session.variation import vary_secretly
from flashinfer_bench.bench.runner.workers.calling import WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, MeasurePlan, SessionTools
from flashinfer_bench.bench.runner.workers.pool import WorkerPool, gaps_matter, reference_files
from flashinfer_bench.bench.runner.workers.process import WorkerProcess
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import DefinitionFault, SolutionFailure, WorkloadFault
from flashinfer_bench.timing.measurement import Measured

ENTRY: Final = "reference.py"
SYMBOL: Final = "run"


class SlowReference(Exception):
    """The reference was timed in a context that made its calls slower, as is known now that a faster one was seen."""


@dataclass
class ReferenceTimer:
    """Times references on one device and keeps what it found."""

    hello: Hello
    pool: WorkerPool
    tools: SessionTools
    kept: KeptBaselines | None = None
    """What is known from earlier runs; None where nothing is."""
    _known: dict[BaselineKey, Measured] = field(default_factory=dict)
    _called: tuple[BaselineKey, WorkerProcess] | None = None
    """The workload whose first call was made ahead, and the worker that made it."""
    _forgotten: set[BaselineKey] = field(default_factory=set)
    """Workloads that are timed once more, since a faster context was seen; nothing of earlier runs counts for them."""
    _taken_again: set[BaselineKey] = field(default_factory=set)
    """Those for which that was done; what came of it stands."""
    _late: dict[BaselineKey, SolutionFailure] = field(default_factory=dict)
    """Workloads whose first call took the worker all its time."""

    def recall(self, job: JobContext) -> Measured | None:
        """Return the reference's time on a job's workload where this run or an earlier one has taken it."""
        if job.key not in self._known and self.kept is not None and job.key not in self._forgotten:
            found = self.kept.find(job, self._plan(job))
            if found is not None:
                self._known[job.key] = found
        return self._known.get(job.key)

    def check_context(self, job: JobContext) -> None:
        """Raise SlowReference where a slow context has made the calls of a job's reference slower.

        Which contexts are slow is known once a fast one was seen. The first ones of a session may all be slow, and
        then a solution that is the reference seemed to be 3 % faster.
        """
        if self._was_slow(job.key):
            raise SlowReference

    def forget_slow(self) -> set[BaselineKey]:
        """Forget what references took in slow contexts, once for each workload; return which are to be timed again."""
        slow = {key for key in self._known if self._was_slow(key)}
        for key in slow:
            self._forget(key)
        return slow

    def _forget(self, key: BaselineKey) -> None:
        del self._known[key]
        self._forgotten.add(key)
        self.pool.end_reference()

    def _was_slow(self, key: BaselineKey) -> bool:
        known = self._known.get(key)
        if known is None or key in self._taken_again:
            return False
        excess_ns = self.pool.excess_ns(known.record.get("chain_gap_ns", 0))
        return gaps_matter(excess_ns, known.record.get("operations", 1), known.latency_ms * 1e6)

    def call_first(
        self,
        job: JobContext,
        inputs: list[Any],
        steps: Sequence[Step] = (),
    ) -> list[torch.Tensor]:
        """Return what the reference gives for a job's inputs; its worker makes its first call on them, too.

        The reference is called here, and the steps are taken, while no worker has started; what is left then, beside
        the worker's call. What fails in the worker is told when it is timed. Where one of the two finds too little
        memory for both, it calls once more alone.

        Args:
            job: the job.
            inputs: of the call.
            steps: to be taken with the inputs and outputs.

        Raises:
            WorkloadFault: the reference fails here.
        """
        reference = job.block.reference
        made: list[list[torch.Tensor]] = []
        faults: list[Exception] = []

        def call() -> None:
            try:
                made.append(reference(inputs))
            except (WorkloadFault, torch.OutOfMemoryError, MemoryError) as fault:
                faults.append(fault)

        def take(step: Step) -> None:
            if made:
                step(inputs, made[0])

        left: list[Callable[[], object]] = [call, *(partial(take, step) for step in steps)]
        self.pool.work_while(left, partial(self.pool.is_awaited, reference_files(job.block.definition.digest())))
        kernel = self._open_kernel(job)
        try:
            self._load(kernel, job.block.definition)
            kernel.meanwhile = partial(self.pool.work_while, left)
            kernel.call_once(inputs)
            self._called = (job.key, kernel.worker)
        except SolutionFailure as failure:
            self.pool.end_reference()
            if failure.status == "TIMEOUT":
                self._late[job.key] = failure
        except BaseException:  # its answer is still to come
            self.pool.end_reference()
            raise
        if made:
            return made[0]
        if faults and isinstance(faults[0], DefinitionFault):
            raise faults[0]
        if faults:
            self._give_way()
        return reference(inputs)

    def _give_way(self) -> None:
        """Leave the device's memory to a call here."""
        self.pool.end_reference()
        self.pool.finish_ending()
        if self.hello.device == "cuda":
            torch.cuda.empty_cache()

    def measure(self, job: JobContext, input_sets: list[list[Any]], *, is_alone: bool) -> Measured:
        """Return the reference's time on a job's workload.

        Args:
            job: the job.
            input_sets: the inputs of each trial.
            is_alone: no worker holds a solution, so that later runs may have the time, too.

        Raises:
            DefinitionFault: the reference fails in its worker.
        """
        known = self.recall(job)
        if known is None:
            known = self._take(job, input_sets)
            if self._was_slow(job.key):  # as the workers show that have started meanwhile
                self._forget(job.key)  # of other workloads the session hears before their jobs
                known = self._take(job, input_sets)
            if self.kept is not None and is_alone:
                self.kept.keep(job, self._plan(job), known)
        return move_to_gap(known, self.tools.readout.launch_gap_ns)

    def _take(self, job: JobContext, input_sets: list[list[Any]], *, is_retried: bool = False) -> Measured:
        """Time the reference on a job's workload; once more where a signal from outside may have ended its worker.

        Raises:
            DefinitionFault: it fails in its worker.
        """
        kernel = self._open_kernel(job)
        try:
            if job.key in self._late:
                raise self._late.pop(job.key)
            self._load(kernel, job.block.definition)
            if self._called != (job.key, kernel.worker):
                kernel.call_once(input_sets[0])  # what compiles at the first call is no part of a measurement
            taken = kernel.measure(input_sets)
        except SolutionFailure as failure:
            self.pool.end_reference()
            if isinstance(failure, WorkerKilled) and not is_retried:
                return self._take(job, input_sets, is_retried=True)
            name = job.block.definition.name
            raise DefinitionFault(f"reference of {name}, while it was timed: {failure.message}") from None
        self._known[job.key] = taken
        if job.key in self._forgotten:
            self._taken_again.add(job.key)
        self.pool.tend_spares()
        return taken

    def _plan(self, job: JobContext) -> MeasurePlan:
        """Return how a reference is measured; a time that was taken otherwise is no time of an earlier run."""
        return plan_reference(self.hello, job.block.config)

    def _open_kernel(self, job: JobContext) -> RemoteKernel:
        worker = self.pool.reference_worker(job.block.definition.digest())
        return RemoteKernel(worker, self.tools, self._task(job), self._metadata(job))

    def _metadata(self, job: JobContext) -> KernelMetadata:
        return KernelMetadata(SYMBOL, job.block.definition.name, False)

    def _task(self, job: JobContext) -> KernelTask:
        definition = job.block.definition
        return KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),  # they are put away as those of a solution are, and cost caches the same
            timeout_seconds=self.hello.timeout_seconds,
            plan=self._plan(job),
            vary=vary_secretly(job),
            by_keyword=True,
            may_write_inputs=True,
            may_return_inputs=True,
            is_ours=True,
        )

    def _load(self, kernel: RemoteKernel, definition: Definition) -> None:
        """Have the worker import the reference; once for a worker."""
        if kernel.worker.is_loaded:
            return
        folder = self.pool.make_folder(kernel.worker)
        Path(folder, ENTRY).write_text(definition.reference, encoding="utf-8")
        digest = reference_files(definition.digest()).digest
        self.pool.name_folder(digest, f"reference of {definition.name}")
        environment = self.pool.solution_environment(digest)
        kernel.load(Artifact(folder, ENTRY, SYMBOL, "reference"), environment)
        kernel.worker.is_loaded = True
