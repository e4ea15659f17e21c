"""What a wrong output looks like, in words."""

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern, describe_places
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance

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
        (spoil(0, 3), "only the first row and column 3"),
        (spoil(slice(None), slice(15, None, 16)), "only every 16th column, from 15"),
        (spoil(slice(4, 7)), "only rows 4 to 6"),
        (RIGHT * 2, "got is expected times 2"),
        (RIGHT + 0.5, "got is expected plus 0.5"),
        (RIGHT * 0, "all values are 0"),
        (RIGHT.t().reshape(12, 64), "got is expected, transposed"),
        (RIGHT.roll(1, 0), "got is expected, shifted to the next row"),
        (RIGHT.roll(-4, 0), "got is expected, shifted back by 4 rows"),
        (spoil(slice(None), [at for at in range(64) if at % 16 >= 12]), "only the last 4 of every 16 columns"),
        (RIGHT.flip(0), "got has the expected values in another order"),
    ],
)
def test_patterns(wrong, told):
    assert describe_pattern(RIGHT, wrong, Tolerance(1e-4, 1e-4)) == told


RANGE = torch.arange(24).reshape(2, 3, 4)
LARGE = torch.arange(64).view(8, 8) + 2**60  # float64 does not hold all of these


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (SQUARE, SQUARE + torch.eye(32), "only on the diagonal"),
        (RANGE, RANGE.index_fill(0, torch.tensor(1), 99), "only the last index of axis 0"),
        (torch.zeros(0), torch.zeros(0), None),
        (LARGE, LARGE.index_add(0, torch.tensor([3]), torch.ones(1, 8, dtype=torch.int64)), "only row 3"),
        (LARGE, LARGE + 1, None),
    ],
)
def test_masks_axes_and_dtypes(right, wrong, told):
    assert describe_pattern(right, wrong, Tolerance(1e-4, 1e-4)) == told


def fail(shape, where, share=0.9, elsewhere=0.0):
    """Return which elements fail: most of those at some places, and a few others."""
    inside = torch.zeros(shape, dtype=torch.bool)
    inside[where] = True
    drawn = torch.rand(shape, generator=torch.Generator().manual_seed(2))
    return torch.where(inside, drawn < share, drawn < elsewhere)


LAST_8 = (..., [at for at in range(1024) if at % 128 >= 120])


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        (fail((2, 1024), LAST_8, elsewhere=0.003), "mostly the last 8 of every 128 columns"),
        (fail((4, 1024), (3, slice(15, None, 16))), "only the last row and every 16th column, from 15"),
        (fail((64, 64), torch.ones(64, 64).tril(-1).bool(), elsewhere=0.005), "mostly below the diagonal"),
    ],
)
def test_a_pattern_is_told_though_a_few_elements_are_right_or_others_wrong(failing, told):
    assert describe_places(failing) == told


@pytest.mark.parametrize("shape", [(64,), (1, 128), (12, 64), (32, 32), (2, 512)], ids=str)
def test_elements_that_fail_at_random_have_no_pattern(shape):
    generator = torch.Generator().manual_seed(3)
    named = [
        told
        for share in (0.02, 0.1, 0.3, 0.5, 0.8, 0.95)
        for _ in range(10)
        if (told := describe_places(torch.rand(shape, generator=generator) < share)) is not None
        and any(word in told for word in ("every", "diagonal", "mostly"))
    ]
    assert named == []
