"""Norms of errors: by row, in all, in every dtype, and what says nothing."""

from __future__ import annotations

import math

import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.packed import FLOAT4_PACKED
from flashinfer_bench.bench.evaluators.integrity import norms as module
from flashinfer_bench.bench.evaluators.integrity.norms import BROUGHT_ROWS, measure_norms, says_something
from tests.bench.evaluators.pretend_gpu import PretendGpu

pytestmark = pytest.mark.cpu


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float8_e4m3fn])
def test_zeros_are_off_by_the_whole_output_and_its_own_copy_by_nothing(dtype):
    expected = (made(8, 32) * 1e-2).to(dtype)
    assert measure_norms(expected, torch.zeros_like(expected)).share() == pytest.approx(1.0)
    assert measure_norms(expected, expected.clone()).share() == 0.0


def test_a_wrong_row_shows_in_its_own_share_and_in_that_of_all():
    expected = made(100, 64)
    got = expected.clone()
    got[7] = 0
    norms = measure_norms(expected, got)
    assert norms.row_shares[7] == pytest.approx(1.0)
    assert norms.row_shares.sum() == pytest.approx(1.0)
    assert norms.share() == pytest.approx(0.1, rel=0.3)
    assert norms.share(torch.arange(100) == 7) == 0.0


def test_chunks_change_nothing(monkeypatch):
    expected, got = made(9, 100), made(9, 100, seed=1)
    whole = measure_norms(expected, got)
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", {"cpu": 32})
    parts = measure_norms(expected, got)
    assert torch.allclose(whole.error, parts.error)
    assert torch.allclose(whole.expected, parts.expected)


def test_what_is_not_finite_on_both_sides_is_left_out_and_on_one_side_it_is_infinite():
    expected = made(4, 32)
    expected[1, 3] = -math.inf
    norms = measure_norms(expected, expected.clone())
    assert norms.share() == 0.0
    got = expected.clone()
    got[2, 5] = math.nan
    assert torch.isinf(measure_norms(expected, got).row_shares).tolist() == [False, False, True, False]


def test_a_row_that_cancels_out_is_held_against_a_share_of_the_usual_one():
    expected = made(64, 32)
    expected[5] *= 1e-6
    got = expected + 1e-3 * made(64, 32, seed=1)
    assert measure_norms(expected, got).row_shares[5] < 0.02


@pytest.mark.parametrize(
    ("shape", "rows"), [((8, 32), 8), ((6, 4, 4), 6), ((64,), 1), ((3, 2, 128), 6), ((4, 1), None), ((0, 32), 0)]
)
def test_short_rows_are_taken_together(shape, rows):
    norms = measure_norms(torch.ones(shape), torch.ones(shape))
    assert (None if norms is None else len(norms.error)) == rows


@pytest.mark.parametrize("shape", [(), (1,), (4, 1), (3, 5)])
def test_an_output_smaller_than_a_row_is_one_row_where_it_is_taken(shape):
    expected = torch.full(shape, 2.0)
    norms = measure_norms(expected, expected * 1.5, takes_small=True)
    assert norms.is_small
    assert norms.row_shares.tolist() == pytest.approx([0.5])
    assert measure_norms(expected, expected) is None
    assert not measure_norms(torch.ones(64), torch.ones(64), takes_small=True).is_small
    assert measure_norms(torch.ones(0), torch.ones(0), takes_small=True) is None


def test_what_says_something_has_a_float_that_is_finite_and_not_zero():
    assert says_something(torch.tensor(1e-30))
    assert says_something(torch.tensor([0.0, 1.0]).to(torch.float8_e4m3fn))
    zeros = [torch.zeros(4), torch.zeros(0), torch.full((2,), -math.inf), torch.ones(4, dtype=torch.int32)]
    assert not any(map(says_something, zeros))
    assert not says_something(torch.ones(4).to(torch.float8_e8m0fnu))


def test_outputs_without_a_size_say_nothing():
    assert measure_norms(torch.ones(64, dtype=torch.int32), torch.ones(64, dtype=torch.int32)) is None
    scales = torch.ones(64).to(torch.float8_e8m0fnu)
    assert measure_norms(scales, scales) is None
    assert not measure_norms(torch.zeros(64), torch.ones(64)).says_something


@pytest.mark.skipif(FLOAT4_PACKED is None, reason="this torch has no 4-bit floats")
def test_packed_floats_are_unpacked():
    codes = torch.full((4, 16), 0x22, dtype=torch.uint8)  # 1.0 twice
    got = codes.clone()
    got[1] = 0
    norms = measure_norms(codes.view(FLOAT4_PACKED), got.view(FLOAT4_PACKED))
    assert norms.expected.tolist() == pytest.approx([32.0] * 4)
    assert norms.row_shares.tolist() == pytest.approx([0.0, 1.0, 0.0, 0.0])


def ask(norms):
    """Ask what a verdict asks of an output that is right."""
    return norms.says_something, norms.share(), norms.figures.worst_row


@pytest.mark.parametrize(("shape", "most"), [((64, 1024), 12), ((2 * BROUGHT_ROWS, 16), 28)], ids=["brought", "left"])
def test_the_norms_of_a_gpu_cost_one_wait_and_few_operations(shape, most):
    expected, got = made(*shape).bfloat16(), (made(*shape) * 1.01).bfloat16()
    with PretendGpu() as gpu:
        found = ask(measure_norms(gpu.put(expected), gpu.put(got)))
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= most, gpu.operations
    assert found == pytest.approx(ask(measure_norms(expected, got)))


@pytest.mark.parametrize("rows", [64, 2 * BROUGHT_ROWS])
def test_what_is_not_finite_costs_a_gpu_one_wait_more(rows):
    expected = made(rows, 16 if rows > 64 else 1024)
    expected[3, 3] = -math.inf
    with PretendGpu() as gpu:
        assert ask(measure_norms(gpu.put(expected), gpu.put(expected.clone()))) == (True, 0.0, 0.0)
    assert len(gpu.waits) == 2, gpu.waits


@pytest.mark.parametrize("shape", [(40, 100), (3, 7, 16), (1, 5000)])
def test_figures_are_those_of_the_rows(monkeypatch, shape):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", {"cpu": 1000})
    expected, got = made(*shape), made(*shape, seed=1)
    norms = measure_norms(expected, got)
    wanted = expected.double().square().reshape(-1, shape[-1]).sum(dim=1)
    error = (got - expected).double().square().reshape(-1, shape[-1]).sum(dim=1)
    shares = error.sqrt() / torch.maximum(wanted.sqrt(), 0.1 * wanted.mean().sqrt())
    assert norms.share() == pytest.approx(float((error.sum() / wanted.sum()).sqrt()))
    assert norms.figures.worst_row == pytest.approx(float(shares.max()))


def test_a_packed_output_without_rows_has_no_norms_to_speak_of():
    empty = torch.zeros((0, 16), dtype=torch.uint8).view(FLOAT4_PACKED)
    norms = measure_norms(empty, empty)
    assert norms is None or norms.share() == 0.0
