"""Small runs on the first GPU, for the tests beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import Definition, Solution, TraceSet
from tests.kit import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked

FEW = {"warmup_runs": 2, "iterations": 10, "num_trials": 1}


def write_set(
    root: Path,
    solutions: dict[str, str] | Sequence[Solution],
    *,
    definition: Definition | None = None,
    axes: Sequence[dict[str, int]] = ({"n": 4096},),
) -> TraceSet:
    """Write a set of solutions (or name → source) of one definition, with a workload for each axes; load it."""
    definition = definition or make_definition()
    if isinstance(solutions, dict):
        solutions = [make_solution(name, definition=definition.name, source=one) for name, one in solutions.items()]
    inputs = {name: {"type": "random"} for name in definition.inputs}
    workloads = [make_workload(f"w{at}", axes=sizes, inputs=inputs) for at, sizes in enumerate(axes)]
    lines = [make_trace(definition=definition.name, workload=one, solution=None) for one in workloads]
    return TraceSet.from_path(write_trace_set(root, definitions=[definition], solutions=solutions, workloads=lines))


def run(trace_set: TraceSet, counts: dict[str, int] = FEW, **settings: Any) -> list[JobFinished | JobFaulted]:
    """Judge a set, with few calls unless other counts are given; return what became of each job. No process is left."""
    benchmark = Benchmark(trace_set, BenchmarkConfig.default(**{"devices": ["0"], **counts, **settings}))
    with marked() as alive:
        events = list(benchmark.run(benchmark.plan(), save_results=False))
        assert not alive()
    return [event for event in events if isinstance(event, (JobFinished, JobFaulted))]


def judge(trace_set: TraceSet, **settings: Any) -> dict[tuple[str, str], Any]:
    """Judge a set; return (solution, workload) → evaluation. Every job has one."""
    jobs = run(trace_set, **settings)
    assert jobs
    faults = [job.message for job in jobs if isinstance(job, JobFaulted)]
    assert faults == []
    return {(job.job.solution.name, job.job.workload.uuid): job.trace.evaluation for job in jobs}


def statuses(judged: dict[tuple[str, str], Any]) -> dict[str, str]:
    """Return solution → status; all of its workloads have the same."""
    found = {(name, one.status.value) for (name, _), one in judged.items()}
    assert len(found) == len(dict(found)), found
    return dict(found)
