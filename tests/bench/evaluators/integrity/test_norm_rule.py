"""The rules beside the tolerance: zeros, lost rows, what is near a tie, and how each is switched off."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import Accepted, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, find_limit, surely_pass
from flashinfer_bench.bench.evaluators.integrity.norms import measure_norms
from flashinfer_bench.bench.evaluators.integrity.stability import REGIME_ROUNDING, Stability
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu
RULE = NormRule(0.1, judges_output=True, row_rule=NORM)
SMALL = "def run(x, w):\n    return (x.float() @ w.float() * 1e-4).to(x.dtype)\n"
ROUTED = """
import torch
def run(x, w):
    chosen = (x[:, :4]).argmax(dim=1)
    return torch.stack([x[:, 8:] @ one for one in w])[chosen, torch.arange(len(x))]
"""


def made(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize(("shape", "columns"), [((40, 100), 100), ((1, 70_000), 70_000), ((6, 4, 4), 16), ((3, 5), 15)])
def test_norms_are_those_of_the_rows_however_many_and_long_they_are(dtype, shape, columns):
    expected, got = (made(*shape, seed=seed).to(dtype) for seed in (0, 1))
    norms = measure_norms(expected, got)
    rows, error = (value.double().reshape(-1, columns) for value in (expected, got.double() - expected.double()))
    wanted, off = rows.norm(dim=1), error.norm(dim=1)
    shares = off / wanted.clamp(min=0.1 * wanted.square().mean().sqrt())
    torch.testing.assert_close(norms.shares(), shares, rtol=1e-4, atol=1e-9)
    assert norms.is_small == (shape == (3, 5))
    assert norms.share() == pytest.approx(float(off.norm() / wanted.norm()), rel=1e-4)
    assert norms.figures[2] == pytest.approx(float(shares.max()), rel=1e-4)


def judging(reference=SMALL, **settings):
    definition = make_definition(
        inputs={"x": "float32[n, 32]", "w": "float32[32, 48]"}, outputs={"y": "float32[n, 48]"}, reference=reference
    )
    return Judging(definition, make_workload(axes={"n": 64}, inputs={}), **settings)


def right(x, w):
    return (x.float() @ w.float() * 1e-4).to(x.dtype)


@pytest.mark.parametrize(
    "wrong",
    [lambda x, w: x.new_zeros(len(x), 48), lambda x, w: right(x[:, ::2], w[::2]) * 2],
    ids=["zeros", "half of the sum"],
)
def test_values_below_atol_have_to_be_computed_all_the_same(wrong):
    verdict = judging().check(wrong)
    assert isinstance(verdict, Rejected)
    assert verdict.integrity["rule"] == "norm"
    assert verdict.integrity["evidence"]["error_norm"] > verdict.integrity["evidence"]["limit"] == 0.1
    assert isinstance(judging(norm_rule=False).check(wrong), Accepted)


def test_a_product_of_fp8_passes_below_atol():
    def coarse(x, w):
        return right(*(value.to(torch.float8_e4m3fn).to(value.dtype) for value in (x, w)))

    assert isinstance(judging().check(coarse), Accepted)


def test_no_row_may_be_lost_for_a_matched_ratio():
    def lost(x, w):
        y = x @ w
        y[3] = y[4]
        return y

    settings = {"required_matched_ratio": 0.95, "extra": {"max_error_norm": 0.3}}  # a limit of the user's
    verdict = judging("def run(x, w):\n    return x @ w\n", **settings).check(lost)
    assert isinstance(verdict, Rejected)
    assert (verdict.integrity["rule"], verdict.integrity["evidence"]["row"]) == ("lost_rows", 3)
    loose = judging("def run(x, w):\n    return x @ w\n", lost_rows_rule=False, **settings)
    assert isinstance(loose.check(lost), Accepted)


def test_a_row_near_a_tie_may_go_either_way_and_another_may_not():
    definition = make_definition(
        inputs={"x": "float32[n, 40]", "w": "float32[4, 32, 32]"}, outputs={"y": "float32[n, 32]"}, reference=ROUTED
    )
    settings = {"num_trials": 1, "required_matched_ratio": 0.9, "extra": {"max_error_norm": 0.4}}
    job = Judging(definition, make_workload(axes={"n": 64}, inputs={}), **settings)
    baseline = job.baseline()
    x, w = baseline.inputs[0]
    best = x[:, :4].topk(2, dim=1)
    x[5, best.indices[5, 1]] = x[5, best.indices[5, 0]] - 1e-4
    baseline.outputs[0][0].copy_(job.context.reference([x, w])[0])

    def flip(row):
        chosen = best.indices[:, 0].clone()
        chosen[row] = best.indices[row, 1]
        verdict = job.check(lambda x, w: torch.stack([x[:, 8:] @ one for one in w])[chosen, torch.arange(64)], baseline)
        return verdict.integrity["evidence"]["row"] if isinstance(verdict, Rejected) else None

    clear = int((best.values[:, 0] - best.values[:, 1]).argmax())
    assert [flip(5), flip(clear)] == [None, clear]


@pytest.mark.parametrize("most", [20.0, 85.0])
def test_once_rows_that_rounding_moves_are_left_out_the_next_ones_count(most):
    """Norms of rows differ by many powers of ten: exponentials of bfloat16 pass, and half of the work does not."""

    def reference(inputs):
        return [torch.exp(inputs[0]).sum(-1, keepdim=True) * torch.linspace(1, 2, 64)]

    def judge(got):
        expected = reference([x])
        stability = Stability(reference, [x], expected, seed=1, rounding=REGIME_ROUNDING)
        return RULE.find_excess(measure_norms(*expected, *got), 0, "y", stability)

    x = made(32, 128, seed=1)
    x[:, 0] = torch.linspace(1, most, 32)
    assert judge(reference([x.bfloat16().float()])) is None
    excess = judge([reference([x])[0] * 0.5])
    assert excess is not None
    assert excess[1]["evidence"]["error_norm"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("spec", "rtol", "limit"),
    [
        ("float32[n]", 0.02, 0.2),
        ("float8_e4m3fn[n]", 1e-2, 0.2),
        ("float4_e2m1fn_x2[n]", 1e-2, 0.25),
        ("int8[n]", 1e-2, 0.25),
    ],
)
def test_the_limit_follows_the_tolerance_and_the_dtypes(spec, rtol, limit):
    assert find_limit(make_definition(inputs={"x": spec}), rtol) == limit


LOOSE = Tolerance(rtol=1.0, atol=1.0)
USUAL = Tolerance(rtol=0.01, atol=0.01)
ROWS = made(6, 64, seed=3)


def lose(value, at=2):
    changed = ROWS.clone()
    changed[at] = value
    return changed


ONE = torch.ones(1)
BAD = [lose(bad, (3, 5)) for bad in (math.nan, math.inf)]
BOOLS = [torch.full((64,), one, dtype=torch.uint8).view(torch.bool) for one in (1, 0xA5)]


@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "passes"),
    [
        *(
            (one, one, USUAL, True)
            for one in (ROWS.double(), ROWS.int(), ROWS.to(torch.float8_e4m3fn), ROWS.mT, ONE[:0])
        ),
        *((ROWS, ROWS * 1.02, tolerance, not tolerance) for tolerance in (USUAL, None)),
        (ROWS * 0, ROWS * 0, None, True),
        (ROWS, ROWS, replace(USUAL, max_absolute_error=1e-3), False),
        (ROWS, ROWS, replace(USUAL, required_matched_ratio=0.9), False),
        *((ROWS, bad, tolerance, False) for bad in BAD for tolerance in (USUAL, None)),
        *((bad, bad, None, False) for bad in BAD),
        (ROWS * 1e-4, ROWS * 0, USUAL, False),
        *((ROWS, lose(0.0), tolerance, False) for tolerance in (LOOSE, None)),
        (lose(0.005 * ROWS[2]), lose(0.0), LOOSE, True),  # a row far below the usual one
        *((ONE * 2.5, ONE * 0, tolerance, bool(tolerance)) for tolerance in (Tolerance(3.0, 3.0), None)),
        (ROWS.int(), ROWS.int() + 1, None, True),  # they have no norms
        (*BOOLS, USUAL, False),  # bytes that nobody wrote
        (1e-3 * ROWS, 1.3e-3 * ROWS, LOOSE, False),  # held against its own norm, beside large calls
    ],
)
def test_a_call_beside_right_ones_passes_at_one_look_only_if_it_surely_does(expected, got, tolerance, passes):
    large = [JudgedCall([], [1e3 * ROWS], [1e3 * ROWS])]
    for calls in ([], large) if (expected.shape, expected.dtype) == (ROWS.shape, ROWS.dtype) else ([],):
        found = surely_pass([*calls, JudgedCall([], [got], [expected])], RULE, tolerance)
        assert (found is not None) is passes
