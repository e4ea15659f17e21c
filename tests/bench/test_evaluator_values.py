"""What an evaluator of one's own leaves in notes and `extra` becomes JSON, or costs its job alone."""

import pytest

from flashinfer_bench.bench import Benchmark, BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished
from flashinfer_bench.data import TraceSet
from tests.kit.make import make_definition, make_solution, make_trace, make_workload, write_trace_set

pytestmark = [pytest.mark.cpu, pytest.mark.slow]

EVALUATOR = """
import numpy as np
import torch
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted
from flashinfer_bench.data import Correctness

class LeavesValues(DefaultEvaluator):
    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "leaves"

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, *, context):
        sol_runnable(*inputs[0])
        context.notes["own"] = {"a": np.float32(1.5), "b": torch.arange(2), "c": {np.int64(3)}}
        return Accepted(Correctness(extra={"own": object() if definition.name == "odd" else np.bool_(True)}))

EVALUATORS = [LeavesValues]
"""


def test_values_of_numpy_and_torch_become_json_and_others_cost_their_job_alone(tmp_path, monkeypatch):
    (tmp_path / "leaving.py").write_text(EVALUATOR)
    monkeypatch.syspath_prepend(tmp_path)
    names = ("odd", "usual")
    root = write_trace_set(
        tmp_path / "set",
        definitions=[make_definition(name, op_type="leaves") for name in names],
        solutions=[make_solution(f"s_{name}", definition=name) for name in names],
        workloads=[make_trace(definition=name, workload=make_workload(), solution=None) for name in names],
    )
    config = BenchmarkConfig.default(
        devices=["cpu"], warmup_runs=0, iterations=2, num_trials=1, evaluator_modules=["leaving"]
    )
    with Benchmark(TraceSet.from_path(root), config) as benchmark:
        events = list(benchmark.run(benchmark.plan(), save_results=False))
    (fault,) = [event for event in events if isinstance(event, JobFaulted)]
    (done,) = [event for event in events if isinstance(event, JobFinished)]
    assert "LeavesValues" in fault.message
    assert "correctness.extra.own is a builtins.object" in fault.message
    assert done.trace.evaluation.extra["own"] == {"a": 1.5, "b": [0, 1], "c": [3]}
    assert done.trace.evaluation.correctness.extra["own"] is True
