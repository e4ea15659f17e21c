"""Our kernel writes on a GPU what it should, and the inputs of a call are the same each time."""

from __future__ import annotations

import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, choose_columns
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
        held, writer = torch.zeros(3, count, dtype=torch.uint8, device=device), open_writer(device)
        writer.fill_rows(held, [0, 2], 0xF1E2D3C4B5A69788)
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


@pytest.mark.parametrize("shape", [(1,), (4_095,), ((1 << 22) + 5,), (100, 64), (333, 1_001), (4, 1 << 18), (3_000, 4)])
def test_rows_are_shuffled_each_in_its_own_order_in_each_call(shape):
    """Of an input that tells where its elements stood."""
    places = torch.arange(torch.Size(shape).numel(), device=DEVICE).view(shape)
    planes = [torch.ones(shape, device=DEVICE)]
    planes += [((places >> bit & 1) + 1).float() for bit in range(places.numel().bit_length())]
    found = []
    for number in (5, 6):
        factors, *made = (Contents([one], [VariedInput("x", "scaled")], 3, -1).make(number)[0] for one in planes)
        found.append(sum((one / factors > 1.5).long() << bit for bit, one in enumerate(made)).view(-1))
        assert 0.79 < factors.min() <= factors.max() < 1.26
        assert torch.equal(found[-1].sort().values, places.view(-1))
    count, columns = places.numel(), choose_columns(places)
    if columns >= 64:
        orders = found[0][: count - count % columns].view(-1, columns)
        orders = orders - orders.amin(-1, keepdim=True)
        assert (found[0] == found[1]).double().mean() < 0.1
        assert (orders.diff(dim=-1).abs() == 1).double().mean() < 0.1
        assert (orders[1:] == orders[:-1]).double().sum() <= 0.1 * orders.numel()
