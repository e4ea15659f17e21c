"""Every wrong solution that ships gets its status on a GPU, and honest neighbours pass.

`tests/golden/promised/test_golden_wrong.py` has them on a CPU, the logs, and solutions that fill memory.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.processes import marked

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(240)]

BUNDLED = Path(__file__).parents[2] / "flashinfer-trace"
EXPECTED = json.loads((BUNDLED / "wrong" / "expected.json").read_text())
HEAVY = ("prints_a_gigabyte_rmsnorm_h4096", "memory_list_rmsnorm_h4096")


def keep_smallest(plan):
    """Keep one job of each solution: the smallest workload that shows its error."""
    jobs = {}
    for job in sorted(plan.jobs, key=lambda job: sum(job.workload.axes.values())):
        seen_in = EXPECTED.get(job.solution.name, {}).get("seen_in", [""])
        if job.workload.uuid.startswith(tuple(seen_in)) and job.solution.name not in HEAVY:
            jobs.setdefault(job.solution.name, job)
    return replace(plan, jobs=tuple(sorted(jobs.values(), key=lambda job: job.index)))


@pytest.mark.parametrize("isolated", [False, True], ids=["persistent", "isolated"])
def test_every_wrong_solution_has_its_status_and_its_neighbours_pass(isolated):
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), TraceSet.from_path(BUNDLED / "wrong")])
    config = BenchmarkConfig.default(
        authors=["wrong", "mutant", "plain"],
        devices=["0"],
        use_isolated_runner=isolated,
        profile_baseline=False,
        worker_memory_gb=1.0,
        timeout_seconds=10.0,
        warmup_runs=0,
        iterations=1,
        num_trials=1,
        time_budget_s=0.5,
    )
    benchmark = Benchmark(trace_set, config)
    plan = keep_smallest(benchmark.plan())
    with marked() as alive:
        events = list(benchmark.run(plan, save_results=False))
        assert not alive()
    done = {event.job.solution: event.trace.evaluation for event in events if isinstance(event, JobFinished)}
    assert (len(done), benchmark.faults) == (len(plan.jobs), [])
    found = {solution.name: evaluation.status.value for solution, evaluation in done.items()}
    assert found == {name: EXPECTED.get(name, {"status": "PASSED"})["status"] for name in found}
    for solution, evaluation in done.items():
        assert EXPECTED.get(solution.name, {}).get("message_contains", "") in evaluation.log
        assert solution.author != "mutant" or evaluation.correctness is not None
