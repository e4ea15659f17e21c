"""A verdict becomes a trace: with what it was reached under, and on disk when `save` returns. One writer for a set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flashinfer_bench.bench.context import HarnessContext
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.environments import recorded_variables
from flashinfer_bench.data import Definition, Evaluation, Solution, Trace
from flashinfer_bench.data.store.record import TraceWriter
from flashinfer_bench.errors import DataSetError, Fault
from flashinfer_bench.roofline.peaks import describe_time
from flashinfer_bench.roofline.workloads import cost_of_workload
from flashinfer_bench.timing.between_workers import WORKERS, told_with_spread


class TraceRecorder:
    """Makes traces of verdicts, and appends them to the set that the solution came from.

    Args:
        context: under which settings the verdicts are reached.
    """

    def __init__(self, context: HarnessContext) -> None:
        self._context = context
        self._writers: dict[Path, TraceWriter] = {}

    def make_trace(self, job: Job, device: Device, evaluation: Evaluation, seed: Mapping[str, Any]) -> Trace:
        """Return a trace: the verdict and what it was reached under.

        Args:
            job: what was judged.
            device: the device that it ran on.
            evaluation: the verdict.
            seed: the seed of its inputs, as a trace has it.
        """
        config = self._context.config
        variables = recorded_variables(os.environ) if device.node is None else {}  # a node has others
        on_node = {"node": device.node} if device.node is not None else {}
        run: dict[str, Any] = {
            "fingerprint": dict(job.fingerprint),
            "config": job.config.values(),
            "timeout_seconds": config.timeout_seconds,
            "worker_memory_gb": config.worker_memory_gb,
            **seed,
            "device": {"kind": device.kind, "index": device.index, "uuid": device.uuid, **on_node},
            "sandbox": self._context.sandbox_of(device).record(),
            **({"quick": True} if config.quick else {}),
            **({"variables": variables} if variables else {}),
            "runner": "isolated" if config.use_isolated_runner else "persistent",
        }
        extra = {**(evaluation.extra or {}), **self._measured(job, device, evaluation), "run": run}
        return Trace(
            definition=job.definition.name,
            workload=job.workload,
            solution=job.solution.name,
            evaluation=evaluation.model_copy(update={"extra": extra}),
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
        root = self._context.root_of(solution)
        if root is None:
            raise DataSetError(
                "the trace set was not loaded from a folder, so there is nowhere to save: save_results=False"
            )
        return self._writers.setdefault(root, TraceWriter(root))

    def _measured(self, job: Job, device: Device, evaluation: Evaluation) -> dict[str, Any]:
        """Return the records of times, with intervals that hold for the next worker, and the share of the roofline."""
        performance, found = evaluation.performance, dict[str, Any]()
        if performance is None:
            return found
        spread, extra = self._context.spread_on(device), evaluation.extra or {}
        times = {"measurement": performance.latency_ms, "baseline": performance.reference_latency_ms}
        for name, latency_ms in times.items():
            record = extra.get(name)
            if isinstance(record, dict) and record.get("interval") != WORKERS:
                found[name] = told_with_spread(record, latency_ms, spread)
        cost = None
        if device.kind != "cpu":
            cost = cost_of_workload(job.definition, job.workload, self._context.blob_root_for(job))
        facts = None if cost is None else describe_time(cost, device.name, performance.latency_ms)
        return found if facts is None else {**found, "roofline": facts}
