"""Our kernel writes on a GPU what it should, and the inputs of a call are the same each time."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import DRAWN, MULTIPLIED, open_writer
from tests.kit.philox import check_kernel

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (3, 3), (1_001, 77), (40_000, 333), (50_003, 50_003), (70_000, 4_096)]
)
@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_the_kernel_draws_and_shuffles_as_plain_loops_do_and_writes_nothing_else(dtype, count, columns):
    check_kernel(open_writer(DEVICE), DEVICE, dtype, count, columns, is_drawn=dtype in DRAWN)


@pytest.mark.parametrize("count", [1, 7, 4_095, (1 << 22) + 3])
def test_copies_moves_and_fills_are_those_of_a_cpu(count):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8).view(1, -1)
    made = []
    for device in (torch.device("cpu"), DEVICE):
        contents = Contents([value.to(device).mT], [VariedInput("x", "rolled")], 3, 1)
        held, writer = torch.zeros(3, count + -count % 8, dtype=torch.uint8, device=device), open_writer(device)
        writer.fill_rows(held[:, :count], [0, 2], 0xF1E2D3C4B5A69788)
        writer.finish()
        made.append([values[0].cpu() for values in contents.make_all([0, 1, 2])] + [held.cpu()])
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert torch.equal(made[1][1], value.mT)


@pytest.mark.parametrize("told", [{"flips": 0xFF}, {"is_nudged": True}])
@pytest.mark.parametrize("count", [1_001, (1 << 23) + 3])
def test_bits_are_flipped_once_the_bytes_are_written(count, told):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8, device=DEVICE).view(torch.int8)
    contents = Contents([value], [VariedInput("x", "rolled", **told)], 3, -1)
    (one,), (other,), (again,) = contents.make_all([5, 6, 5])
    assert torch.equal(one, again)
    assert (one != other).double().mean() > 0.9
    if "is_nudged" in told:
        assert torch.equal(one.abs().sort().values, value.abs().sort().values)
