"""Who judges which definition."""

from __future__ import annotations

import pytest

from flashinfer_bench.bench.evaluators.registry import find_evaluator
from tests.kit.make import make_definition

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
