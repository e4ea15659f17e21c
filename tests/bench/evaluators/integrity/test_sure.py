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


def lose(at, value, rows=ROWS):
    changed = rows.clone()
    changed[at] = value
    return changed


FLAT = lose(2, 0.005 * ROWS[2])
BOOLS = torch.full((64,), 1, dtype=torch.uint8)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize(
    ("expected", "got", "tolerance", "passes"),
    [
        *((ROWS.to(dtype), ROWS.to(dtype), TOLERANCE, True) for dtype in (torch.float64, torch.bfloat16, torch.int32)),
        (ROWS.to(torch.float8_e4m3fn), ROWS.to(torch.float8_e4m3fn), TOLERANCE, True),
        (ROWS.mT, ROWS.mT.contiguous(), TOLERANCE, True),
        (torch.tensor(1), torch.tensor(1), TOLERANCE, True),
        (torch.zeros(0), torch.zeros(0), TOLERANCE, True),
        (ROWS, ROWS * 1.02, TOLERANCE, False),
        (ROWS, ROWS * 1.02, None, True),
        (ROWS, ROWS + 0.9 * (0.01 + 0.01 * ROWS.abs()), TOLERANCE, False),
        (ROWS, ROWS + 0.9 * (0.01 + 0.01 * ROWS.abs()), replace(TOLERANCE, is_sum=True), True),
        (ROWS, ROWS * 1.005, replace(TOLERANCE, max_absolute_error=1e-3), False),
        (ROWS, ROWS, replace(TOLERANCE, required_matched_ratio=0.9), False),
        *((ROWS, lose((3, 5), bad), tolerance, False) for bad in (NAN, INF) for tolerance in (TOLERANCE, None)),
        *((lose((3, 5), bad), got, None, False) for bad in (NAN, INF) for got in (ROWS, lose((3, 5), bad))),
        (ROWS * 1e-4, torch.zeros_like(ROWS), TOLERANCE, False),
        (ROWS, lose(4, 0.0), LOOSE, False),
        (ROWS, lose(4, 0.0), None, False),
        (FLAT, lose(2, 0.0, FLAT), LOOSE, True),  # a row far below the usual one
        (torch.tensor([2.5, 1.0]), torch.tensor([0.0, 1.0]), LOOSE, True),  # small outputs: on stress inputs only
        (torch.tensor([2.5, 1.0]), torch.tensor([0.0, 1.0]), None, False),
        (torch.tensor(2.5), torch.tensor(2.4), None, True),
        (ROWS.int(), ROWS.int() + 1, TOLERANCE, False),
        (ROWS.int(), ROWS.int() + 1, None, True),  # whole numbers have no norms
        (BOOLS.view(torch.bool), (BOOLS * 0xA5).view(torch.bool), TOLERANCE, False),  # bytes that nobody wrote
    ],
)
def test_a_call_beside_right_ones_passes_only_if_it_surely_does(expected, got, tolerance, passes, count):
    for at in range(count):
        calls = [(expected, expected.clone())] * count
        calls[at] = (expected, got)
        answer = look(*calls, tolerance=tolerance)
        if expected.is_floating_point() and not expected.float().isfinite().all():
            assert answer is None
        else:
            assert (answer is not None) is passes


def test_rules_that_are_off_are_not_looked_at():
    rule = NormRule(0.1, judges_output=False, row_rule=None)
    assert look((ROWS, lose(4, 0.0)), tolerance=Tolerance(rtol=5.0, atol=5.0), rule=rule) == [False]
    assert surely_pass([], RULE, TOLERANCE) == []


def test_it_is_told_of_each_call_whether_anything_else_than_zeros_was_expected():
    zeros = torch.zeros_like(ROWS)
    assert look((ROWS, ROWS), (zeros, zeros), tolerance=None) == [True, False]
    several = [JudgedCall([], [zeros, one], [zeros, one]) for one in (torch.tensor(-2.5), torch.tensor(0.0))]
    assert surely_pass(several, RULE) == [True, False]


def test_a_small_call_is_held_against_its_own_norm_beside_large_ones():
    large = (ROWS * 100, ROWS * 100)
    assert look(large, (ROWS * 1e-3, ROWS * 1e-3), tolerance=LOOSE) is not None
    assert look(large, (ROWS * 1e-3, ROWS * 1.3e-3), tolerance=LOOSE) is None


@pytest.mark.parametrize("shape", [(6, 64), (3,), (), (5, 7), (4, 16)])
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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32], ids=str)
@pytest.mark.parametrize("tolerance", [TOLERANCE, None])
@pytest.mark.parametrize(("together", "most"), [(1 << 23, 36), (1, 24 * 28)])
def test_many_calls_cost_a_gpu_one_wait_and_few_operations(monkeypatch, dtype, tolerance, together, most):
    monkeypatch.setitem(module.TOGETHER, "cuda", together)
    with PretendGpu() as gpu:
        pairs = [tuple(gpu.put(ROWS.to(dtype)) for _ in range(2)) for _ in range(24)]
        assert look(*pairs, tolerance=tolerance) == [dtype != torch.int32] * 24
    assert len(gpu.waits) <= 1, gpu.waits
    launches = [one for one in gpu.operations if one not in {"view", "detach", "select", "unbind"}]
    assert len(launches) <= most, launches
