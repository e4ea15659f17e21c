"""Comparing at once finds what the chunks find, and costs a GPU's host few operations and one wait."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashinfer_bench.bench.evaluators.compare import chunks
from flashinfer_bench.bench.evaluators.compare.chunks import CHUNK_ELEMENTS, SMALL_ELEMENTS
from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.packed import FLOAT4_PACKED
from flashinfer_bench.bench.evaluators.compare.rule import WINDOW, Tolerance
from tests.bench.evaluators.pretend_gpu import PretendGpu

pytestmark = pytest.mark.cpu

TOLERANCES = [
    Tolerance(1e-2, 1e-2),
    Tolerance(0.0, 0.0),
    Tolerance(0.5, 0.0),
    Tolerance(1e-2, 1e-2, is_sum=True),
    Tolerance(1e-2, 1e-2, 0.9),
    Tolerance(1e-2, 1e-2, 0.5, ignores_shared_zeros=True),
    Tolerance(0.0, 1e-3, 0.9, max_absolute_error=0.5, is_sum=True),
]
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
WHOLE = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
ODD = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.009, -1.0, 3e38, -3e38, 6e4, 1e-40, 1e-38, 2.0])


def draw(kind, size, seed=0):
    generator = torch.Generator().manual_seed(seed)
    expected = torch.randn(size, generator=generator)
    got = expected + 0.003 * torch.randn(size, generator=generator)
    if kind == "equal":
        got = expected.clone()
    if kind == "some fail":
        got[::7] += 0.5
    if kind == "infinite alike":
        expected[5], got[5], expected[9], got[9] = -math.inf, -math.inf, math.nan, math.nan
    if kind == "one nan":
        got[size // 2] = math.nan
    if kind == "a stretch":
        got[size // 3 : size // 3 + 3 * WINDOW] = 0.25
    if kind == "zeros":
        expected, got = torch.zeros(size), torch.zeros(size)
    if kind == "odd":
        expected, got = (ODD[torch.randint(len(ODD), (size,), generator=generator)] for _ in range(2))
    return expected, got


KINDS = ["equal", "near", "some fail", "infinite alike", "one nan", "a stretch", "zeros", "odd"]


def convert(side, dtype):
    if dtype == "bool":
        return side > 0
    if dtype == "a byte of a bool":
        return (side.nan_to_num() > 0).to(torch.uint8) * (1 + (side.nan_to_num() > 1.5)).to(torch.uint8)
    if dtype == "packed":
        return (side.nan_to_num(0, 9, -9).clamp(-9, 9) * 14).to(torch.int8).view(FLOAT4_PACKED)
    if dtype == "e8m0":
        return (127 + side.nan_to_num(0, 9, -9).clamp(-9, 9)).to(torch.uint8).view(torch.float8_e8m0fnu)
    if dtype.is_floating_point:
        return side.to(dtype)
    return (side.nan_to_num(0, 99, -99).clamp(-99, 99) * 9).to(torch.int32).to(dtype)


def pair_of(dtype, kind, size, seed=0):
    expected, got = draw(kind, size, seed)
    if dtype == "a byte of a bool":
        return convert(expected, "bool"), convert(got, dtype)
    return convert(expected, dtype), convert(got, dtype)


DTYPES = [*FLOATS, *WHOLE, "bool", "a byte of a bool", "e8m0", *(["packed"] if FLOAT4_PACKED is not None else [])]


def compare_far(expected, got, tolerance):
    with PretendGpu() as gpu, pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "SMALL_ELEMENTS", 0)
        return compare(gpu.put(expected), gpu.put(got), tolerance)


@pytest.mark.parametrize("tolerance", TOLERANCES, ids=range(len(TOLERANCES)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_comparing_at_once_finds_what_the_chunks_find(monkeypatch, dtype, tolerance):
    for seed, kind in enumerate(KINDS):
        expected, got = pair_of(dtype, kind, 6 * WINDOW + 8, seed)
        wanted = repr(compare(expected, got, tolerance, chunk_elements=1 << 20))
        assert repr(compare(expected, got, tolerance)) == wanted, kind
        monkeypatch.setitem(CHUNK_ELEMENTS, "cuda", (3 * WINDOW, 1 << 22)[seed % 2])
        assert repr(compare_far(expected, got, tolerance)) == wanted, kind


values = st.sampled_from([0.0, -0.0, 1.0, 1.005, 1.5, -2.0, 100.0, 3e38, 1e-40, math.nan, math.inf, -math.inf])
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=200)


@given(pairs, st.sampled_from(TOLERANCES), st.sampled_from(FLOATS[:4]))
@settings(max_examples=100, deadline=None)
def test_comparing_at_once_finds_what_the_chunks_find_whatever_the_values(elements, tolerance, dtype):
    expected, got = (torch.tensor(side).to(dtype) for side in zip(*elements, strict=True))
    wanted = repr(compare(expected, got, tolerance, chunk_elements=1 << 20))
    assert repr(compare(expected, got, tolerance)) == wanted
    assert repr(compare_far(expected, got, tolerance)) == wanted


@pytest.mark.parametrize(
    ("dtype", "most"),
    [
        (torch.bfloat16, 28),
        (torch.float32, 26),
        (torch.float8_e4m3fn, 28),
        (torch.int32, 36),
        ("bool", 36),
        ("packed", 44),
    ],
    ids=str,
)
def test_a_gpu_compares_what_passes_in_one_wait_and_few_operations(dtype, most):
    expected, _ = pair_of(dtype, "equal", 1 << 16)
    assert expected.numel() > SMALL_ELEMENTS
    with PretendGpu() as gpu:
        found = compare(gpu.put(expected), gpu.put(expected.clone()), TOLERANCES[0])
    assert found.problem() is None
    assert len(gpu.waits) == 1, gpu.waits
    assert len(gpu.operations) <= most, gpu.operations


def test_so_it_does_by_a_ratio_and_in_several_chunks(monkeypatch):
    expected, got = draw("some fail", 1 << 17)
    monkeypatch.setitem(CHUNK_ELEMENTS, "cuda", 1 << 16)
    with PretendGpu() as gpu:
        found = compare(gpu.put(expected), gpu.put(got), Tolerance(1e-2, 1e-2, 0.5))
    assert found.problem() is None
    assert found.mismatched > 0
    assert len(gpu.waits) == 1, gpu.waits


@pytest.mark.parametrize("kind", ["some fail", "infinite alike", "one nan"])
def test_a_second_look_is_one_more_wait(kind):
    expected, got = draw(kind, 1 << 16)
    with PretendGpu() as gpu:
        compare(gpu.put(expected), gpu.put(got), TOLERANCES[0])
    assert len(gpu.waits) == 2, gpu.waits


def test_every_index_in_a_chunk_is_a_float32():
    assert all(size <= 1 << 24 for size in CHUNK_ELEMENTS.values())
