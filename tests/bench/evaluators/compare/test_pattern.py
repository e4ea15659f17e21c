"""What a wrong output looks like, in words."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

RIGHT = torch.randn(12, 64, generator=torch.Generator().manual_seed(1)) + 3
SQUARE = torch.rand(32, 32, generator=torch.Generator().manual_seed(1)) + 1


def spoil(*where):
    wrong = RIGHT.clone()
    wrong[where] += 1.5
    return wrong


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (RIGHT, None),
        (spoil(11), "only the last row"),
        (spoil(0, 3), "only the first row and column 3"),
        (spoil(slice(None), slice(15, None, 16)), "only every 16th column, from 15"),
        (spoil(slice(4, 7)), "only rows 4 to 6"),
        (spoil(slice(None), slice(60, None)), "only the last 4 columns"),
        (RIGHT * 2, "got is expected times 2"),
        (-RIGHT, "got is expected times -1"),
        (RIGHT + 0.5, "got is expected plus 0.5"),
        (RIGHT * 0, "all values are 0"),
        (RIGHT.t().reshape(12, 64), "got is expected, transposed"),
        (RIGHT.roll(1, 0), "got is expected, shifted to the next row"),
        (RIGHT.roll(-1, 1), "got is expected, shifted to the previous column"),
        (RIGHT.roll(16, 1), "got is expected, shifted on by 16 columns"),
        (RIGHT.roll(-4, 0), "got is expected, shifted back by 4 rows"),
        (spoil(slice(1, None, 2)), "only every 2nd row, from 1"),
        (spoil(slice(None), [at for at in range(64) if at % 16 >= 12]), "only the last 4 of every 16 columns"),
        (spoil(slice(None), [at for at in range(64) if at % 16 in (4, 5)]), "only columns 4 to 5 of every 16"),
        (
            RIGHT * torch.linspace(2, 3, 12)[:, None],
            "each row is expected times a factor of its own, 2 to 3",
        ),
        (RIGHT * torch.linspace(2, 3, 64), "each column is expected times a factor of its own, 2 to 3"),
        (RIGHT.flip(0), "got has the expected values in another order"),
        (RIGHT + torch.randn(12, 64) * 9, None),
    ],
)
def test_patterns(wrong, told):
    assert describe_pattern(RIGHT, wrong, Tolerance(1e-4, 1e-4)) == told


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (SQUARE.tril(), "only above the diagonal"),
        (SQUARE.triu(1), "only on and below the diagonal"),
        (SQUARE + torch.eye(32), "only on the diagonal"),
    ],
)
def test_a_causal_mask_that_is_off_is_told(wrong, told):
    assert describe_pattern(SQUARE, wrong, Tolerance(1e-4, 1e-4)) == told


def test_a_place_of_an_axis_without_a_name_reads_well():
    right = torch.ones(5, 8, 16)
    wrong = right.clone()
    wrong[:, 3] = torch.arange(16)
    assert describe_pattern(right, wrong, Tolerance(1e-4, 1e-4)) == "only index 3 of axis 1"


def test_integers_and_other_shapes():
    right = torch.arange(24).reshape(2, 3, 4)
    wrong = right.clone()
    wrong[1] = 99
    assert describe_pattern(right, wrong, Tolerance(1, 1)) == "only the last index of axis 0"
    assert describe_pattern(right.flatten().bfloat16(), right.flatten().bfloat16() * 4, Tolerance(0.1, 0.1)) == (
        "got is expected times 4"
    )
    assert describe_pattern(torch.zeros(0), torch.zeros(0), Tolerance(1, 1)) is None
    nan = torch.full((4,), torch.nan)
    assert describe_pattern(nan, torch.ones(4), Tolerance(1e-3, 1e-3)) == "all values are 1"
