"""What the inputs of single calls hold: content of their own, from a secret, and always the same for a number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.packed import unpack
from flashinfer_bench.bench.evaluators.inputs.contents import (
    Contents,
    DealtContents,
    find_nudge,
    find_varied,
)
from flashinfer_bench.bench.evaluators.inputs.rules import VariedInput
from flashinfer_bench.bench.evaluators.inputs.writer import Writer
from tests.bench.evaluators.inputs.making import CPU, define, make
from tests.kit.make import make_workload

pytestmark = pytest.mark.cpu

BASE_NUMBER = 3
NUMBERS = [0, 1, 2, 4, 5, 6, 7, 8]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1", "int8", "uint8"]
STORED = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
FLOAT4 = torch.float4_e2m1fn_x2


def open_contents(inputs, *, op_type="test", seed=7, **axes):
    """Return the contents of random inputs."""
    definition = define(inputs, op_type=op_type)
    varied = find_varied(definition, make_workload(axes=axes, inputs={}), CPU)
    return Contents([*make(definition, **axes).values()], varied, seed, BASE_NUMBER)


def open_one(value, way="scaled", **varied):
    return Contents([value], [VariedInput("x", way, **varied)], 7, BASE_NUMBER)


def make_each(contents):
    return [values[0] for values in contents.make_all(NUMBERS)]


def bytes_of(*values):
    return b"".join(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in values)


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_a_number_has_one_content_and_shares_no_row_with_the_base(dtype):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64)
    base, made = bytes_of(contents.base[0]), make_each(contents)
    assert [bytes_of(one) for one in made] == [bytes_of(contents.make(number)[0]) for number in NUMBERS]
    rows = {bytes_of(row) for one in (contents.base[0], *made) for row in one.view(torch.uint8)}
    assert len(rows) == 4 * (len(made) + 1)
    assert bytes_of(contents.make(BASE_NUMBER)[0]) == base == bytes_of(contents.base[0])  # it is never written
    assert bytes_of(open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64, seed=8).make(0)[0]) != bytes_of(made[0])


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_random_normal_inputs_are_drawn_anew(dtype):
    base = torch.randn(4096).to(getattr(torch, dtype))
    made = [one.float() for one in make_each(open_one(base, deviation=3.0))]
    for one, other in zip(made, [*made[1:], base.float()], strict=True):
        assert one.std() == pytest.approx(3.0, rel=0.1)
        spectra = torch.fft.rfft(one.sign()) * torch.fft.rfft(other.sign()).conj()
        assert torch.fft.irfft(spectra).abs().max() / 4096 < 0.2  # 1 if one is the other moved along


@pytest.mark.parametrize("shape", [(256,), (3, 2), (2_000, 4), (3, 1_000), (70_001,)])
def test_other_floats_are_shuffled_and_each_is_multiplied(shape):
    """Of inputs that tell bit by bit where their elements stood."""
    count = math.prod(shape)
    places = torch.arange(count)
    planes = [torch.ones(count)] + [(places >> bit & 1) + 1.0 for bit in range(count.bit_length())]
    factors, *made = (open_one(one.view(shape).double()).make(1)[0].view(-1) for one in planes)
    sources = sum((one / factors > 1.5).long() << bit for bit, one in enumerate(made))
    assert torch.equal(sources.sort().values, places)
    assert 0.79 < factors.min() <= factors.max() < 1.26
    if count > 64:
        assert len(factors.unique()) > count // 2
        assert (sources.diff().abs() == 1).double().mean() < 0.1
        assert (sources == places).double().mean() < 0.1


def test_only_a_finite_input_of_both_signs_is_negated_and_only_in_some_calls():
    for value, counts in (
        (torch.randn(255), range(4, 29)),
        (torch.rand(255), [0]),
        (torch.tensor([-1, 2, math.inf]), [0]),
    ):
        largest = value.abs().argmax()
        made = open_one(value).make_all(range(10, 42))
        assert sum(bool(one[one.abs().argmax()] * value[largest] < 0) for (one,) in made) in counts


FLIPPED = [
    *(("x", f"{dtype}[n, m]", 0xFF) for dtype in ("float4_e2m1", "int8", "uint8")),
    *(("x", f"{dtype}[n, m]", 0x80) for dtype in ("float8_e4m3fn", "float8_e5m2")),
    *(("mask", "bool[n, m]", 0x01), ("mask", "bool[63]", 0)),
    *(("scale", "float8_e4m3fn[n, m]", 0), ("x", "float8_e8m0fnu[n, m]", 0)),
]


@pytest.mark.parametrize(("name", "spec", "free"), FLIPPED)
def test_random_bytes_are_moved_along_and_bits_flipped_that_may_be(name, spec, free):
    contents = open_contents({name: spec}, n=4, m=64)
    base = contents.base[0].view(torch.uint8).view(-1)
    moved = torch.stack([base.roll(-by) for by in range(1, len(base))])
    for one in make_each(contents):
        changed = moved ^ one.view(torch.uint8).view(-1)
        changed = changed[((changed & ~free & 0xFF) == 0).all(1)]
        least = float((changed != 0).double().mean(1).min())
        assert least > 0.9 if free == 0xFF else (least > 0.2) is (free > 0)


def test_structure_and_numbers_stay_as_they_are_and_probabilities_sum_to_one():
    inputs = {"kv_indptr": "int32[n]", "kv_indices": "int32[p]", "eps": "float32", "x": "float32[n]"}
    contents = open_contents(inputs, n=9, p=32)
    for *structure, eps, x in contents.make_all(NUMBERS):
        assert bytes_of(*structure) == bytes_of(*contents.base[:2])
        assert (eps, torch.equal(x, contents.base[-1])) == (contents.base[2], False)
    for made in make_each(open_contents({"probs": "float32[n, v]"}, op_type="sampling", n=4, v=512)):
        assert made.sum(dim=-1).tolist() == pytest.approx([1] * 4, abs=1e-5)


@pytest.mark.parametrize("power", [1, 2])
def test_stored_rows_with_a_form_keep_their_sum_or_length_and_nothing_else(power):
    base = torch.rand(4, 512) - (power - 1) / 2
    for made in make_each(open_one(base, "redrawn")):
        assert base.norm(power, dim=-1).tolist() == pytest.approx(made.norm(power, dim=-1).tolist(), rel=1e-5)
        assert len((made.sort().values / base.sort().values).unique()) > 100  # one temperature or scale is not enough
    odd = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.25, 0.25], [1.0, 2.0, math.inf]])
    (made,) = open_one(odd, "redrawn").make(1)
    assert [made[0].tolist(), float(made[1].sum()), int(made[2].isfinite().sum())] == [[0, 0, 0], pytest.approx(1), 2]


DIFFERING = [(torch.tensor(2.0), "scaled"), (torch.arange(8.0), "rolled"), (torch.full((4, 2), 0.5), "redrawn")]
SAME = [
    *((torch.zeros(8), "scaled"), (torch.ones(8), "rolled"), (torch.ones(4, 1), "redrawn"), (torch.arange(8), "fixed")),
    *((torch.empty(0), "scaled"), (None, "scaled")),
]


def test_it_is_known_if_nothing_can_differ():
    assert [open_one(*one).differs for one in (*DIFFERING, *SAME)] == [True] * 3 + [False] * 6
    for value, way in SAME:
        both = [VariedInput("x", way), VariedInput("y", "scaled")]
        assert Contents([value, torch.ones(3)], both, 7, 0).differs


def test_calls_get_the_sets_of_inputs_in_turn_and_no_two_the_same():
    bases = [torch.full((64,), 10.0**at) for at in range(3)]
    dealt = DealtContents([Contents([base], [VariedInput("x", "scaled")], at, 1) for at, base in enumerate(bases)])
    made = [values[0] for values in dealt.make_all(range(12))]
    assert [dealt.set_of(number) for number in range(12)] == [0, 1, 2] * 4
    assert [round(float(one.abs().log10().mean())) for one in made] == [0, 1, 2] * 4
    assert [number for number in range(12) if dealt.is_base(number)] == [3, 4, 5]
    assert all(map(torch.equal, made[3:6], bases))
    assert len(set(map(bytes_of, made))) == 12


VARIED = [  # name, dtype, where it comes from, is nudged, deviation
    *(("x", dtype, {}, True, None) for dtype in ("float8_e4m3fn", "float4_e2m1fn_x2", "int8")),
    ("x", "float8_e4m3fn", {"constraints": ["x.shape[0] == n", "len(x) == n"]}, True, None),
    ("x", "float8_e4m3fn", {"sources": {}}, False, None),  # any of its bits are flipped
    *(("x", dtype, {}, False, None) for dtype in ("float8_e8m0fnu", "uint8", "float16")),
    *((name, "int8", {}, False, None) for name in ("block_table", "w_scales")),
    ("x", "float8_e4m3fn", {"constraints": ["x.max() <= 1"]}, False, None),
    ("k", "float8_e4m3fn", {"op_type": "gdn"}, False, None),
    ("x", "bfloat16", {"sources": {}}, False, 1.0),
    ("logits", "float32", {"sources": {}, "op_type": "sampling"}, False, 3.0),
    ("gemm1_weights", "bfloat16", {"sources": {}, "op_type": "moe"}, False, 1 / 64),
    ("x_scale", "float32", {"sources": {}}, False, None),
]


@pytest.mark.parametrize(("name", "dtype", "told", "is_nudged", "deviation"), VARIED)
def test_quantised_numbers_of_files_are_changed_a_little_and_random_normal_ones_drawn(
    name, dtype, told, is_nudged, deviation
):
    told = {"sources": {name: STORED}, **told}
    workload = make_workload(axes={"n": 4096}, inputs=told.pop("sources"))
    definition = define({name: f"{dtype}[n]"}, **told)
    (varied,) = find_varied(definition, workload, CPU)
    assert (varied.is_nudged, varied.deviation) == (is_nudged, deviation)
    if deviation is not None:
        (made,) = make(definition, n=4096).values()
        assert made.float().std() == pytest.approx(deviation, rel=0.05)


EVERY_BYTE = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(16)
NORMAL = torch.randn(5_000, generator=torch.Generator().manual_seed(0)) * 7
CODES = torch.cartesian_prod(*[torch.arange(3)] * 4) @ torch.tensor([1, 4, 16, 64])  # four codes of 0 to 2 in a byte


@pytest.mark.parametrize(
    ("value", "least"),
    [
        *((EVERY_BYTE.view(dtype), 0.3) for dtype in (torch.float8_e4m3fn, torch.float8_e5m2, FLOAT4)),
        *((NORMAL.to(dtype), 0.3) for dtype in (torch.float8_e4m3fn, torch.int8)),
        (NORMAL.abs().to(torch.float8_e5m2), 0.3),
        (CODES.to(torch.uint8).view(torch.int8).repeat(9), 0.01),
        (torch.tensor([-1, 0, 1, 2, 77], dtype=torch.int8), None),  # indices, -1 for none
        (torch.tensor([*range(10), -100], dtype=torch.int8), None),  # labels
        (torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]).to(torch.float8_e5m2), None),
    ],
)
def test_quantised_numbers_become_others_that_are_there_and_special_ones_stay(value, least):
    flips = find_nudge(value)
    assert (flips is None) is (least is None)
    if flips is not None:
        made, writer = value.expand(24, -1).clone(), Writer(CPU)
        writer.flip_rows(made, range(24), np.arange(24, dtype=np.uint64), flips)
        writer.finish()
        codes, before = made.view(torch.uint8), value.view(torch.uint8)
        assert {*codes.unique().tolist()} <= {*before.tolist()}
        assert least < (codes != before).double().mean() < 0.7
        numbers = (unpack(value) if value.dtype is FLOAT4 else value.double()).view(len(value), -1)
        is_special = (~numbers.isfinite() | (numbers == 0)).any(1)
        assert not (codes != before)[:, is_special].any()
