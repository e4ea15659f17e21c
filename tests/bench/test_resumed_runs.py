"""What a resumed run does again, in real runs."""

import os

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import find_latest
from tests.bench.small_runs import HONEST, QUICKLY, write_set

pytestmark = [pytest.mark.cpu, pytest.mark.timeout(180)]
WRONG = "def run(x):\n    return x * 3\n"


def open_benchmark(root):
    return Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**QUICKLY))


def test_a_solution_that_became_wrong_again_is_never_reported_as_passed(tmp_path):
    for source in (WRONG, HONEST, WRONG):
        write_set(tmp_path, {"s": source})
        open_benchmark(tmp_path).run_all(resume=True)
    found = TraceSet.from_path(tmp_path)
    assert len(found.traces["double"]) == 3
    assert found.get_best_trace("double") is None
    assert [item.evaluation.status.value for item in find_latest(found.traces["double"])] == ["INCORRECT_NUMERICAL"]
    assert open_benchmark(tmp_path).plan(resume=True).jobs == ()


def test_one_object_knows_what_it_has_saved_and_only_that(tmp_path):
    write_set(tmp_path, {"s": HONEST})
    benchmark = open_benchmark(tmp_path)
    benchmark.run_all(save_results=False)
    assert len(benchmark.plan(resume=True).jobs) == 1
    saved = benchmark.run_all().traces
    benchmark.run_all(save_results=False)
    assert benchmark.plan(resume=True).resumed == 1
    assert benchmark.run_all(resume=True).traces == saved
    assert len(benchmark.get_trace_set().traces["double"]) == 3  # though they may be of one second
    benchmark.get_trace_set().backup_traces()
    assert len(benchmark.plan(resume=True).jobs) == 1


def test_two_resumed_runs_at_once_judge_each_job_once(tmp_path):
    write_set(tmp_path, {"s": HONEST})
    first, second = open_benchmark(tmp_path), open_benchmark(tmp_path)
    with first, second:
        kept = first.reserve(first.plan(resume=True))
        left = second.reserve(second.plan(resume=True))
        assert (len(kept.jobs), left.jobs) == (1, ())
        assert [skip.reason for skip in left.skips] == [f"process {os.getpid()} judges it now"]
        assert len(list(first.run(kept))) > 0
        assert second.plan(resume=True).resumed == 0  # it has not read what the first has recorded
    with open_benchmark(tmp_path) as third:
        assert third.plan(resume=True).resumed == 1
    assert not (tmp_path / ".runs").exists()


def test_jobs_of_a_run_that_was_killed_are_free_and_no_link_is_followed(tmp_path):
    for name in ("killed", "linked", "home"):
        write_set(tmp_path / name, {"s": HONEST})
    (tmp_path / "killed" / ".runs").mkdir()
    (tmp_path / "killed" / ".runs" / "1-gone").write_text("1\nabc")
    before = sorted((tmp_path / "home").iterdir())
    (tmp_path / "linked" / ".runs").symlink_to(tmp_path / "home")
    for name in ("killed", "linked"):
        with open_benchmark(tmp_path / name) as benchmark:
            assert len(benchmark.reserve(benchmark.plan(resume=True)).jobs) == 1
            assert not (tmp_path / name / ".runs" / "1-gone").exists()
            assert sorted((tmp_path / "home").iterdir()) == before
