"""The scripts of quick starts: run a set, then look at the best trace; in real runs on the CPU."""

from __future__ import annotations

import warnings

import pytest

from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]


@pytest.fixture
def root(tmp_path):
    return write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[make_solution(target_hardware=["cpu"])],
        workloads=[make_trace(solution=None)],
    )


def make_benchmark(trace_set):
    return Benchmark(trace_set, BenchmarkConfig(devices=["cpu"], warmup_runs=1, iterations=3, num_trials=1))


def test_a_script_runs_a_set_and_then_asks_its_own_set_for_the_best(root):
    trace_set = TraceSet.from_path(root)
    benchmark = make_benchmark(trace_set)
    result = benchmark.run_all(dump_traces=True, resume=False)
    best = trace_set.get_best_trace("double")
    assert best is not None
    assert result.traces == trace_set.traces == TraceSet.from_path(root).traces == {"double": [best]}
    again = benchmark.run_all(dump_traces=True, resume=True)
    assert again.traces == {"double": [best]}
    benchmark.close()


def test_traces_that_are_not_dumped_stay_in_memory_and_are_not_resumed_from(root):
    trace_set = TraceSet.from_path(root)
    benchmark = make_benchmark(trace_set)
    benchmark.run_all(dump_traces=False)
    assert len(trace_set.traces["double"]) == 1
    assert not (root / "traces").exists()
    assert len(benchmark.plan(resume=True).jobs) == 1


def test_a_set_in_memory_is_run_and_nothing_is_written(root):
    loaded = TraceSet.from_path(root)
    in_memory = TraceSet(definitions=loaded.definitions, solutions=loaded.solutions, workloads=loaded.workloads)
    with pytest.warns(UserWarning, match="lives in memory, so its traces are not written"):
        result = make_benchmark(in_memory).run_all()
    assert in_memory.get_best_trace("double") == result.get_best_trace("double") is not None
    assert not (root / "traces").exists()


def test_a_run_that_skips_everything_says_why(tmp_path):
    alien = make_solution(target_hardware=["NVIDIA B200"])
    workloads = [make_trace(solution=None)]
    root = write_trace_set(tmp_path, definitions=[make_definition()], solutions=[alien], workloads=workloads)
    with pytest.warns(UserWarning, match=r"everything was skipped:\n.*target_hardware is NVIDIA B200"):
        result = make_benchmark(TraceSet.from_path(root)).run_all()
    assert result.traces == {}
    assert list(result.definitions) == ["double"]


def test_an_empty_set_says_so_and_a_resumed_run_with_nothing_left_does_not(root, tmp_path):
    with pytest.warns(UserWarning, match="no definitions"):
        make_benchmark(TraceSet()).run_all(dump_traces=False)
    make_benchmark(TraceSet.from_path(root)).run_all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_benchmark(TraceSet.from_path(root)).run_all(resume=True)
