"""What passes at one look passes when each call is judged; what may not pass is judged call by call."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance, bounds_of
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity import sure as module
from flashinfer_bench.bench.evaluators.integrity.norm_rule import NORM, NormRule, measure_outputs
from flashinfer_bench.bench.evaluators.integrity.sure import NORM_MARGIN, norms_surely_pass, surely_pass
from tests.bench.evaluators.pretend_gpu import PretendGpu

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


def calls_of(count, shape, dtype, *, off=0.0, put=lambda tensor: tensor, seed=0):
    generator = torch.Generator().manual_seed(seed)
    calls = []
    for _ in range(count):
        expected = torch.randn(shape, generator=generator)
        got = expected * (1 + off * torch.rand(shape, generator=generator))
        calls.append(JudgedCall([], [put(got.to(dtype))], [put(expected.to(dtype))]))
    return calls


@pytest.mark.parametrize(
    ("dtype", "most"),
    [(torch.bfloat16, 32), (torch.float32, 32), (torch.float8_e4m3fn, 136), (torch.int32, 12)],
    ids=str,
)
def test_many_calls_cost_a_gpu_one_wait_and_few_operations(dtype, most):
    with PretendGpu() as gpu:
        assert surely_pass(calls_of(24, (16, 64), dtype, put=gpu.put), TOLERANCE, RULE)
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= most, gpu.operations


def test_calls_that_are_looked_at_one_by_one_cost_sixteen_operations_each(monkeypatch):
    monkeypatch.setitem(module.TOGETHER, "cuda", 1)
    with PretendGpu() as gpu:
        assert surely_pass(calls_of(24, (16, 64), torch.bfloat16, put=gpu.put), TOLERANCE, RULE)
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= 16 * 24 + 20, len(gpu.operations)


def passes_by_the_book(call, tolerance):
    """Judge one call in plain steps: each element, each row, and the whole."""
    expected, got = call.expected[0].float(), call.got[0].float()
    error = (got - expected).abs()
    norms = [torch.linalg.vector_norm(side, dim=-1, dtype=torch.float64) for side in (error, expected)]
    floor = 0.1 * norms[1].square().mean().sqrt()
    most = RULE.limit * NORM_MARGIN
    return bool(
        (error <= bounds_of(expected.abs(), tolerance, 1e30)).all()
        and (norms[0] <= most * torch.maximum(norms[1], floor)).all()
        and torch.linalg.vector_norm(norms[0]) <= most * torch.linalg.vector_norm(norms[1])
    )


@pytest.mark.parametrize("kept", [1, 1 << 20], ids=["norms at once", "norms together"])
@pytest.mark.parametrize("together", [1, 200, 1 << 15])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_how_calls_are_put_together_changes_nothing(monkeypatch, dtype, together, kept):
    monkeypatch.setitem(module.TOGETHER, "cpu", together)
    monkeypatch.setattr(module, "NORMS_TOGETHER", kept)
    loose, seen = Tolerance(rtol=1.0, atol=1.0), set()
    for seed, off in enumerate([0.0, 0.1, 0.15, 0.18, 0.22, 0.3, 0.5]):
        calls = calls_of(5, (3, 64), dtype, off=off, seed=seed)
        answer = surely_pass(calls, loose, RULE)
        assert answer == all(passes_by_the_book(call, loose) for call in calls)
        seen.add(answer)
    assert seen == {True, False}


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.uint16, torch.int32, torch.int64, torch.bfloat16], ids=str
)
def test_outputs_that_are_not_contiguous_or_have_no_axis_are_looked_at(dtype):
    for count in (1, 3):
        for expected in ((ROWS > 0).to(dtype).T, torch.tensor(1).to(dtype), torch.zeros(0).to(dtype)):
            assert surely_pass([JudgedCall([], [expected.clone()], [expected])] * count, TOLERANCE, RULE)
            other = torch.zeros_like(expected)
            calls = [JudgedCall([], [other], [expected])] * count
            assert surely_pass(calls, TOLERANCE, RULE) == (not expected.numel())


def test_a_byte_of_a_bool_that_was_never_written_does_not():
    raw = torch.full((64,), 1, dtype=torch.uint8)
    assert passes(raw.view(torch.bool), raw.clone().view(torch.bool))
    for count in (1, 3):
        call = JudgedCall([], [(raw * 0xA5).view(torch.bool)], [raw.view(torch.bool)])
        assert not surely_pass([call] * count, TOLERANCE, RULE)


def norms_pass(*calls, rule=RULE):
    """Look at the norms of calls, each what was expected and what came."""
    return norms_surely_pass([JudgedCall([], list(got), list(expected)) for expected, got in calls], rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn])
def test_norms_of_right_calls_pass_together(dtype):
    expected = ROWS.to(dtype)
    zeros = torch.zeros_like(expected)
    small, none = torch.tensor(-2.5).to(dtype), torch.zeros(0).to(dtype)
    assert norms_pass(((expected,), (expected.clone(),)), ((zeros,), (zeros.clone(),))) == [True, False]
    assert norms_pass(((small, none), (small.clone(), none)), ((small, none), (small, none))) == [True, True]
    assert norms_pass(((none,), (none,))) == [False]
    assert norms_pass(((ROWS.int(),), (ROWS.int() + 1,))) == [False], "whole numbers have no norms"


@pytest.mark.parametrize(
    "got",
    [
        ROWS * 1.2,
        lose((3, 5), float("nan")),
        lose((3, 5), float("inf")),
        lose(4, 0.0),
        ROWS[:5],
        ROWS.double(),
    ],
)
def test_norms_that_may_be_wrong_do_not(got):
    right = (ROWS,), (ROWS.clone(),)
    assert norms_pass(right, ((ROWS,), (got,))) is None
    assert norms_pass(((ROWS,), (got,)), right) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("got", [ROWS, lose((2, 2), float("inf")), lose((2, 2), float("nan"))])
def test_norms_of_what_is_not_finite_are_judged_for_themselves(bad, got):
    assert norms_pass(((lose((2, 2), bad),), (got,))) is None


@pytest.mark.parametrize("shape", [(3,), (), (5, 7), (4, 16)])
def test_norms_pass_only_where_those_of_each_call_do(shape):
    generator = torch.Generator().manual_seed(11)
    outcomes = set()
    for off in (0.0, 0.02, 0.05, 0.09, 0.11, 0.2):
        expected = torch.randn(shape, generator=generator)
        got = (
            expected + off * torch.randn(shape, generator=generator) * expected.norm() / max(expected.numel(), 1) ** 0.5
        )
        (norms,) = measure_outputs([expected], [got])
        is_right = norms.share() <= RULE.limit and norms.figures.worst_row <= RULE.limit
        passes_ = norms_pass(((expected,), (got,))) is not None
        assert is_right or not passes_
        outcomes.add(passes_)
    assert outcomes == {True, False}


def test_norms_of_several_calls_cost_a_gpu_one_wait():
    with PretendGpu() as gpu:
        found = norms_surely_pass(calls_of(4, (16, 64), torch.bfloat16, put=gpu.put), RULE)
    assert found == [True] * 4
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= 36, gpu.operations
