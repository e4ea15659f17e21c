"""Seeds of jobs: secret without a seed of the user, repeatable with a seed, and read back from a trace."""

from dataclasses import replace

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.job_seeds import JobSeeds, recorded_seeds
from flashinfer_bench.errors import UsageError
from tests.kit import make_definition, make_solution, make_trace, make_workload


def make_job(solution="s", at=0):
    definition = make_definition()
    source = f"# {solution}\ndef run(x):\n    return x * 2\n"
    parts = make_workload(f"w{at}", axes={"n": 8 + at}), make_solution(solution, source=source)
    return Job(at, definition, *parts, BenchmarkConfig().resolve_eval_config(definition), {})


JOBS = [make_job(), replace(make_job("other"), index=2), make_job(at=1)]


def trace_of(job, seeds):
    return make_trace(solution=job.solution.name, workload=job.workload, extra={"run": seeds.describe(job)})


def drawn(seeds):
    return [seeds.of(job) for job in JOBS]


def test_without_a_seed_each_job_has_a_secret_of_its_own_that_stays():
    seeds = JobSeeds(None)
    first = drawn(seeds)
    assert first == drawn(seeds)
    assert len({*first, *drawn(JobSeeds(None)), *drawn(seeds.anew())}) == 9
    seeds.forget(JOBS[0])
    assert seeds.of(JOBS[0]) not in first
    assert min(first) > 2**24


def test_a_seed_of_the_users_decides_all_others_and_jobs_have_different_ones():
    assert drawn(JobSeeds(5)) == drawn(JobSeeds(5))
    assert len({*drawn(JobSeeds(5)), *drawn(JobSeeds(6))}) == 6
    assert JobSeeds(5).describe(JOBS[0]) == {"seed": 5, "seeded": True}


@pytest.mark.parametrize("run_seed", [None, 5])
def test_traces_give_their_jobs_the_seeds_that_they_had(run_seed):
    seeds = JobSeeds(run_seed)
    assert drawn(JobSeeds(*recorded_seeds(trace_of(job, seeds) for job in JOBS))) == drawn(seeds)
    old = make_trace(extra={"run": {"seed": 5}})  # from before jobs had seeds
    assert drawn(JobSeeds(*recorded_seeds([old]))) == drawn(JobSeeds(5))


def test_traces_of_runs_with_different_seeds_are_not_replayed_together():
    for pair in ((5, 6), (5, None)):
        with pytest.raises(UsageError, match="one by one"):
            recorded_seeds([trace_of(JOBS[0], JobSeeds(seed)) for seed in pair])


@pytest.mark.parametrize("extra", [None, {"run": None}, {"run": {"seed": "5"}}, {"run": {"seeded": False}}])
def test_a_trace_without_a_seed_gives_none(extra):
    assert recorded_seeds([make_trace(extra=extra), make_trace(solution=None)]) == (None, {})
