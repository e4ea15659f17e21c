"""Who judges which definition."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators import registry
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Accepted
from flashinfer_bench.bench.evaluators.registry import find_evaluator
from flashinfer_bench.data import Correctness
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

PROBS = {"probs": "float32[n, v]"}
AXES = {"n": None, "v": 16}


@pytest.mark.parametrize(
    ("parts", "evaluator"),
    [
        ({"op_type": "gemm"}, "DefaultEvaluator"),
        ({"op_type": "dsa_paged"}, "DSAEvaluator"),
        ({"op_type": "dsa-paged"}, "DSAEvaluator"),
        ({"op_type": "lowbit"}, "LowBitEvaluator"),
        ({"op_type": "moe"}, "DefaultEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "float8_e4m3fn[n]"}}, "LowBitEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "float4_e2m1[n]"}}, "LowBitEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "int8[n]"}}, "LowBitEvaluator"),
        ({"op_type": "moe", "inputs": {"x": "bfloat16[n]", "mask": "bool[n]"}}, "DefaultEvaluator"),
        ({"op_type": "sampling", "axes": AXES, "inputs": PROBS, "outputs": {"s": "int64[n]"}}, "SamplingEvaluator"),
        ({"op_type": "sampling", "axes": AXES, "inputs": PROBS, "outputs": {"r": "float32[n, v]"}}, "DefaultEvaluator"),
        ({"op_type": "sampling", "outputs": {"s": "int64[n]"}}, "DefaultEvaluator"),
    ],
)
def test_the_op_type_and_the_dtypes_pick_the_evaluator(parts, evaluator):
    assert find_evaluator(make_definition(**parts)).__name__ == evaluator


class FirstOutputOnly(DefaultEvaluator):
    """As somebody writes one from the documentation: two methods, the rest inherited."""

    @classmethod
    def can_evaluate(cls, definition):
        return definition.op_type == "mine"

    @classmethod
    def check_correctness(cls, definition, sol_runnable, inputs, ref_outputs, cfg, **kwargs):
        limit = cfg.extra.get("my_limit", 0.0)
        error = float((sol_runnable(*inputs[0])[0] - ref_outputs[0][0]).abs().max())
        assert error <= limit
        return Accepted(Correctness(max_absolute_error=error))


def test_an_appended_evaluator_is_used_with_its_own_parameter(monkeypatch):
    monkeypatch.setattr(registry, "_EVALUATORS", [*registry._EVALUATORS, FirstOutputOnly])
    job = Judging(make_definition(op_type="mine"), make_workload(), extra={"my_limit": 1.0})
    assert issubclass(job.evaluator, FirstOutputOnly)
    assert job.measure(lambda x: x * 2 + torch.ones(()) / 2).speedup_factor == 4.0
