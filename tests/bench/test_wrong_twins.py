"""Plausible bugs in every op type: each wrong twin that ships is rejected with its status, honest neighbours pass."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.timeout(240)]

BUNDLED = Path(__file__).parents[2] / "flashinfer-trace"
EXPECTED = json.loads((BUNDLED / "wrong" / "expected.json").read_text())
SAID = ("elements differ", "nan or infinite", "elements are nan", "draws", "indices are wrong", "over max_error_cap")
DEVICES = [pytest.param("cpu", id="cpu"), pytest.param("0", id="gpu", marks=pytest.mark.gpu)]


def shows(job):
    """Tell whether a job's workload shows what is wrong with its solution."""
    prefixes = EXPECTED.get(job.solution.name, {}).get("seen_in", [""])
    return any(job.workload.uuid.startswith(prefix) for prefix in prefixes)


def keep_smallest(plan):
    """Keep one job of each solution: the smallest workload that shows what is wrong with it."""
    jobs = {}
    for job in sorted(filter(shows, plan.jobs), key=lambda job: sum(job.workload.axes.values())):
        jobs.setdefault(job.solution.name, job)
    return replace(plan, jobs=tuple(sorted(jobs.values(), key=lambda job: job.index)))


@pytest.fixture(scope="module", params=DEVICES)
def finished(request):
    """Return the evaluations of one run over twins and plain solutions, by author and name."""
    trace_set = TraceSet.merge([TraceSet.from_path(BUNDLED), TraceSet.from_path(BUNDLED / "wrong")])
    config = BenchmarkConfig.default(
        authors=["twin", "plain"],
        devices=[request.param],
        profile_baseline=False,
        warmup_runs=0,
        iterations=1,
        num_trials=1,
        time_budget_s=0.5,
    )
    benchmark = Benchmark(trace_set, config)
    found = {"twin": {}, "plain": {}}
    for event in benchmark.run(keep_smallest(benchmark.plan()), save_results=False):
        if isinstance(event, JobFinished):
            found[event.job.solution.author][event.job.solution.name] = event.trace.evaluation
    assert not benchmark.faults
    return found


def test_every_twin_is_rejected_with_its_status(finished):
    names = [path.stem for path in (BUNDLED / "wrong" / "solutions" / "twin").rglob("*.json")]
    statuses = {name: evaluation.status.value for name, evaluation in finished["twin"].items()}
    assert statuses == {name: EXPECTED[name]["status"] for name in names}


def test_the_log_of_a_twin_says_how_far_it_is_off(finished):
    for name, evaluation in finished["twin"].items():
        assert evaluation.correctness is not None, name
        assert any(word in evaluation.log for word in ("differ", "nan", "draws", "indices")), (
            f"{name}: {evaluation.log}"
        )


def test_the_honest_neighbours_pass(finished):
    statuses = {name: evaluation.status.value for name, evaluation in finished["plain"].items()}
    assert len(statuses) == len(TraceSet.from_path(BUNDLED).definitions)
    assert set(statuses.values()) == {"PASSED"}, statuses
