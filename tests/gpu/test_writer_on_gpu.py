"""Inputs of calls are written right on a GPU and on a CPU, and those of a call are the same each time."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs.contents import Contents, DealtContents
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import open_writer

DEVICES = [pytest.param("cpu", marks=pytest.mark.cpu), pytest.param("cuda:0", marks=pytest.mark.gpu)]
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
KEY, NEGATED = 2**62 + 12_345, 1 << 63
REACH = 1.26
"""A factor lies between this and its inverse."""
pytestmark = pytest.mark.parametrize("device", DEVICES)


def vary(base, keys, by, columns):
    """Return the rows that a writer varies, checking that it writes nothing else."""
    count = base.numel()
    held = torch.full((len(keys), count + 4), 9.0, dtype=base.dtype, device=base.device)
    writer, given = open_writer(base.device), np.array(keys, np.uint64)
    writer.vary_rows(base, held[:, :count], range(len(keys)), np.array(by, np.uint64), given, columns)
    writer.finish()
    assert (held[:, count:] == 9).all()
    return held[:, :count].double()


def lines_of(rows, columns):
    """Return the lines of some rows, each sorted: whole ones, and what is left."""
    whole = rows.shape[1] // columns * columns
    parts = rows[:, :whole].reshape(-1, columns), rows[:, whole:]
    return [part.sort(dim=-1).values for part in parts]


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (3, 3), (1_001, 77), (40_000, 333), (50_003, 50_003), (70_000, 4_096)]
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_elements_come_from_secret_places_of_their_line_times_secret_factors(device, dtype, count, columns):
    keys, by = [KEY, KEY | NEGATED, 5], [count // 3, 0, 0]
    factors = vary(torch.ones(count, dtype=dtype, device=device), keys, by, columns)
    places, index = torch.zeros_like(factors), torch.arange(count, device=device)
    for power in range(5):  # a digit of the place at a time: narrow dtypes hold no more
        digits = index // 16**power % 16
        found = vary((digits + 1).to(dtype), keys, by, columns)
        places += ((found / factors).round() - 1) * 16**power
    assert (factors[1] < 0).all()
    assert ((factors.abs() < REACH) & (factors.abs() > 1 / REACH)).all()
    moved = (index + torch.tensor(by, device=device)[:, None]) % count
    for found, wanted in zip(lines_of(places.long(), columns), lines_of(moved, columns), strict=True):
        assert torch.equal(found, wanted)
    assert torch.equal(places[0], (places[1] + by[0]) % count)
    assert torch.equal(factors[0], -factors[1])
    if columns > 70:  # another key
        assert (places[1] != places[2]).double().mean() > 0.9
        assert (factors[0] != factors[2]).double().mean() > 0.5


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=str)
def test_normal_values_are_drawn(device, dtype):
    if device == "cpu":
        pytest.skip("torch draws them")
    held = torch.full((2, 50_004), 9.0, dtype=dtype, device=device)
    for _ in range(2):
        writer = open_writer(held.device)
        writer.draw_rows(held[:, :50_000], range(2), np.array([KEY, 5], np.uint64), 0.5)
        writer.finish()
        first = held.clone()
    assert torch.equal(first, held)
    drawn = held[:, :50_000].double()
    assert (held[:, 50_000:] == 9).all()
    assert (drawn.mean(dim=1).abs() < 0.02).all()
    assert ((drawn.std(dim=1) - 0.5).abs() < 0.01).all()
    assert ((drawn.abs() < 0.5).double().mean(dim=1) - 0.683).abs().max() < 0.02
    assert abs(float(torch.corrcoef(drawn)[0, 1])) < 0.03


@pytest.mark.parametrize("count", [1, 7, 4_095, (1 << 22) + 3])
def test_copies_moves_and_fills_are_those_of_a_cpu(device, count):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8).view(1, -1)
    made = []
    for one in ("cpu", device):
        contents = DealtContents([Contents([value.to(one).mT], [VariedInput("x", "rolled")], 3, 1)])
        held = torch.zeros(3, count + -count % 8, dtype=torch.uint8, device=one)
        writer = open_writer(held.device)
        writer.fill_rows(held[:, :count], [0, 2], 0xF1E2D3C4B5A69788)
        writer.finish()
        made.append([values[0].cpu() for values in contents.make_all([0, 1, 2])] + [held.cpu()])
    assert all(torch.equal(one, other) for one, other in zip(*made, strict=True))
    assert torch.equal(made[1][1], value.mT)


@pytest.mark.parametrize("count", [1_001, (1 << 23) + 3])
def test_bits_are_flipped_once_the_bytes_are_written(device, count):
    value = torch.randint(0, 256, (count,), dtype=torch.uint8, device=device).view(torch.int8)
    contents = DealtContents([Contents([value], [VariedInput("x", "rolled", is_perturbed=True)], 3, -1)])
    (one,), (other,), (again,) = contents.make_all([5, 6, 5])
    assert torch.equal(one, again)
    assert (one != other).double().mean() > 0.9
    assert torch.equal(one.abs().sort().values, value.abs().sort().values)
