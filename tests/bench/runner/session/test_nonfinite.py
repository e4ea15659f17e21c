"""Elements that are not finite, as the judge of calls on inputs of other regimes counts them."""

import pytest
import torch

from flashinfer_bench.bench.runner.session.regimes import count_nonfinite
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
