"""The face of `Benchmark` that scripts rely on; what a run does is told by the other tests of this folder."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig, context
from flashinfer_bench.bench.benchmark import make_rules
from flashinfer_bench.bench.events import JobStarted
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.bench.scheduler import Rules
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set
from tests.kit.processes import marked, wait_until_gone


@pytest.fixture
def trace_set(tmp_path):
    return TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()]))


@pytest.mark.parametrize(
    ("kind", "has_walls", "settings", "baselines"),
    [
        ("cuda", True, {}, "use"),
        ("cuda", True, {"fresh_baselines": True}, "refresh"),
        ("cuda", True, {"keep_samples": True}, "off"),
        ("cuda", True, {"profile_baseline": False}, "off"),
        ("cuda", False, {}, "off"),
        ("cpu", True, {}, "off"),
    ],
    ids=["usual", "--fresh-baselines", "every reading is wanted", "no baseline", "no walls", "a CPU"],
)
def test_times_of_references_are_kept_between_runs_on_a_gpu_and_behind_walls(
    trace_set, monkeypatch, kind, has_walls, settings, baselines
):
    benchmark = Benchmark(trace_set, BenchmarkConfig(devices=["cpu"], **settings))
    monkeypatch.setattr(benchmark.context, "sandbox", SimpleNamespace(has_walls=has_walls, user="unchanged"))
    hello = benchmark.context.greet(Device(kind, 0, "one", "GPU-1"), Rules(), needs_triton=False)
    assert hello.baselines == baselines
    assert str(BaselineCache(Path(hello.cache_root)).folder) in hello.hidden


LIBRARY = "import flashinfer\ndef run(x):\n    return x * 2\n"


@pytest.mark.parametrize(
    ("source", "kind", "count", "has_walls", "cores", "compiles_ahead"),
    [
        (LIBRARY, "cuda", 1, True, [3], True),
        ("def run(x):\n    return x * 2\n", "cuda", 1, True, [3], False),
        (LIBRARY, "cpu", 1, True, [3], False),
        (LIBRARY, "cuda", 2, True, [3], False),
        (LIBRARY, "cuda", 1, False, [3], False),
        (LIBRARY, "cuda", 1, True, [], False),
    ],
    ids=["FlashInfer", "another", "a CPU", "two GPUs", "no walls", "few cores"],
)
def test_modules_are_compiled_ahead_where_that_can_be(
    tmp_path, monkeypatch, source, kind, count, has_walls, cores, compiles_ahead
):
    made = write_trace_set(
        tmp_path,
        definitions=[make_definition()],
        solutions=[make_solution("s", source=source)],
        workloads=[make_trace(workload=make_workload("w", axes={"n": 4}), solution=None)],
    )
    benchmark = Benchmark(TraceSet.from_path(made), BenchmarkConfig(devices=["cpu"]))
    plan = benchmark.plan()
    device = Device(kind, 0, "one", "GPU-1")
    monkeypatch.setattr(benchmark.context, "sandbox", SimpleNamespace(has_walls=has_walls, user="unchanged"))
    monkeypatch.setattr(benchmark.context, "machine", SimpleNamespace(kind=kind, devices=[device] * count))
    monkeypatch.setattr(context, "spare_cores", lambda: cores)
    rules = make_rules(benchmark.context, plan)
    assert rules.compiles_ahead is compiles_ahead
    assert benchmark.context.greet(device, rules, needs_triton=False).compiles_ahead is compiles_ahead


def test_run_all_takes_what_the_public_package_does():
    parameters = list(inspect.signature(Benchmark.run_all).parameters.values())[1:]
    assert [(item.name, item.default) for item in parameters[:2]] == [("save_results", True), ("resume", False)]
    assert {item.kind for item in parameters[:2]} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert (parameters[2].name, parameters[2].default) == ("dump_traces", None)


@pytest.mark.cpu
def test_kept_sessions_serve_the_next_run_and_end_with_the_benchmark_or_when_idle(tmp_path, monkeypatch):
    made = write_trace_set(
        tmp_path / "set",
        definitions=[make_definition()],
        solutions=[make_solution("s")],
        workloads=[make_trace(workload=make_workload("w", axes={"n": 4}), solution=None)],
    )
    counts = {"warmup_runs": 1, "iterations": 2, "num_trials": 1}
    config = BenchmarkConfig.default(devices=["cpu"], **counts)
    with marked() as alive:
        with Benchmark(TraceSet.from_path(made), config, cache=tmp_path / "cache", keeps_sessions=True) as benchmark:
            seeds, sessions = set(), []
            for _ in range(2):
                (trace,) = benchmark.run_all(save_results=False).traces["double"]
                seeds.add(trace.evaluation.extra["run"]["seed"])
                sessions.append(alive())
            assert len(seeds) == 2
            assert set(sessions[0]) & set(sessions[1])
            events = benchmark.run(benchmark.plan(), save_results=False)
            while not isinstance(next(events), JobStarted):
                pass
            events.close()  # what was begun and given up leaves nothing
            assert wait_until_gone(alive) == []
            monkeypatch.setattr("flashinfer_bench.bench.benchmark.IDLE_S", 0.01)
            benchmark.run_all(save_results=False)
            assert wait_until_gone(alive) == []
            monkeypatch.setattr("flashinfer_bench.bench.benchmark.IDLE_S", 60.0)
            benchmark.run_all(save_results=False)
            assert alive()
        assert wait_until_gone(alive) == []
