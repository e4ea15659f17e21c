"""A verdict becomes a trace: with what it was reached under, and on disk when `save` returns. One writer for a set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.environments import recorded_variables
from flashinfer_bench.bench.runner.job_seeds import JobSeeds
from flashinfer_bench.bench.workshop.workshop import Workshop
from flashinfer_bench.data import Definition, Evaluation, Solution, Trace
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload
from flashinfer_bench.timing.between_workers import WORKERS, told_with_spread


class TraceRecorder:
    """Makes traces of verdicts, and appends them to the set that the solution came from.

    Args:
        workshop: under which settings the verdicts are reached.
        seeds: what their inputs are made from.
    """

    def __init__(self, workshop: Workshop, seeds: JobSeeds) -> None:
        self._workshop = workshop
        self._seeds = seeds
        self._writers: dict[Path, TraceWriter] = {}

    def make_trace(self, job: Job, device: Device, evaluation: Evaluation) -> Trace:
        """Add what the verdict was reached under: settings, seed, digests, device."""
        config = self._workshop.config
        variables = recorded_variables(os.environ) if device.node is None else {}  # a node has others
        run: dict[str, Any] = {
            "fingerprint": dict(job.fingerprint),
            "config": job.config.values(),
            "timeout_seconds": config.timeout_seconds,
            "worker_memory_gb": config.worker_memory_gb,
            **self._seeds.describe(job),
            "device": describe_device(device),
            "sandbox": self._workshop.sandbox_of(device).record(),
            **({"quick": True} if config.quick else {}),
            **({"variables": variables} if variables else {}),
            "runner": "isolated" if config.use_isolated_runner else "persistent",
        }
        extra = {**self._with_intervals(device, evaluation), "run": run, **self._roofline(job, device, evaluation)}
        extended = evaluation.model_copy(update={"extra": extra})
        return Trace(
            definition=job.definition.name, workload=job.workload, solution=job.solution.name, evaluation=extended
        )

    def save(self, job: Job, trace: Trace) -> None:
        """Append a trace to the set that the solution came from.

        Raises:
            Fault: it cannot be written.
        """
        try:
            self._writer(job.solution).append(trace, author=job.solution.author, op_type=job.definition.op_type)
        except Fault as fault:
            verdict = trace.evaluation.status.value if trace.evaluation is not None else "none"
            lost = f"the verdict {verdict} of {job.solution.name} on workload {job.workload.uuid} is lost"
            raise Fault(f"{fault}; {lost}") from fault

    def check(self, definition: Definition, solution: Solution) -> None:
        """Refuse a solution whose traces could not be saved.

        Raises:
            DataSetError: the set has no folder, a link in it stands in the way, or it cannot be written.
        """
        names = {"op_type": definition.op_type, "definition": definition.name}
        self._writer(solution).check(author=solution.author, **names)

    def _writer(self, solution: Solution) -> TraceWriter:
        root = self.root_of(solution)
        return self._writers.setdefault(root, TraceWriter(root))

    def root_of(self, solution: Solution) -> Path:
        """Return the folder of the set that a solution's traces go to.

        Raises:
            DataSetError: there is none.
        """
        trace_set = self._workshop.trace_set
        root = trace_set.solution_roots.get(solution.name) or trace_set.root
        if root is None:
            raise DataSetError(
                "the trace set was not loaded from a folder, so there is nowhere to save: save_results=False"
            )
        return root

    def _with_intervals(self, device: Device, evaluation: Evaluation) -> dict[str, Any]:
        """Return what a verdict tells beside its status, with intervals that hold for the next worker, too."""
        extra, performance = dict(evaluation.extra or {}), evaluation.performance
        if performance is None:
            return extra
        spread = self._workshop.spread_on(device)
        for name, latency_ms in (
            ("measurement", performance.latency_ms),
            ("baseline", performance.reference_latency_ms),
        ):
            record = extra.get(name)
            if isinstance(record, dict) and record.get("interval") != WORKERS:
                extra[name] = told_with_spread(record, latency_ms, spread)
        return extra

    def _roofline(self, job: Job, device: Device, evaluation: Evaluation) -> dict[str, Any]:
        """Tell what share of the GPU's roofline was reached, where the cost of the workload is known."""
        if evaluation.performance is None or device.kind == "cpu":
            return {}
        cost = cost_of_workload(job.definition, job.workload, self._workshop.blob_root_for(job))
        facts = describe_time(cost, device.name, evaluation.performance.latency_ms) if cost is not None else None
        return {} if facts is None else {"roofline": facts}


def describe_device(device: Device) -> dict[str, Any]:
    """Return what a trace tells of the device that judged it."""
    on_node = {"node": device.node} if device.node is not None else {}
    return {"kind": device.kind, "index": device.index, "uuid": device.uuid, **on_node}
