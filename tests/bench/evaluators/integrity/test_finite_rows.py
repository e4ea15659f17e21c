"""Rows of calls on inputs of other regimes in which the reference is finite, and those that are left out."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.finite_rows import count_nonfinite, find_finite_rows
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_nan_and_both_infinities_count(dtype):
    values = torch.tensor([[1.0, NAN, -2.0, INF], [-INF, 0.0, NAN, 5e-5]]).to(dtype)
    assert count_nonfinite([values]) == int((~values.float().isfinite()).sum()) == 4


def test_the_largest_numbers_are_finite():
    info = torch.finfo(torch.float32)
    assert count_nonfinite([torch.tensor([info.max, info.min, info.tiny, -0.0])]) == 0
    assert count_nonfinite([torch.tensor([1e300], dtype=torch.float64)]) == 1  # it is compared in float32


def test_outputs_are_counted_together_with_one_wait():
    outputs = [torch.tensor([NAN, 1.0]), torch.tensor([3, 4]), torch.tensor([[INF]]), torch.zeros(0)]
    with counting_operations() as counted:
        assert count_nonfinite(outputs) == 2
    assert counted.waits() == 1


def test_integers_and_no_outputs_are_finite():
    assert count_nonfinite([]) == 0
    assert count_nonfinite([torch.tensor([1, 2])]) == 0


USUAL = [[torch.ones(6, 16)]]


def find_kept(expected, got, usual=USUAL):
    """Return which rows of an output are judged: True where all are."""
    rows = find_finite_rows(JudgedCall([], [got], [expected]), usual)
    assert rows is not None
    return True if rows.kept[0] is None else rows.kept[0].tolist()


def spoil(*places, by=INF, dtype=torch.float32):
    value = torch.ones(6, 16, dtype=dtype)
    for row, column in places:
        value[row, column] = by
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("by", [INF, -INF, NAN])
def test_rows_in_which_either_is_not_finite_are_left_out(by, dtype):
    expected, got = spoil((1, 3), by=by, dtype=dtype), spoil((1, 3), (4, 0), by=by, dtype=dtype)
    kept = [by is NAN and row not in (1, 4) for row in range(6)]  # what overflows is left out whole
    assert find_kept(expected, got, [[torch.ones(6, 16, dtype=dtype)]]) == kept


def test_a_call_that_is_as_finite_as_usual_ones_is_judged_whole():
    wide = torch.ones(6, 16)
    assert find_finite_rows(JudgedCall([], [spoil((0, 0))], [wide]), USUAL) is None
    usual = [[spoil((0, 0))], [spoil((1, 1), (2, 2), by=NAN)]]
    assert find_finite_rows(JudgedCall([], [wide], [spoil((3, 3), (4, 4))]), usual) is None


def test_what_is_infinite_on_usual_inputs_leaves_no_row_out_and_nan_does():
    usual = [[spoil((0, 0), by=-INF)], [spoil((0, 1), by=-INF)]]
    masked = spoil(*((row, 0) for row in range(6)), by=-INF)
    assert find_kept(masked, masked, usual) is True
    masked[2, 5] = NAN
    assert find_kept(masked, masked, usual) == [True, True, False, True, True, True]
    masked[3, 5] = INF
    assert find_kept(masked, masked, usual) == [False] * 6


def test_outputs_without_rows_are_taken_or_left_whole_and_integers_are_taken():
    expected = [torch.tensor([1.0, INF]), torch.arange(3), torch.ones(2)]
    rows = find_finite_rows(JudgedCall([], expected, expected), [[torch.ones(2), torch.arange(3), torch.ones(2)]])
    assert [one.numel() for one in rows.take(expected)] == [0, 3, 2]


def test_short_rows_are_taken_together_as_norms_take_them():
    expected = torch.ones(3, 4, 4)
    expected[1, 2, 2] = NAN
    rows = find_finite_rows(JudgedCall([], [expected], [expected]), [[torch.ones(3, 4, 4)]])
    assert [tuple(one.shape) for one in rows.take([expected])] == [(2, 16)]
