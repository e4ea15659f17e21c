"""What passes at one look passes when each call is judged; what may not pass is judged call by call."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity import sure as module
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, measure_outputs
from flashinfer_bench.bench.evaluators.integrity.sure import surely_pass
from tests.bench.evaluators.pretend_gpu import PretendGpu

pytestmark = pytest.mark.cpu
TOLERANCE = Tolerance(rtol=0.01, atol=0.01)
LOOSE = Tolerance(rtol=1.0, atol=1.0)
RULE = NormRule(0.1, judges_output=True, row_rule=NORM)
ROWS = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))
NAN, INF = float("nan"), float("inf")


def look(*calls, tolerance=TOLERANCE, rule=RULE):
    """Look at calls, each what was expected and what came."""
    return surely_pass([JudgedCall([], [got], [expected]) for expected, got in calls], rule, tolerance)


def lose(value, at=2):
    changed = ROWS.clone()
    changed[at] = value
    return changed


FLAT = lose(0.005 * ROWS[2])
ONE = torch.ones(1)
BAD = [lose(bad, (3, 5)) for bad in (NAN, INF)]
BOUND = 0.01 + 0.01 * ROWS.abs()
BOOLS = torch.full((64,), 1, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "passes"),
    [
        *((one, one, TOLERANCE, True) for one in (ROWS.double(), ROWS.int(), ROWS.to(torch.float8_e4m3fn), ONE[:0])),
        (ROWS.mT, ROWS.mT.contiguous(), TOLERANCE, True),
        (ROWS, ROWS * 1.02, TOLERANCE, False),
        (ROWS, ROWS * 1.02, None, True),
        *((ROWS, ROWS + BOUND * 0.9, replace(TOLERANCE, is_sum=is_sum), is_sum) for is_sum in (False, True)),
        (ROWS, ROWS * 1.005, replace(TOLERANCE, max_absolute_error=1e-3), False),
        (ROWS, ROWS, replace(TOLERANCE, required_matched_ratio=0.9), False),
        *((ROWS, bad, tolerance, False) for bad in BAD for tolerance in (TOLERANCE, None)),
        *((bad, got, None, None) for bad in BAD for got in (ROWS, bad)),
        (ROWS * 1e-4, ROWS * 0, TOLERANCE, False),
        *((ROWS, lose(0.0), tolerance, False) for tolerance in (LOOSE, None)),
        (FLAT, lose(0.0), LOOSE, True),  # a row far below the usual one
        *((ONE * 2.5, ONE * 0, tolerance, bool(tolerance)) for tolerance in (LOOSE, None)),  # only stress judges it
        (ROWS.int(), ROWS.int() + 1, TOLERANCE, False),
        (ROWS.int(), ROWS.int() + 1, None, True),  # whole numbers have no norms
        (BOOLS.view(torch.bool), (BOOLS * 0xA5).view(torch.bool), TOLERANCE, False),  # bytes that nobody wrote
    ],
)
def test_a_call_beside_right_ones_passes_only_if_it_surely_does(expected, got, tolerance, passes, count):
    for at in range(count):
        calls = [(expected, expected.clone())] * count
        calls[at] = (expected, got)
        assert (look(*calls, tolerance=tolerance) is not None) is bool(passes)


def test_rules_that_are_off_are_not_looked_at():
    rule = NormRule(0.1, judges_output=False, row_rule=None)
    assert look((ROWS, lose(0.0)), tolerance=Tolerance(rtol=5.0, atol=5.0), rule=rule) == [False]
    assert surely_pass([], RULE, TOLERANCE) == []


def test_it_is_told_of_each_call_whether_anything_else_than_zeros_was_expected():
    zeros = torch.zeros_like(ROWS)
    assert look((ROWS, ROWS), (zeros, zeros), tolerance=None) == [True, False]
    several = [JudgedCall([], [zeros, one], [zeros, one]) for one in (torch.tensor(-2.5), torch.tensor(0.0))]
    assert surely_pass(several, RULE) == [True, False]


def test_a_small_call_is_held_against_its_own_norm_beside_large_ones():
    assert look((ROWS * 100, ROWS * 100), (ROWS * 1e-3, ROWS * 1.3e-3), tolerance=LOOSE) is None


@pytest.mark.parametrize("shape", [(6, 64), (3,), (), (5, 7)])
@pytest.mark.parametrize("together", [1, 200, 1 << 15])
@pytest.mark.parametrize("tolerance", [TOLERANCE, LOOSE, None])
def test_it_never_passes_what_the_judge_rejects_however_calls_are_put_together(monkeypatch, shape, together, tolerance):
    monkeypatch.setitem(module.TOGETHER, "cpu", together)
    generator = torch.Generator().manual_seed(11)
    outcomes = set()
    for off in (0.0, 0.005, 0.02, 0.05, 0.09, 0.11, 0.2):
        calls = []
        for _ in range(5):
            expected = torch.randn(shape, generator=generator)
            size = expected.norm() / max(expected.numel(), 1) ** 0.5
            calls.append((expected, expected + off * torch.randn(shape, generator=generator) * size))
        is_right = True
        for expected, got in calls:
            (norms,) = measure_outputs([expected], [got])
            is_judged = tolerance is None or not norms.is_small
            is_right &= not is_judged or max(norms.share(), norms.figures[2]) <= RULE.limit
            is_right &= tolerance is None or not compare(expected, got, tolerance).mismatched
        passes = look(*calls, tolerance=tolerance) is not None
        assert is_right or not passes
        outcomes.add(passes)
    assert True in outcomes


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize(("together", "most"), [(1 << 23, 36), (1, 24 * 28)])
def test_many_calls_cost_a_gpu_one_wait_and_few_operations(monkeypatch, dtype, together, most):
    monkeypatch.setitem(module.TOGETHER, "cuda", together)
    with PretendGpu() as gpu:
        pairs = [tuple(gpu.put(ROWS.to(dtype)) for _ in range(2)) for _ in range(24)]
        assert look(*pairs) == [True] * 24
    assert len(gpu.waits) == 1, gpu.waits
    launches = [one for one in gpu.operations if one not in {"view", "detach", "select", "unbind"}]
    assert len(launches) <= most, launches
