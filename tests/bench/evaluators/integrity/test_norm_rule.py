"""The rules beside the tolerance: zeros, lost rows, what is near a tie, and how each is switched off."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, find_limit
from flashinfer_bench.bench.evaluators.integrity.stability import Stability
from flashinfer_bench.bench.evaluators.verdict import judge_norms
from flashinfer_bench.data import Correctness
from tests.bench.evaluators.judging import Judging
from tests.bench.evaluators.pretend_gpu import PretendGpu
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

SMALL = "def run(x, w):\n    return (x.float() @ w.float() * 1e-4).to(x.dtype)\n"
ROUTED = """
import torch
def run(x, w):
    chosen = (x[:, :4]).argmax(dim=1)
    return torch.stack([x[:, 8:] @ one for one in w])[chosen, torch.arange(len(x))]
"""


def judging(reference=SMALL, *, dtype="float32", seed=1, rows=64, **settings):
    definition = make_definition(
        inputs={"x": f"{dtype}[n, 32]", "w": f"{dtype}[32, 48]"},
        outputs={"y": f"{dtype}[n, 48]"},
        reference=reference,
    )
    return Judging(definition, make_workload(axes={"n": rows}, inputs={}), seed=seed, **settings)


def right(x, w):
    return (x.float() @ w.float() * 1e-4).to(x.dtype)


def one_bit(x, w):
    return x.sign() @ w.sign() * (x.abs().mean() * w.abs().mean() * 1e-4)


@pytest.mark.parametrize(
    "wrong",
    [lambda x, w: x.new_zeros(len(x), 48), one_bit, lambda x, w: right(x[:, ::2], w[::2]) * 2],
    ids=["zeros", "one bit", "half of the sum"],
)
def test_what_is_below_atol_has_to_be_computed_all_the_same(wrong):
    verdict = judging().check(wrong)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "norm"
    assert verdict.integrity["evidence"]["error_norm"] > verdict.integrity["evidence"]["limit"] == 0.1
    assert "rule 'norm'" in verdict.message
    assert isinstance(judging(norm_rule=False).check(wrong), Accepted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_product_of_fp8_passes_where_it_is_below_atol(dtype):
    def coarse(x, w):
        return right(*(value.to(torch.float8_e4m3fn).to(value.dtype) for value in (x, w)))

    verdict = judging(dtype=dtype).check(coarse)
    assert isinstance(verdict, Accepted)
    assert 0.02 < verdict.correctness.extra["outputs"]["y"]["error_norm"] < 0.06


def test_a_limit_of_the_user_is_taken_and_the_trace_has_the_figures():
    def coarse(x, w):
        return right(x, w) * 1.3

    assert isinstance(judging().check(coarse), Rejected)
    verdict = judging(extra={"max_error_norm": 0.4}).check(coarse)
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.extra["outputs"]["y"]["worst_row_norm"] == pytest.approx(0.3, rel=1e-3)


def test_no_row_may_be_lost_for_a_matched_ratio():
    def lost(x, w):
        y = x @ w
        y[3] = y[4]
        return y

    settings = {"reference": "def run(x, w):\n    return x @ w\n", "required_matched_ratio": 0.95}
    verdict = judging(**settings, extra={"max_error_norm": 0.3}).check(lost)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "lost_rows"
    assert verdict.integrity["evidence"]["row"] == 3
    loose = judging(**settings, extra={"max_error_norm": 0.3}, lost_rows_rule=False)
    assert isinstance(loose.check(lost), Accepted)


def routing(**settings):
    definition = make_definition(
        inputs={"x": "float32[n, 40]", "w": "float32[4, 32, 32]"},
        outputs={"y": "float32[n, 32]"},
        reference=ROUTED,
    )
    return Judging(
        definition, make_workload(axes={"n": 64}, inputs={}), num_trials=1, required_matched_ratio=0.9, **settings
    )


def route(x, w, chosen):
    return torch.stack([x[:, 8:] @ one for one in w])[chosen, torch.arange(len(x))]


def test_a_row_near_a_tie_may_go_either_way_and_another_may_not():
    job = routing(extra={"max_error_norm": 0.4})
    made = job.baseline()
    x, w = made.inputs[0]
    best = x[:, :4].topk(2, dim=1)
    x[5, best.indices[5, 1]] = x[5, best.indices[5, 0]] - 1e-4
    made.outputs[0][0].copy_(job.context.reference([x, w])[0])

    def flips(row):
        chosen = best.indices[:, 0].clone()
        chosen[row] = best.indices[row, 1]
        return lambda x, w: route(x, w, chosen)

    assert isinstance(job.check(flips(5), made), Accepted)
    clear = int((best.values[:, 0] - best.values[:, 1]).argmax())
    verdict = job.check(flips(clear), made)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["evidence"]["row"] == clear


@pytest.mark.parametrize(
    ("spec", "rtol", "limit"),
    [
        ("float32[n]", 1e-2, 0.1),
        ("bfloat16[n]", 1e-3, 0.1),
        ("float32[n]", 0.02, 0.2),
        ("float32[n]", 0.3, 0.5),
        ("float8_e4m3fn[n]", 1e-2, 0.2),
        ("float4_e2m1[n]", 1e-2, 0.25),
        ("float4_e2m1fn_x2[n]", 1e-2, 0.25),
        ("int8[n]", 1e-2, 0.25),
        ("bool[n]", 1e-2, 0.1),
        ("int32[n]", 1e-2, 0.1),
    ],
)
def test_the_limit_follows_the_tolerance_and_the_dtypes(spec, rtol, limit):
    assert find_limit(make_definition(inputs={"x": spec}), rtol) == limit


def test_a_verdict_on_norms_costs_a_gpu_one_wait_and_few_operations():
    expected = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0)).bfloat16()
    with PretendGpu() as gpu:
        call = JudgedCall([], [gpu.put(expected.clone())], [gpu.put(expected)])
        rule = NormRule(0.1, judges_output=True, row_rule=NORM)
        stability = Stability(lambda inputs: [], [], call.expected, 1)
        verdict = judge_norms(make_definition(), call, rule, stability, Correctness())
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.extra["outputs"] == {"y": {"error_norm": 0.0, "worst_row_norm": 0.0}}
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= 12, gpu.operations
