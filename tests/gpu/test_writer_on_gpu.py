"""Our kernel writes on a GPU what it should, and the inputs of a call are the same each time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, choose_columns
from flashinfer_bench.bench.evaluators.inputs.nudges import find_nudge
from flashinfer_bench.bench.evaluators.inputs.writer import (
    DRAWN,
    FLIPPED_TOGETHER,
    LARGEST_FACTOR,
    MULTIPLIED,
    Changes,
    KernelWriter,
    TorchWriter,
    draw_example,
    find_kernel,
    looks_drawn,
    looks_varied,
    open_writer,
    vary_example,
    write_example,
)
from tests.kit.philox import draw_normal, vary

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
DEVICE = torch.device("cuda", 0)
KEY = 2**62 + 12_345
PRECISE = {torch.float64: 1e-6, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@pytest.mark.parametrize("dtype", [*MULTIPLIED, torch.uint8, torch.int64, torch.bool])
def test_the_kernel_writes_what_torch_writes(dtype):
    launch = find_kernel(DEVICE)
    assert launch is not None
    by_torch, by_kernel = write_example(dtype, launch, DEVICE)
    assert by_torch.any()
    assert torch.equal(by_torch, by_kernel)


@pytest.mark.parametrize("dtype", [*DRAWN])
def test_the_kernel_draws_normal_values_by_key_and_place(dtype):
    """Held against the numbers that the tests of the kernel's source hold it against on a CPU."""
    launch = find_kernel(DEVICE)
    assert looks_drawn(draw_example(dtype, launch, DEVICE))
    drawn = torch.zeros(70_003, dtype=dtype, device=DEVICE)
    writer = KernelWriter(DEVICE, launch)
    writer.draw_rows([drawn[:70_001]], np.array([KEY], np.uint64), 0.5)
    writer.finish()
    assert not drawn[70_001:].any()
    expected = torch.tensor(draw_normal(KEY, 70_001, 0.5), dtype=torch.float64)
    torch.testing.assert_close(drawn[:70_001].cpu().double(), expected, rtol=1e-2, atol=1e-5)


@pytest.mark.parametrize("writer_class", [KernelWriter, TorchWriter])
@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_both_writers_vary_as_they_have_to(dtype, writer_class):
    writer = open_writer(DEVICE) if writer_class is KernelWriter else TorchWriter()
    assert isinstance(writer, writer_class)
    assert looks_varied(vary_example(dtype, writer, DEVICE))


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (3, 3), (1_001, 77), (1_000, 64), (40_000, 333), (50_003, 50_003), (70_000, 4_096)]
)
@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_the_kernel_varies_as_a_plain_loop_says_and_writes_nothing_else(dtype, count, columns):
    base = torch.randn(count, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    held = torch.full((count + 4,), 9.0, dtype=dtype, device=DEVICE)
    writer = KernelWriter(DEVICE, find_kernel(DEVICE))
    by = count // 3
    told = Changes(np.array([by], np.uint64), np.array([KEY], np.uint64), np.array([True]), columns)
    writer.vary_rows(base, [held[:count]], told)
    writer.finish()
    assert (held[count:] == 9).all()
    places, factors = vary(count, by, KEY, columns)
    wanted = -base.cpu().double()[places] * torch.tensor(factors, dtype=torch.float64)
    torch.testing.assert_close(held[:count].cpu().double(), wanted, rtol=PRECISE[dtype], atol=1e-6)


def find_order(shape, number):
    """Return of each element of a call where it stood in the base, and its factor: by ones, and twos at set bits."""
    count = int(np.prod(shape))
    places = torch.arange(count, device=DEVICE).view(shape)
    planes = [torch.ones(shape, device=DEVICE)]
    planes += [((places >> bit & 1) + 1).float() for bit in range(count.bit_length())]
    factors, *made = (Contents([one], [VariedInput("x", "scaled")], 3, -1).make(number)[0] for one in planes)
    return sum((one / factors > 1.5).long() << bit for bit, one in enumerate(made)), factors


SHAPES = [(1,), (7,), (4_095,), (1 << 20,), ((1 << 20) + 3,), ((1 << 22) + 5,), (100, 64), (333, 1_001), (4, 1 << 18)]
SHORT_SHAPES = [(3_000, 4), (50_001, 9), (2, 3, 5, 128)]


@pytest.mark.parametrize("shape", [*SHAPES, *SHORT_SHAPES])
def test_rows_are_shuffled_each_in_its_own_order_in_each_call(shape):
    (sources, factors), (others, _) = find_order(shape, 5), find_order(shape, 6)
    count, columns = sources.numel(), choose_columns(sources)
    assert torch.equal(sources.view(-1).sort().values, torch.arange(count, device=DEVICE))
    assert 1 / LARGEST_FACTOR - 1e-5 < factors.min() <= factors.max() < LARGEST_FACTOR + 1e-5
    rows = sources.view(-1)[: count - count % columns].view(-1, columns)
    ends = rows.double()
    is_whole = (
        ends.amax(-1) - ends.amin(-1) == columns - 1
    )  # but for rows that begin at the base's end and at its begin
    assert int((~is_whole).sum()) <= 1 + (columns < count and count % columns > 0)
    if columns >= 64:
        orders = (rows - rows.amin(-1, keepdim=True))[is_whole]
        assert (sources == others).double().mean() < 0.1
        assert (orders.diff(dim=-1).abs() == 1).double().mean() < 0.1
        if len(orders) > 20:
            assert (orders[1:] == orders[:-1]).double().mean() < 0.1
    if count > 1_000:
        assert len(factors.unique()) > min(count, 100_000) // 2


@pytest.mark.parametrize("count", [1, 7, 4_095, 1 << 20, (1 << 22) + 3])
def test_sizes_and_places_of_all_kinds(count):
    assert isinstance(open_writer(DEVICE), KernelWriter)
    value = torch.randn(count, device=DEVICE).bfloat16()
    contents = Contents([value, value.view(1, -1).mT], [VariedInput("x", "scaled"), VariedInput("y", "rolled")], 3, -1)
    made, again = contents.make(5), contents.make(5)
    assert all(torch.equal(one, other) for one, other in zip(made, again, strict=True))
    by_torch = [torch.empty_like(one) for one in made]
    contents.write_all([5], [[one] for one in by_torch], TorchWriter())
    assert torch.equal(made[1], by_torch[1])
    sizes = [float(one.double().abs().sum() / value.double().abs().sum()) for one in (made[0], by_torch[0])]
    assert 0.99 / LARGEST_FACTOR < min(sizes) <= max(sizes) < 1.01 * LARGEST_FACTOR


@pytest.mark.parametrize("count", [1, 7, FLIPPED_TOGETHER, 3 * FLIPPED_TOGETHER + 5])
def test_bits_are_flipped_once_the_bytes_are_written(count):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8, device=DEVICE)
    contents = Contents([value], [VariedInput("x", "rolled", flips=0xFF)], 3, -1)
    made = contents.make_all([5, 6, 5])
    by_torch = [torch.empty_like(value) for _ in range(2)]
    contents.write_all([5, 6], [by_torch], TorchWriter())
    assert torch.equal(made[0][0], made[2][0])
    assert all(torch.equal(one[0], other) for one, other in zip(made[:2], by_torch, strict=True))
    assert count == 1 or not torch.equal(made[0][0], made[1][0])


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int8"])
@pytest.mark.parametrize("count", [7, 3 * FLIPPED_TOGETHER + 5, (1 << 23) + 3])
def test_stored_numbers_of_narrow_formats_are_flipped_as_torch_does_it(dtype, count):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8, device=DEVICE).view(getattr(torch, dtype))
    ways = [VariedInput("x", "rolled", is_nudged=True)]
    contents = Contents([value], ways, 3, -1)
    made, by_torch = contents.make_all([5, 6]), [torch.empty_like(value) for _ in range(2)]
    contents.write_all([5, 6], [by_torch], TorchWriter())
    for (one,), other in zip(made, by_torch, strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
    nudge, same = find_nudge(value), find_nudge(value.cpu())
    assert nudge == same
    if nudge is not None:
        pattern = torch.randint(0, 256, (count,), dtype=torch.uint8)
        held, there = value.cpu().view(torch.uint8).clone(), value.view(torch.uint8).clone()
        nudge.change(held, pattern)
        nudge.change(there, pattern.to(DEVICE))
        assert torch.equal(held, there.cpu())
