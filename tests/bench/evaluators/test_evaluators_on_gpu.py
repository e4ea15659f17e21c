"""The judge on a GPU: the same verdicts as on a CPU, within its memory."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool])
def test_a_comparison_finds_the_same_on_both_devices(dtype):
    generator = torch.Generator().manual_seed(0)
    expected = torch.randn(700, 77, generator=generator)
    got = torch.where(torch.rand(700, 77, generator=generator) < 0.1, expected * 1.5, expected)
    expected[7], got[7], got[9], expected[11] = float("nan"), float("nan"), 0.0, float("inf")
    if not dtype.is_floating_point:
        expected, got = expected.nan_to_num(0, 9, -9), got.nan_to_num(0, 9, -9)
    sides = [side.to(dtype) for side in (expected, got)]
    found = [compare(*(side.to(device) for side in sides), Tolerance(1e-2, 1e-2, 0.5)) for device in ("cpu", "cuda")]
    assert repr(found[0].to_record()) == repr(found[1].to_record())
    assert found[0].problem() == found[1].problem()


def test_comparing_a_gigabyte_takes_less_than_300_megabytes():
    expected = torch.randn(1 << 29, device=CUDA, dtype=torch.bfloat16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert compare(expected, expected.clone().mul_(1.004), Tolerance(1e-2, 1e-2, 0.95)).problem() is None
    assert torch.cuda.max_memory_allocated() - before - (1 << 30) < 300e6
