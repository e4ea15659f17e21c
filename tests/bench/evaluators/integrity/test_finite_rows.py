"""Rows of calls on stress inputs in which the reference is finite, and those that are left out."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.evaluator import JudgedCall
from flashinfer_bench.bench.evaluators.integrity.finite_rows import count_nonfinite, find_finite_rows
from tests.kit.operations import counting_operations

pytestmark = pytest.mark.cpu
INF, NAN = float("inf"), float("nan")
USUAL = [[torch.ones(6, 16)]]
ROWS = range(6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e5m2])
def test_nan_and_infinities_are_counted_together_with_one_wait(dtype):
    values = torch.tensor([[1.0, NAN, -2.0, INF], [-INF, 0.0, NAN, 5e-5]]).to(dtype)
    assert count_nonfinite([values]) == 4
    outputs = [torch.tensor([NAN, 1.0]), torch.tensor([3, 4]), torch.tensor([[INF]]), torch.zeros(0)]
    with counting_operations() as counted:
        assert count_nonfinite(outputs) == 2
    assert counted.waits() == 1
    info = torch.finfo(torch.float32)
    assert count_nonfinite([torch.tensor([info.max, info.min, info.tiny, -0.0])]) == 0
    assert count_nonfinite([torch.tensor([1e300], dtype=torch.float64)]) == 1  # it is compared in float32
    assert count_nonfinite([torch.tensor([1, 2])]) == count_nonfinite([]) == 0


def spoil(*places, by=INF, dtype=torch.float32):
    value = torch.ones(6, 16, dtype=dtype)
    for row, column in places:
        value[row, column] = by
    return value


MASKED = spoil(*((row, 0) for row in ROWS), by=-INF)
MASKS = [[spoil((0, 0), by=-INF)], [spoil((0, 1), by=-INF)]]


@pytest.mark.parametrize(
    ("expected", "got", "usual", "kept"),
    [
        (spoil((1, 3), by=NAN), spoil((1, 3), (4, 0), by=NAN), USUAL, [row not in (1, 4) for row in ROWS]),
        (spoil((1, 3), by=NAN), spoil((1, 3), (4, 0)), USUAL, [row not in (1, 4) for row in ROWS]),
        *((spoil((1, 3), by=by), spoil((4, 0)), USUAL, [False] * 6) for by in (INF, -INF)),  # it overflows
        (torch.ones(6, 16), spoil((0, 0)), USUAL, None),  # no more than on usual inputs
        (spoil((3, 3), (4, 4)), torch.ones(6, 16), [[spoil((0, 0))], [spoil((1, 1), (2, 2), by=NAN)]], None),
        (MASKED, MASKED, MASKS, True),  # infinities that are meant
        (MASKED + spoil((2, 5), by=NAN), MASKED, MASKS, [row != 2 for row in ROWS]),
        (MASKED + spoil((3, 5)), MASKED, MASKS, [False] * 6),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_rows_in_which_either_is_not_finite_are_left_out(expected, got, usual, kept, dtype):
    usual = [[value.to(dtype) for value in call] for call in usual]
    rows = find_finite_rows(JudgedCall([], [got.to(dtype)], [expected.to(dtype)]), usual)
    if kept is None:
        assert rows is None
    else:
        assert rows.kept[0] is None if kept is True else rows.kept[0].tolist() == kept


def test_outputs_without_rows_are_taken_or_left_whole_short_rows_together_and_integers_are_taken():
    short = torch.ones(3, 4, 4)
    short[1, 2, 2] = NAN
    expected = [torch.tensor([1.0, INF]), torch.arange(3), torch.ones(2), short]
    usual = [torch.ones(2), torch.arange(3), torch.ones(2), torch.ones(3, 4, 4)]
    rows = find_finite_rows(JudgedCall([], expected, expected), [usual])
    assert [tuple(one.shape) for one in rows.take(expected)] == [(0, 2), (3,), (2,), (2, 16)]
