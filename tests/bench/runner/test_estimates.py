"""What a job is expected to take, from what others took."""

from types import SimpleNamespace

from flashinfer_bench.bench.runner.estimates import UNKNOWN_S, JobTimes


def job(definition, solution):
    return SimpleNamespace(definition=SimpleNamespace(name=definition), solution_key=solution)


def test_the_nearest_that_is_known_counts():
    times = JobTimes()
    assert times.estimate(job("d", "s")) == UNKNOWN_S
    times.add(job("d", "s"), 2.0)
    times.add(job("d", "s"), 4.0)
    times.add(job("d", "t"), 6.0)
    times.add(job("e", "s"), 8.0)
    assert times.estimate(job("d", "s")) == 3.0
    assert times.estimate(job("d", "new")) == 4.0
    assert times.estimate(job("new", "s")) == 5.0
