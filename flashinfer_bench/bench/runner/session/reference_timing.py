"""Times the reference: once for each workload, as a solution is timed, in a worker of its own.

The reference is loaded into a worker from its source, and called there by the same launch path, on the same kind of
content, with the same readings and bursts as a solution. So a solution that is the reference scores 1. The caller makes
sure that no worker holds a solution meanwhile (`device_session.prepare`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.runner.protocol import Hello
from flashinfer_bench.bench.runner.session.job import BaselineKey, JobContext
from flashinfer_bench.bench.runner.session.variation import vary_secretly
from flashinfer_bench.bench.runner.workers.kernel import (
    KernelMetadata,
    KernelTask,
    MeasurePlan,
    RemoteKernel,
    SessionTools,
)
from flashinfer_bench.bench.runner.workers.pool import WorkerPool, reference_key
from flashinfer_bench.compile import Artifact
from flashinfer_bench.data import Definition
from flashinfer_bench.errors import DefinitionFault, SolutionFailure
from flashinfer_bench.timing.measurement import Measured

ENTRY: Final = "reference.py"
SYMBOL: Final = "run"


@dataclass
class ReferenceTimer:
    """Times references on one device and keeps what it found."""

    hello: Hello
    pool: WorkerPool
    tools: SessionTools
    _known: dict[BaselineKey, Measured] = field(default_factory=dict)

    def measure(self, job: JobContext, input_sets: list[list[Any]]) -> Measured:
        """Return the reference's time on a job's workload.

        Raises:
            DefinitionFault: the reference fails in its worker.
        """
        if job.key not in self._known:
            kernel = self._open_kernel(job)
            try:
                self._load(kernel, job.block.definition)
                kernel.call_once(input_sets[0])  # what compiles at the first call is no part of a measurement
                self._known[job.key] = kernel.measure(input_sets)
            except SolutionFailure as failure:
                self.pool.end_reference()
                name = job.block.definition.name
                raise DefinitionFault(f"reference of {name}, while it was timed: {failure.message}") from None
        return self._known[job.key]

    def _open_kernel(self, job: JobContext) -> RemoteKernel:
        config, definition = job.block.config, job.block.definition
        plan = MeasurePlan(
            config.warmup_runs,
            config.iterations,
            self.hello.baseline_budget_s / config.num_trials,
            precision=config.precision,
            timing=self.hello.timing,
            confirms=self.hello.device == "cpu",  # there bursts may raise a latency, a solution's and so this one's
            total_s=self.hello.baseline_budget_s,
        )
        task = KernelTask(
            input_names=list(definition.inputs),
            outputs=job.output_specs(),  # they are put away as those of a solution are, and cost caches the same
            timeout_seconds=self.hello.timeout_seconds,
            plan=plan,
            vary=vary_secretly(job),
            by_keyword=job.block.reference.by_keyword,
            may_write_inputs=True,
            is_ours=True,
        )
        worker = self.pool.reference_worker(definition.digest())
        return RemoteKernel(worker, self.tools, task, KernelMetadata(SYMBOL, definition.name, False))

    def _load(self, kernel: RemoteKernel, definition: Definition) -> None:
        """Have the worker import the reference; once for a worker."""
        if kernel.worker.is_loaded:
            return
        folder = self.pool.make_folder(kernel.worker)
        Path(folder, ENTRY).write_text(definition.reference, encoding="utf-8")
        environment = self.pool.solution_environment(reference_key(definition.digest()))
        kernel.load(Artifact(folder, ENTRY, SYMBOL), environment)
        kernel.worker.is_loaded = True
