"""What passes at a glance passes when each call is judged; what may not pass is judged call by call."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, measure_outputs
from flashinfer_bench.bench.evaluators.integrity.sure import surely_pass

TOLERANCE = Tolerance(rtol=0.01, atol=0.01)
RULE = NormRule(0.1, judges_output=True, row_rule=NORM)
ROWS = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))


def passes(expected, got, tolerance=TOLERANCE, rule=RULE):
    return surely_pass([JudgedCall([], [got], [expected])], tolerance, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn])
def test_right_outputs_pass(dtype):
    expected = ROWS.to(dtype)
    assert passes(expected, expected.clone())
    assert surely_pass([], TOLERANCE, RULE)


def lose(at, value):
    changed = ROWS.clone()
    changed[at] = value
    return changed


def test_a_sum_lets_more_pass():
    added = Tolerance(rtol=0.01, atol=0.01, is_sum=True)
    off = ROWS + 0.9 * (0.01 + 0.01 * ROWS.abs())
    assert passes(ROWS, off, added)
    assert not passes(ROWS, off)


@pytest.mark.parametrize(
    "got",
    [
        ROWS * 1.02,
        lose((3, 5), float("nan")),
        lose((3, 5), float("inf")),
        lose((0, 0), ROWS[0, 0] + 0.02 * ROWS.abs().max()),
        ROWS[:5],
        ROWS.double(),
    ],
)
def test_what_may_be_wrong_does_not(got):
    assert not passes(ROWS, got)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_outputs_that_are_not_finite_are_judged_for_themselves(bad):
    expected = lose((2, 2), bad)
    assert not passes(expected, expected.clone())


def test_zeros_for_small_values_and_lost_rows_do_not():
    assert not passes(ROWS * 1e-4, torch.zeros_like(ROWS))
    small = ROWS.clone()
    small[2] *= 0.005
    lost = small.clone()
    lost[2] = 0
    loose = Tolerance(rtol=0.01, atol=0.1)
    assert not compare(small, lost, loose).mismatched
    assert not passes(small * 1, lost, loose, NormRule(1e-3, judges_output=False, row_rule=NORM))
    assert passes(small, lost, loose, NormRule(0.1, judges_output=False, row_rule=None))


def test_an_error_above_the_cap_is_left_to_others():
    got = ROWS * 1.005
    assert passes(ROWS, got, TOLERANCE)
    largest = float((got - ROWS).abs().max())
    assert not passes(ROWS, got, Tolerance(0.01, 0.01, max_absolute_error=largest * 0.9))
    assert passes(ROWS, got, Tolerance(0.01, 0.01, max_absolute_error=largest * 1.1))


def test_a_ratio_and_a_wrong_number_of_outputs_are_left_to_others():
    assert not passes(ROWS, ROWS.clone(), Tolerance(0.01, 0.01, required_matched_ratio=0.9))
    assert not surely_pass([JudgedCall([], [], [ROWS])], TOLERANCE, RULE)


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_whole_numbers_have_to_be_equal(dtype):
    expected = (ROWS > 0).to(dtype)
    other = expected.clone()
    other[1, 1] = 1 - int(other[1, 1])
    assert passes(expected, expected.clone())
    assert not passes(expected, other)


def test_it_never_passes_what_the_judge_rejects():
    generator = torch.Generator().manual_seed(11)
    seen = set()
    for _ in range(300):
        size = float(torch.rand((), generator=generator)) * 0.02
        got = ROWS + size * ROWS.abs() * torch.rand(ROWS.shape, generator=generator)
        (norms,) = measure_outputs([ROWS], [got])
        is_right = not compare(ROWS, got, TOLERANCE).mismatched and float(norms.row_shares.max()) <= RULE.limit
        assert is_right or not passes(ROWS, got)
        seen.add((is_right, passes(ROWS, got)))
    assert (True, True) in seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn, torch.int32, torch.bool])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_one_wrong_call_among_right_ones_is_seen(dtype, at):
    expected = [(ROWS * (call + 1)).to(dtype) for call in range(7)]
    got = [one.clone() for one in expected]
    calls = [JudgedCall([], [one], [other]) for one, other in zip(got, expected, strict=True)]
    assert surely_pass(calls, TOLERANCE, RULE)
    got[at][2, 7] = 1 if dtype == torch.int32 and got[at][2, 7] != 1 else not got[at][2, 7].float()
    got[at][2, 8] = 5 if dtype != torch.bool else not got[at][2, 8]
    assert not surely_pass(calls, TOLERANCE, RULE)


def test_a_small_call_is_held_against_its_own_norm_beside_large_ones():
    small, loose = ROWS * 1e-3, Tolerance(rtol=0.5, atol=1.0)
    right = JudgedCall([], [ROWS * 100], [ROWS * 100])
    assert surely_pass([right, JudgedCall([], [small.clone()], [small])], loose, RULE)
    assert not surely_pass([right, JudgedCall([], [small * 1.3], [small])], loose, RULE)


def test_calls_of_other_shapes_are_looked_at_too():
    other = torch.ones(3, 8)
    calls = [JudgedCall([], [ROWS.clone(), other], [ROWS, other.clone()]) for _ in range(3)]
    assert surely_pass(calls, TOLERANCE, RULE)
    other[1, 1] = 2
    assert not surely_pass(calls, TOLERANCE, RULE)
