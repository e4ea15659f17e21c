"""Times the reference: once for each workload, as a solution is timed, in a worker of its own.

The reference is a solution that may write to its inputs and is never refused: the same worker, the same calls on
content of the same kind, the same clock. So a solution that is the reference has a speed-up of 1. The time of an
earlier run on the same GPU (`baseline_cache.py`) is taken over. The caller makes sure that no worker holds a solution
meanwhile (`device_session.prepare`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flashinfer_bench.bench.runner.baseline_cache import KeptBaselines, move_to_gap
from flashinfer_bench.bench.runner.protocol import BlockSolution, Hello
from flashinfer_bench.bench.runner.session.job import BaselineKey, JobContext, plan_reference
from flashinfer_bench.bench.runner.workers.artifacts import load_solution
from flashinfer_bench.bench.runner.workers.kernel import RemoteKernel, WorkerKilled
from flashinfer_bench.bench.runner.workers.kernel_task import KernelMetadata, KernelTask, SessionTools
from flashinfer_bench.bench.runner.workers.pool import WorkerPool, gaps_matter, reference_files
from flashinfer_bench.errors import DefinitionFault, SolutionFailure
from flashinfer_bench.timing.measurement import Measured


@dataclass
class ReferenceTimer:
    """Times references on one device and keeps their times."""

    hello: Hello
    pool: WorkerPool
    tools: SessionTools
    kept: KeptBaselines | None = None
    """Times of earlier runs; None if none are taken over."""
    _known: dict[BaselineKey, Measured] = field(default_factory=dict)
    _forgotten: set[BaselineKey] = field(default_factory=set)
    """Workloads whose time was forgotten once: no time of an earlier run counts, and the next one stands."""

    def recall(self, job: JobContext) -> Measured | None:
        """Return the reference's time on a job's workload in this run or an earlier one; None if there is none."""
        if job.key not in self._known and self.kept is not None and job.key not in self._forgotten:
            found = self.kept.find(job, plan_reference(self.hello, job.block.config))
            if found is not None:
                self._known[job.key] = found
        return self._known.get(job.key)

    def forget_slow(self, key: BaselineKey) -> bool:
        """Forget a time that was taken in a slow context, as is known since a faster one was seen; tell whether it was.

        The first contexts of a session may all be slow. Then a solution that is the reference would seem faster.
        """
        known = self._known.get(key)
        if known is None or key in self._forgotten:
            return False
        excess_ns = self.pool.excess_ns(known.record.get("chain_gap_ns", 0))
        if not gaps_matter(excess_ns, known.record.get("operations", 1), known.latency_ms * 1e6):
            return False
        del self._known[key]
        self._forgotten.add(key)
        self.pool.end_reference()
        return True

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
            known = self._known[job.key] = self._take(job, input_sets)
            if self.forget_slow(job.key):
                known = self._known[job.key] = self._take(job, input_sets)
            if self.kept is not None and is_alone:
                self.kept.keep(job, plan_reference(self.hello, job.block.config), known)
        return move_to_gap(known, self.tools.readout.launch_gap_ns)

    def _take(self, job: JobContext, input_sets: list[list[Any]], *, is_retried: bool = False) -> Measured:
        """Time the reference; once more if a signal from outside may have ended its worker."""
        definition = job.block.definition
        try:
            kernel = self._open(job)
            kernel.call_once(input_sets[0])  # compiling at the first call is no part of a measurement
            return kernel.measure(input_sets)
        except SolutionFailure as failure:
            self.pool.end_reference()
            if isinstance(failure, WorkerKilled) and not is_retried:
                return self._take(job, input_sets, is_retried=True)
            message = f"reference of {definition.name}, while it was timed: {failure.message}"
            raise DefinitionFault(message) from None
        finally:
            self.pool.tend()

    def _open(self, job: JobContext) -> RemoteKernel:
        """Return the reference, loaded in its worker, as a callable for a job's workload."""
        definition, digest = job.block.definition, job.block.digest
        worker, is_fresh = self.pool.worker_for(reference_files(digest))
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),
            timeout_seconds=self.hello.timeout_seconds,
            plan=plan_reference(self.hello, job.block.config),
            vary=job.vary_secretly(),
            may_return_inputs=True,
            is_reference=True,
        )
        kernel = RemoteKernel(worker, self.tools, task, KernelMetadata("run", definition.name, False))
        if is_fresh:
            load_solution(kernel, self.pool, describe_reference(definition.name, digest, definition.reference))
        return kernel


def describe_reference(definition: str, digest: str, source: str) -> BlockSolution:
    """Return the reference of a definition as a solution."""
    return BlockSolution(
        name=f"reference of {definition}",
        language="python",
        declared_style=False,
        digest=reference_files(digest).digest,
        directory=None,
        entry="reference.py",
        symbol="run",
        kind="reference",
        sources={"reference.py": source},
        build_error=None,
    )
