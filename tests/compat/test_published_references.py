"""Published references that write an optional input, as solutions in two calling styles."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow, pytest.mark.published]

NAME, BUFFER = "gdn_mtp_qk4_v8_d128_k_last", "intermediate_states_buffer"
RETURNS = """
reference = run
def run(*args, **kwargs):
    output, final_state = reference(*args)
    return {"final_state": final_state, "output": output}
"""


def test_a_reference_that_writes_its_buffer_passes_as_a_solution(published, tmp_path):
    definition = TraceSet.from_path(published).definitions[NAME]
    sources = {"plain": "", "returns": RETURNS}
    axes = {axis: {"seq_len": 2}.get(axis, 1) for axis in definition.var_axes}
    workload = make_workload("w", axes=axes, inputs={BUFFER: "random"})
    root = write_trace_set(
        tmp_path,
        definitions=[definition],
        solutions=[make_solution(n, definition=NAME, source=definition.reference + s) for n, s in sources.items()],
        workloads=[make_trace(definition=NAME, workload=workload, solution=None)],
    )
    settings = {"warmup_runs": 0, "iterations": 1, "num_trials": 1, "profile_baseline": False}
    config = BenchmarkConfig.default(devices=["cpu"], **settings)
    benchmark = Benchmark(TraceSet.from_path(root), config)
    events = benchmark.run(benchmark.plan(), save_results=False)
    found = {event.trace.solution: event.trace.evaluation for event in events if isinstance(event, JobFinished)}
    assert {name: (one.status.value, one.extra["in_out_inputs"]) for name, one in found.items()} == dict.fromkeys(
        sources, ("PASSED", [BUFFER])
    )
    assert [found[name].extra["calling_style"]["style"] for name in sources] == ["value", "value"]
