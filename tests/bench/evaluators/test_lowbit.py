"""The LowBit evaluator: a share may be off, and the trace says which."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

GEMM = "def run(x, w, w_scale):\n    return (x.float() @ (w.float() * w_scale[:, None]).T).to(x.dtype)\n"


def judging(**settings) -> Judging:
    definition = make_definition(
        op_type="lowbit",
        inputs={"x": "bfloat16[n, 64]", "w": "float8_e4m3fn[128, 64]", "w_scale": "float32[128]"},
        outputs={"y": "bfloat16[n, 128]"},
        reference=GEMM,
    )
    return Judging(definition, make_workload(axes={"n": 32}, inputs={}), **settings)


def product(x, w, w_scale):
    return ((x.float() @ w.float().T) * w_scale).to(x.dtype)


def off_by(share: float):
    def solution(x, w, w_scale):
        y = product(x, w, w_scale)
        wrong = torch.rand(y.shape, generator=torch.Generator().manual_seed(0)) < share
        return torch.where(wrong, y * 1.1 + 0.5, y)

    return solution


def test_four_percent_may_be_off_and_the_trace_says_so():
    verdict = judging().check(off_by(0.04))
    assert isinstance(verdict, Accepted)
    assert verdict.correctness.extra is not None
    assert 0.95 < verdict.correctness.extra["matched_ratio"] < 0.97


def test_six_percent_may_not():
    verdict = judging().check(off_by(0.06))
    assert isinstance(verdict, Rejected)
    assert "required 0.95" in verdict.message


def test_a_ratio_of_the_configuration_is_taken_instead():
    assert isinstance(judging(required_matched_ratio=0.9).check(off_by(0.06)), Accepted)
    assert isinstance(judging(required_matched_ratio=1.0).check(off_by(0.001)), Rejected)


def test_a_row_that_was_skipped_is_found_although_it_is_a_small_share():
    def solution(x, w, w_scale):
        y = product(x, w, w_scale)
        y[5] = 0
        return y

    verdict = judging().check(solution)
    assert isinstance(verdict, Rejected)
    assert "[5, 0] looks unwritten" in verdict.message


def test_garbage_in_one_element_is_found():
    def solution(x, w, w_scale):
        y = product(x, w, w_scale)
        y[5, 5] = 1e30
        return y

    assert isinstance(judging().check(solution), Rejected)
