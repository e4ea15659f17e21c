"""Speed-ups of calls that wait for the GPU inside, on a real GPU: the reference takes turns with its solutions."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]

STEPS = """
import torch
def steps(x, count):
    for step in range(count):
        x = torch.tanh(x) * 1.5
        if step % 8 == 7 and x[0].item() > 1e9:
            return x
    return x
"""
REFERENCE = STEPS + "def run(x):\n    return steps(x, 24)\n"
TWICE = STEPS + "def run(x):\n    steps(x + 1, 24)\n    return steps(x, 24)\n"
NO_WAIT = "import torch\ndef run(x):\n    for step in range(24):\n        x = torch.tanh(x) * 1.5\n    return x\n"
PREPARED = "def setup(x):\n    return {'count': 24}\n" + STEPS + "def run(x, count):\n    return steps(x, count)\n"


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """Return the trace of each solution."""
    root = tmp_path_factory.mktemp("set")
    definition = make_definition(
        inputs={"x": "float32[n]"}, outputs={"y": "float32[n]"}, reference=REFERENCE, axes={"n": None}
    )
    sources = {"equal": REFERENCE, "twice": TWICE, "no_wait": NO_WAIT, "prepared": PREPARED}
    write_trace_set(
        root,
        definitions=[definition],
        solutions=[
            make_solution(name, source=source, destination_passing_style=False) for name, source in sources.items()
        ],
        workloads=[make_trace(workload=make_workload("w", axes={"n": 1 << 14}), solution=None)],
    )
    benchmark = Benchmark(TraceSet.from_path(root), BenchmarkConfig.default(devices=["0"]))
    events = list(benchmark.run(benchmark.plan(), save_results=False))
    assert not benchmark.faults
    return {event.job.solution.name: event.trace.evaluation for event in events if isinstance(event, JobFinished)}


@pytest.mark.parametrize(("name", "speedup"), [("equal", 1.0), ("twice", 0.5)])
def test_the_speed_up_is_what_calls_in_turns_tell(traces, name, speedup):
    evaluation = traces[name]
    assert evaluation.status.value == "PASSED", evaluation.log
    turns = evaluation.extra["measurement"]["turns"]
    performance = evaluation.performance
    assert turns["rounds"] >= 10, turns
    assert performance.speedup_factor == pytest.approx(speedup, rel=0.05)
    assert performance.reference_latency_ms == pytest.approx(performance.speedup_factor * performance.latency_ms)
    assert turns["burst_ratio"] == pytest.approx(speedup, rel=0.25)


@pytest.mark.parametrize("name", ["no_wait", "prepared"])
def test_a_call_that_does_not_wait_takes_no_turns_nor_does_one_with_a_setup(traces, name):
    evaluation = traces[name]
    assert evaluation.status.value == "PASSED", evaluation.log
    assert "turns" not in evaluation.extra["measurement"]
