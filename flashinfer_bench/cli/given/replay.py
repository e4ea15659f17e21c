"""`run --replay FILE[:LINE]`: the recorded jobs that are to be judged again on the inputs that they had."""

from __future__ import annotations

from pathlib import Path

from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.data import Trace, load_jsonl_file
from flashinfer_bench.errors import Misuse


def read_recorded(text: str) -> list[Trace]:
    """Return the traces that `FILE` or `FILE:LINE` names.

    Raises:
        Misuse: there is no such line, or no verdict in what is named.
        DataSetError: the file cannot be read.
    """
    path, _, number = text.rpartition(":")
    if not path or not number.isdigit() or Path(text).exists():
        path, number = text, ""
    traces = load_jsonl_file(Trace, path)
    if number:
        if not 1 <= int(number) <= len(traces):
            raise Misuse(f"{path} has {len(traces)} lines; there is no line {number}")
        traces = [traces[int(number) - 1]]
    judged = [trace for trace in traces if trace.evaluation is not None and trace.solution is not None]
    if not judged:
        raise Misuse(f"{text} holds no verdict that could be judged again")
    return judged


def choose_replayed(config: BenchmarkConfig, traces: list[Trace]) -> BenchmarkConfig:
    """Return the configuration that chooses what the traces name."""
    chosen = {
        "definitions": sorted({trace.definition for trace in traces}),
        "solutions": sorted({trace.solution for trace in traces if trace.solution is not None}),
        "workloads": sorted({trace.workload.uuid for trace in traces}),
    }
    return config.model_copy(update=chosen)


def keep_replayed(plan: Plan, traces: list[Trace]) -> Plan:
    """Return the plan with the recorded jobs alone."""
    wanted = {(trace.definition, trace.solution, trace.workload.uuid) for trace in traces}
    jobs = tuple(job for job in plan.jobs if (job.definition.name, job.solution.name, job.workload.uuid) in wanted)
    return plan.with_jobs(jobs)
