"""The jobs that a resumed run repeats, and that one run leaves to another; sessions are pretended."""

import itertools
import os
import threading

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.data import TraceSet
from flashinfer_bench.data.sets.results import find_latest
from tests.bench.played import play
from tests.bench.small_runs import HONEST, QUICKLY, write_set

pytestmark = pytest.mark.cpu
STATUS = {HONEST: "PASSED", "def run(x):\n    return x * 3\n": "INCORRECT_NUMERICAL"}
_, WRONG = STATUS


@pytest.fixture
def root(monkeypatch, tmp_path):
    """The folder of a set of one job; the status of a verdict is that of its source in the set."""
    opened, seconds, root = threading.Event(), itertools.count(), tmp_path / "set"
    opened.set()

    def evaluate(job, name):
        (solution,) = TraceSet.from_path(root).solutions["double"]
        return {"status": STATUS[solution.sources[0].content], "timestamp": f"2025-01-02T00:00:0{next(seconds)}Z"}

    play(monkeypatch, gate=opened, evaluate=staticmethod(evaluate))
    write_set(root, {"s": HONEST})
    return root


def open_benchmark(root):
    return Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(**QUICKLY), cache=root.parent / "cache")


def test_a_solution_that_became_wrong_again_is_never_reported_as_passed(root):
    for source in (WRONG, HONEST, WRONG):
        write_set(root, {"s": source})
        open_benchmark(root).run_all(resume=True)
    found = TraceSet.from_path(root)
    assert len(found.traces["double"]) == 3
    assert found.get_best_trace("double") is None
    assert [item.evaluation.status.value for item in find_latest(found.traces["double"])] == ["INCORRECT_NUMERICAL"]
    assert open_benchmark(root).plan(resume=True).jobs == ()


def test_an_object_resumes_only_from_its_saved_traces(root):
    benchmark = open_benchmark(root)
    benchmark.run_all(save_results=False)
    assert len(benchmark.plan(resume=True).jobs) == 1
    saved = benchmark.run_all().traces
    benchmark.run_all(save_results=False)
    assert benchmark.plan(resume=True).resumed == 1
    assert benchmark.run_all(resume=True).traces == saved
    assert len(benchmark.get_trace_set().traces["double"]) == 3
    benchmark.get_trace_set().backup_traces()
    assert len(benchmark.plan(resume=True).jobs) == 1


def test_two_resumed_runs_at_once_judge_each_job_once(root):
    first, second = open_benchmark(root), open_benchmark(root)
    with first, second:
        kept = first.reserve(first.plan(resume=True))
        left = second.reserve(second.plan(resume=True))
        assert (len(kept.jobs), left.jobs) == (1, ())
        assert [skip.reason for skip in left.skips] == [f"process {os.getpid()} judges it now"]
        assert len(list(first.run(kept))) > 0
        assert second.plan(resume=True).resumed == 0  # it has not read the first run's records
    with open_benchmark(root) as third:
        assert third.plan(resume=True).resumed == 1
    assert not (root / ".runs").exists()


@pytest.mark.parametrize("is_linked", [False, True])
def test_jobs_of_a_run_that_was_killed_are_free_and_no_link_is_followed(root, tmp_path, is_linked):
    home = tmp_path / "home"
    (home if is_linked else root / ".runs").mkdir()
    if is_linked:
        (root / ".runs").symlink_to(home)
    else:
        (root / ".runs" / "1-gone").write_text("1\nabc")
    with open_benchmark(root) as benchmark:
        assert len(benchmark.reserve(benchmark.plan(resume=True)).jobs) == 1
        assert not (root / ".runs" / "1-gone").exists()
        assert not is_linked or [*home.iterdir()] == []
