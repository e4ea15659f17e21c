"""The face of `Benchmark` that scripts rely on; what a run does is told by the other tests of this folder."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.baseline_cache import BaselineCache
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, write_trace_set


@pytest.fixture
def trace_set(tmp_path):
    return TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()]))


def test_it_gives_back_the_set_that_it_runs(trace_set):
    with Benchmark(trace_set) as benchmark:
        assert benchmark.get_trace_set() is trace_set


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
    monkeypatch.setattr(benchmark.workshop, "sandbox", SimpleNamespace(has_walls=has_walls, user="unchanged"))
    hello = benchmark.workshop.greet(Device(kind, 0, "one", "GPU-1"), needs_triton=False)
    assert hello.baselines == baselines
    assert str(BaselineCache(Path(hello.cache_root)).folder) in hello.hidden


def test_run_all_takes_what_the_public_package_does():
    parameters = list(inspect.signature(Benchmark.run_all).parameters.values())[1:]
    assert [(item.name, item.default) for item in parameters[:2]] == [("save_results", True), ("resume", False)]
    assert {item.kind for item in parameters[:2]} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert (parameters[2].name, parameters[2].default) == ("dump_traces", None)
