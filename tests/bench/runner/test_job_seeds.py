"""Seeds of jobs: secret where the user gives none, repeatable where one is given, known again from a trace."""

import pytest

from flashinfer_bench.bench import BenchmarkConfig
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.job_seeds import SECRET_BITS, JobSeeds, recorded_seeds
from flashinfer_bench.errors import Misuse
from tests.kit import make_definition, make_solution, make_trace, make_workload


@pytest.fixture
def make_job():
    definition = make_definition()
    config = BenchmarkConfig().resolve_eval_config(definition)

    def made(solution="double_python", workload="w0"):
        index = 10 * (solution == "other") + int(workload[1:])
        source = f"# {solution}\ndef run(x):\n    return x * 2\n"
        axes = {"n": len(workload) + int(workload[1:])}
        parts = make_workload(workload, axes=axes), make_solution(solution, source=source)
        return Job(index, definition, *parts, config, {})

    return made


def trace_of(job, seeds):
    run = {"run": seeds.describe(job)}
    return make_trace(solution=job.solution.name, workload=job.workload, extra=run)


def test_without_a_seed_each_job_has_a_secret_of_its_own_that_stays(make_job):
    seeds = JobSeeds(None)
    jobs = [make_job(), make_job("other"), make_job(workload="w1")]
    drawn = [seeds.of(job) for job in jobs]
    assert drawn == [seeds.of(job) for job in jobs]
    assert len({*drawn, JobSeeds(None).of(jobs[0])}) == 4
    assert seeds.anew().of(jobs[0]) not in drawn
    seeds.forget(jobs[0])
    assert seeds.of(jobs[0]) not in drawn
    assert all(2 ** (SECRET_BITS - 40) < seed < 2**SECRET_BITS for seed in drawn)


def test_a_seed_of_the_users_decides_all_others_and_jobs_have_different_ones(make_job):
    jobs = [make_job(), make_job("other"), make_job(workload="w1")]
    first, again, other = ([JobSeeds(seed).of(job) for job in jobs] for seed in (5, 5, 6))
    assert first == again
    assert len({*first, *other}) == 6
    assert JobSeeds(5).describe(jobs[0]) == {"seed": 5, "seeded": True}


@pytest.mark.parametrize("run_seed", [None, 5])
def test_traces_give_their_jobs_the_seeds_that_they_had(make_job, run_seed):
    seeds, jobs = JobSeeds(run_seed), [make_job(), make_job("other"), make_job(workload="w1")]
    known = JobSeeds(*recorded_seeds(trace_of(job, seeds) for job in jobs))
    assert [known.of(job) for job in jobs] == [seeds.of(job) for job in jobs]


def test_traces_of_runs_with_different_seeds_are_not_replayed_together_and_old_ones_have_their_runs(make_job):
    job = make_job()
    for pair in ((5, 6), (5, None)):
        with pytest.raises(Misuse, match="one by one"):
            recorded_seeds([trace_of(job, JobSeeds(seed)) for seed in pair])
    trace = make_trace(extra={"run": {"seed": 5}})  # from before jobs had seeds
    assert JobSeeds(*recorded_seeds([trace])).of(job) == JobSeeds(5).of(job)


@pytest.mark.parametrize("extra", [None, {"run": None}, {"run": {"seed": "5"}}, {"run": {"seeded": False}}])
def test_a_trace_without_a_seed_gives_none(extra):
    assert recorded_seeds([make_trace(extra=extra), make_trace(solution=None)]) == (None, {})
