"""No NaN that a GPU makes is the one with which outputs are filled: by torch, by Triton, by conversions of either."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten, fill, fill_words
from tests.kit.nans import FLOATS, make_nans

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def is_written(made):
    return bool(made.isnan().all()) and count_unwritten(torch.full_like(made, torch.nan), made) == 0


def test_torch_makes_no_nan_of_a_fill():
    assert all(is_written(made) for made in make_nans("cuda"))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_fill_is_found(dtype):
    held = torch.zeros(67 * dtype.itemsize, dtype=torch.uint8, device="cuda")
    fill(held, fill_words(dtype)[0])
    got = held.view(dtype)
    assert count_unwritten(torch.full_like(got, torch.nan), got) == 67
    assert all(is_written(got.to(other)) for other in FLOATS if other != dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_triton_makes_no_nan_of_a_fill(dtype):
    pytest.importorskip("triton")
    from tests.gpu.nan_kernels import LINES, make_nans_by_triton

    made = torch.zeros(LINES, 64, dtype=dtype, device="cuda")
    nan = torch.full((64,), torch.nan, dtype=torch.float32, device="cuda")
    make_nans_by_triton[(1,)](nan, made, COUNT=64)
    assert is_written(made)
