"""Scripts that configure a run, run a set, and read the best trace; in real runs on the CPU."""

from __future__ import annotations

import warnings

import pytest
from pydantic import ValidationError

from flashinfer_bench import Benchmark, BenchmarkConfig, TraceSet
from flashinfer_bench.bench import EvalConfig, ResolvedEvalConfig
from tests.kit import make_definition, make_solution, make_trace, write_trace_set

pytestmark = pytest.mark.cpu
GEMM = make_definition("gemm_n16", op_type="gemm")


@pytest.mark.parametrize("make", [BenchmarkConfig, BenchmarkConfig.default])
def test_old_settings_are_taken_with_a_warning_at_the_scripts_line_and_beat_the_bundled_file(make):
    with pytest.warns(DeprecationWarning, match="sampling.*extra=") as caught:
        config = make(sampling_validation_trials=7, extra={"mine": 1})
    assert caught[0].filename == __file__
    resolved = config.resolve_eval_config(make_definition("top_p", op_type="sampling"))
    assert (resolved.extra["sampling_validation_trials"], resolved.extra["mine"]) == (7, 1)


def test_an_attribute_that_is_assigned_beats_every_section_unless_it_is_wrong():
    config = BenchmarkConfig(definition_config={"gemm_n16": EvalConfig(iterations=7)})
    config.iterations = 20
    for name, value in {"iterations": 0, "itertions": 5}.items():
        with pytest.raises(ValidationError, match=name):
            setattr(config, name, value)
    resolved = config.resolve_eval_config(GEMM)
    assert (config.iterations, resolved.iterations, resolved.origins["iterations"]) == (20, 20, "override")


def test_the_resolved_config_has_whether_references_are_timed():
    resolved = BenchmarkConfig(profile_baseline=False).resolve_eval_config(GEMM)
    assert "profile_baseline" not in resolved.values()
    assert ResolvedEvalConfig.model_validate(resolved.to_order()).profile_baseline is False


@pytest.fixture
def root(tmp_path):
    slow = make_solution(source="def run(x):\n    for _ in range(300):\n        x = x + 0\n    return x * 2\n")
    workloads = [make_trace(solution=None)]
    return write_trace_set(tmp_path, definitions=[make_definition()], solutions=[slow], workloads=workloads)


def make_benchmark(trace_set):
    return Benchmark(trace_set, BenchmarkConfig(devices=["cpu"], warmup_runs=1, iterations=3, num_trials=1))


@pytest.mark.slow
def test_a_script_runs_a_set_and_then_asks_its_own_set_for_the_best(root):
    trace_set = TraceSet.from_path(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        benchmark = make_benchmark(trace_set)
        result = benchmark.run_all(dump_traces=True, resume=False)
        best = trace_set.get_best_trace("double")
        assert result.traces == trace_set.traces == TraceSet.from_path(root).traces == {"double": [best]}
        assert benchmark.run_all(dump_traces=True, resume=True).traces == {"double": [best]}
        benchmark.close()
    measured, times = best.evaluation.extra, best.evaluation.performance
    for name, latency_ms in {"measurement": times.latency_ms, "baseline": times.reference_latency_ms}.items():
        low, high = measured[name]["interval95_ms"]
        assert low <= latency_ms <= high, name


@pytest.mark.slow
def test_traces_that_are_not_dumped_stay_in_memory_and_are_not_resumed_from(root):
    trace_set = TraceSet.from_path(root)
    benchmark = make_benchmark(trace_set)
    benchmark.run_all(dump_traces=False)
    assert len(trace_set.traces["double"]) == 1
    assert len(benchmark.plan(resume=True).jobs) == 1
    in_memory = TraceSet(
        definitions=trace_set.definitions, solutions=trace_set.solutions, workloads=trace_set.workloads
    )
    with pytest.warns(UserWarning, match="lives in memory, so its traces are not written"):
        result = make_benchmark(in_memory).run_all()
    assert in_memory.get_best_trace("double") == result.get_best_trace("double") is not None
    assert not (root / "traces").exists()


def test_a_run_that_skips_everything_says_why():
    alien = make_solution(target_hardware=["NVIDIA B200"])
    parts = {"definitions": make_definition(), "solutions": [alien], "workloads": [make_trace(solution=None)]}
    for given, words in (({}, "no definitions"), (parts, r"everything was skipped:\n.*target_hardware is NVIDIA B200")):
        trace_set = TraceSet(**{name: {"double": part} for name, part in given.items()})
        with pytest.warns(UserWarning, match=words):
            result = make_benchmark(trace_set).run_all(dump_traces=False)
        assert (result.traces, list(result.definitions)) == ({}, list(trace_set.definitions))
