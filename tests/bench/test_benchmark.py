"""The face of `Benchmark` that scripts rely on; what a run does is told by the other tests of this folder."""

import inspect

import pytest

from flashinfer_bench.bench import Benchmark
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, write_trace_set


@pytest.fixture
def trace_set(tmp_path):
    return TraceSet.from_path(write_trace_set(tmp_path, definitions=[make_definition()]))


def test_it_gives_back_the_set_that_it_runs(trace_set):
    with Benchmark(trace_set) as benchmark:
        assert benchmark.get_trace_set() is trace_set


def test_run_all_takes_what_the_public_package_does():
    parameters = list(inspect.signature(Benchmark.run_all).parameters.values())[1:]
    assert [(item.name, item.default) for item in parameters] == [("save_results", True), ("resume", False)]
    assert {item.kind for item in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
