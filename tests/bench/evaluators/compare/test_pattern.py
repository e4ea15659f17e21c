"""What a wrong output looks like, in words."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance

RIGHT = torch.randn(12, 64, generator=torch.Generator().manual_seed(1)) + 3


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
        (RIGHT.flip(0), "got has the expected values in another order"),
        (RIGHT + torch.randn(12, 64) * 9, None),
    ],
)
def test_patterns(wrong, told):
    assert describe_pattern(RIGHT, wrong, Tolerance(1e-4, 1e-4)) == told


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
