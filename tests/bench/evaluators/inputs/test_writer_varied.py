"""Stored inputs and numbers of a range are shuffled in rows for each call, and multiplied by factors drawn anew."""

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.inputs import contents as contents_module
from flashinfer_bench.bench.evaluators.inputs import shuffles as shuffles_module
from flashinfer_bench.bench.evaluators.inputs import writer as writer_module
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, choose_columns
from flashinfer_bench.bench.evaluators.inputs.shuffles import BLOCK, LARGEST_FACTOR, LINE
from flashinfer_bench.bench.evaluators.inputs.writer import (
    MULTIPLIED,
    Changes,
    TorchWriter,
    looks_varied,
    vary_example,
)

pytestmark = pytest.mark.cpu
CPU = torch.device("cpu")


def vary(value, by=0, key=5, columns=None, *, is_negated=False):
    made = torch.full_like(value, 9.0, memory_format=torch.contiguous_format)
    told = Changes(np.array([by], np.uint64), np.array([key], np.uint64), np.array([is_negated]), columns or len(value))
    TorchWriter().vary_rows(value, [made], told)
    return made


def place_of(value, *arguments, **told):
    """Return at which place each element of a flat tensor stood: each bit of it tells whether it is a one or a two."""
    places, factors = torch.arange(value), vary(torch.ones(value, dtype=torch.float64), *arguments, **told)
    bits = [
        vary((places >> bit & 1).double() + 1, *arguments, **told) / factors > 1.5
        for bit in range(int(value).bit_length())
    ]
    return sum(found.long() << bit for bit, found in enumerate(bits)), factors


@pytest.mark.parametrize("dtype", [*MULTIPLIED])
def test_torch_varies_as_the_kernel_has_to(dtype):
    assert looks_varied(vary_example(dtype, TorchWriter(), CPU))


@pytest.mark.parametrize("count", [1, 2, 63, LINE, LINE + 1, 2 * LINE + BLOCK + 3, 5 * LINE - 1, 70_001, 1 << 17])
def test_each_element_of_a_row_comes_once_however_long_it_is(count, monkeypatch):
    monkeypatch.setattr(shuffles_module, "VARIED_TOGETHER", 3 * LINE)
    places, factors = place_of(count, columns=count)
    assert torch.equal(places.sort().values, torch.arange(count))
    assert 1 / LARGEST_FACTOR - 1e-6 <= factors.min() <= factors.max() <= LARGEST_FACTOR + 1e-6
    if count > 1_000:
        assert (places == torch.arange(count)).double().mean() < 0.01
        assert (places.diff().abs() == 1).double().mean() < 0.01
        assert len(factors.unique()) > min(count, 50_000) // 2
    if count > 10 * LINE:  # no part of a row tells what part of the base it is made of
        means = [float(part.double().mean()) / count for part in places.split(count // 8)[:8]]
        assert 0.4 < min(means) < max(means) < 0.6


def test_rows_of_a_tensor_have_orders_of_their_own_and_the_last_may_be_shorter():
    places, _ = place_of(1_037, 0, 7, 100)
    rows = [row - begin for row, begin in zip(places.split(100), range(0, 1_037, 100), strict=True)]
    for row in rows:
        assert torch.equal(row.sort().values, torch.arange(len(row)))
    orders = torch.stack(rows[:10])
    assert (orders[:, None] == orders).double().mean((0, 1, 2)) < 0.1 + 0.05  # each is itself, one in ten


def test_a_tensor_is_moved_along_before_and_its_sign_turned():
    still, factors = place_of(1_000, 0, 7, 100)
    moved, _ = place_of(1_000, 123, 7, 100)
    assert torch.equal(moved, (still + 123) % 1_000)
    ones = torch.ones(1_000, dtype=torch.float64)
    assert torch.equal(vary(ones, 0, 7, 100, is_negated=True), -factors)


@pytest.mark.parametrize("columns", [100, 50_000])
def test_many_are_varied_in_threads_and_get_the_same_values(columns, monkeypatch):
    monkeypatch.setattr(shuffles_module, "VARIED_TOGETHER", 2 * LINE)
    value, threads = torch.randn(120_000), torch.get_num_threads()
    together = vary(value, columns=columns)
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(writer_module, "FEW_PIECES", 10**6)
    assert torch.equal(together, vary(value, columns=columns))
    assert not torch.equal(together, vary(value, key=6, columns=columns))


@pytest.mark.parametrize(
    ("shape", "columns"),
    [
        ((), 1),
        ((5,), 5),
        ((3, 2), 6),
        ((2_000, 4), 4_000),
        ((1_001, 9), 3_003),
        ((7, 64), 64),
        ((2, 3, 4_096), 4_096),
        ((100_000,), 100_000),
    ],
)
def test_rows_lie_along_the_last_axis_and_very_short_ones_are_taken_together(shape, columns):
    assert choose_columns(torch.empty(shape)) == columns


def test_very_long_rows_are_divided(monkeypatch):
    monkeypatch.setattr(contents_module, "LONGEST_ROW", 1_000)
    assert choose_columns(torch.empty(2, 2_500)) == 1_000
    assert choose_columns(torch.empty(1_001)) == 501


def stored(value):
    return Contents([value], [VariedInput("x", "scaled")], seed=3, base_number=0)


def test_who_knows_base_and_factors_bounds_does_not_find_the_largest_of_a_row_where_they_were():
    base = torch.randn(4, 4_096)
    places = torch.stack([stored(base).make(number)[0].abs().argmax(-1) for number in range(1, 9)])
    assert len(places.unique()) > 24


def test_sums_over_rows_differ_from_those_of_the_base_wherever_it_was_moved():
    """Factors of elements alone would even out: the sums would be the base's, and need no look at the elements."""
    base = torch.rand(4, 1 << 16) + 1
    sums = torch.stack([stored(base).make(number)[0].log().mean(-1) for number in range(1, 9)])
    assert (sums - base.log().mean()).std() > 0.03
    assert (sums.diff(dim=-1).abs() > 0.01).double().mean() > 0.7


def test_a_value_that_no_factor_changes_is_known():
    for value, differs in ((torch.ones(3), True), (torch.zeros(3), False), (torch.tensor([float("nan"), 0.0]), False)):
        assert stored(value).differs is differs
