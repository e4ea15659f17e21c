"""How bits of stored narrow numbers are flipped: they stay numbers of the range that was seen, zeros stay zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from flashinfer_bench.bench.evaluators.compare.packed import unpack
from flashinfer_bench.bench.evaluators.inputs.contents import Contents, VariedInput, find_varied
from flashinfer_bench.bench.evaluators.inputs.nudges import (
    BINADE,
    CHANGED_TOGETHER,
    AnyBits,
    NarrowFloats,
    NarrowIntegers,
    find_nudge,
)
from flashinfer_bench.bench.evaluators.inputs.writer import FLIPPED_TOGETHER, TorchWriter
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
FLOATS8 = list(BINADE)
FLOAT4 = torch.float4_e2m1fn_x2
EVERY_BYTE = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(64)


def values_of(held):
    return unpack(held.view(-1)) if held.dtype is FLOAT4 else held.view(-1).double()


def flip(value, key=5):
    """Return a tensor with bits flipped as those of a stored input are."""
    made, nudge = value.clone(), find_nudge(value)
    if nudge is not None:
        TorchWriter().flip_rows([made], np.array([key], np.uint64), nudge)
    return made


def flip_often(value, count=24):
    return torch.stack([values_of(flip(value, key)) for key in range(count)])


@pytest.mark.parametrize("dtype", FLOATS8)
def test_of_all_numbers_of_a_format_the_bits_that_may_be_are_flipped(dtype):
    value = EVERY_BYTE.view(dtype)
    before, made = values_of(value), flip_often(value)
    odd = ~before.isfinite()
    assert torch.equal(flip(value).view(torch.uint8)[odd], EVERY_BYTE[odd])
    assert bool(((made == 0) == (before == 0)).all())
    assert bool(made[:, ~odd].isfinite().all())
    ratio = made[:, ~odd & (before != 0)].abs() / before[~odd & (before != 0)].abs()
    assert 0.49 < ratio.min() < 0.9
    assert 1.1 < ratio.max() <= 2  # the smallest numbers differ by as much as they are
    found = [len(set(column.tolist())) for column in made[:, :256].nan_to_num(nan=3.0).T]
    assert found.count(4) > 200  # either sign, and either lowest bit


def test_packed_floats_keep_zeros_and_take_four_values():
    value = EVERY_BYTE.view(FLOAT4)
    before, made = values_of(value), flip_often(value)
    assert bool(((made == 0) == (before == 0)).all())
    for one, column in zip(before[:512].tolist(), made[:, :512].T, strict=True):
        pair = {0.0: {0.0}, 0.5: {0.5}, 1.0: {1.0, 1.5}, 1.5: {1.0, 1.5}, 2.0: {2.0, 3.0}, 3.0: {2.0, 3.0}}
        wanted = pair.get(abs(one), {4.0, 6.0})
        assert set(column.abs().tolist()) == wanted
        assert set(column.sign().tolist()) == (
            {0.0} if one == 0 else {one / abs(one)} if one in (0.5, -0.5) else {-1.0, 1.0}
        )


@pytest.mark.parametrize("dtype", [*FLOATS8, torch.int8])
def test_no_number_is_larger_than_those_seen(dtype):
    torch.manual_seed(0)
    for size in (0.3, 7.0, 100.0):
        value = (torch.randn(5_000) * size).clamp(-128, 127).to(dtype)
        made, before = flip_often(value), values_of(value)
        assert made.max() <= before.max()
        assert made.min() >= before.min() or made.min() >= -before.max()
        if find_nudge(value) is not None:
            share = (made != before).double().mean(0)
            assert 0.2 < share.mean() < 0.8


@pytest.mark.parametrize("dtype", FLOATS8)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_numbers_of_one_sign_keep_it(dtype, sign):
    value = (torch.rand(4_000).add(0.01) * sign).to(dtype)
    value[17] = -0.03 * sign  # a number of the other sign is no sign that it may be any
    made, before = flip_often(value), values_of(value)
    assert torch.equal(made.sign(), before.sign().expand_as(made))
    assert made.abs().max() <= before.abs().max()
    assert not torch.equal(made[0], before)


def test_of_whole_numbers_the_sign_changes_where_both_reach_far():
    value = torch.arange(-20, 13, dtype=torch.int8).repeat(50)
    made, before = flip_often(value), values_of(value)
    assert find_nudge(value) == NarrowIntegers(tuple(range(1, 13)))
    assert torch.equal(made.abs(), before.abs().expand_as(made))
    assert bool((made[:, before < -12] == before[before < -12]).all())
    assert bool(((made < 0).any(0) == (made > 0).any(0))[(before.abs() <= 12) & (before != 0)].all())


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(100, dtype=torch.int8),
        torch.tensor([-1, 0, 1, 2, 77], dtype=torch.int8),
        torch.tensor([*range(10), -100], dtype=torch.int8),
        torch.zeros(9, dtype=torch.int8),
        torch.empty(0, dtype=torch.int8),
        torch.empty(0).to(torch.float8_e4m3fn),
        torch.arange(256, dtype=torch.int16).to(torch.uint8).view(torch.float8_e8m0fnu),
        torch.arange(256, dtype=torch.int16).to(torch.uint8),
    ],
    ids=["positive", "indices", "labels", "zeros", "empty", "empty float8", "exponents", "bytes"],
)
def test_other_bytes_stay(value):
    assert find_nudge(value) is None


def test_the_least_of_whole_numbers_has_no_other_sign():
    value = torch.tensor([-128, -127, 127, 5], dtype=torch.int8).repeat(64)
    made = flip_often(value)
    assert bool((made[:, 0] == -128).all())
    assert {abs(one) for one in made[:, 1].tolist()} == {127.0}


def test_a_whole_number_becomes_none_that_was_not_there():
    digits = torch.arange(3)
    packed = (digits[:, None, None, None] + 4 * digits[:, None, None] + 16 * digits[:, None] + 64 * digits).view(-1)
    value = packed.to(torch.uint8).view(torch.int8).repeat(9)  # bytes of four codes of 0 to 2 each
    made = flip_often(value)
    assert set(made.unique().tolist()) <= set(value.tolist())
    assert not torch.equal(made[0], values_of(value))


def test_rows_of_a_matrix_are_flipped_by_other_patterns():
    value = torch.ones(256, 4096, dtype=torch.int8)
    value[0] = torch.tensor([4, -4, 1, -1]).repeat(1024)
    made = flip(value)
    assert len(made[1:].unique(dim=0)) == 255


def test_zeros_infinities_and_nan_alone_stay():
    value = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan] * 9).to(torch.float8_e5m2)
    assert torch.equal(flip(value).view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize("count", [1, 7, FLIPPED_TOGETHER + 3, CHANGED_TOGETHER + FLIPPED_TOGETHER + 5])
def test_all_parts_of_a_tensor_are_changed(count):
    value = torch.randn(count).to(torch.float8_e4m3fn)
    made = flip(value).view(torch.uint8)
    assert torch.equal(made & 0x7E, value.view(torch.uint8) & 0x7E)
    for part, was in zip(made.split(FLIPPED_TOGETHER), value.view(torch.uint8).split(FLIPPED_TOGETHER), strict=True):
        assert len(part) < 100 or 0.7 < (part != was).double().mean() < 0.8
    assert torch.equal(made, flip(value).view(torch.uint8))


def test_any_bits_are_those_that_were_told():
    held, pattern = torch.zeros(4, 8, dtype=torch.uint8), torch.full((8,), 0xFF, dtype=torch.uint8)
    AnyBits(0x81).change(held, pattern)
    assert held.unique().tolist() == [0x81]


def test_one_side_that_reaches_further_keeps_its_largest_numbers():
    value = torch.tensor([1.0, -1.75, 0.5, 0.0]).to(torch.float8_e4m3fn)
    assert find_nudge(value) == NarrowFloats(8, 0x38, has_both_signs=True)
    assert bool((flip_often(value)[:, 1] == -1.75).all())


def find_way_of(dtype, *, name="w", source="safetensors", constraints=(), op_type="test"):
    """Return how a stored or random input of this dtype differs from call to call."""
    definition = make_definition(
        op_type=op_type, axes={"n": None}, inputs={name: f"{dtype}[n]"}, outputs={"y": "float32"},
        constraints=list(constraints), reference="def run(): 1",
    )  # fmt: skip
    stored = {"type": "safetensors", "path": "x.safetensors", "tensor_key": name}
    inputs = {name: stored if source == "safetensors" else {"type": "random"}}
    (one,) = find_varied(definition, make_workload(axes={"n": 4}, inputs=inputs), CPU)
    return one


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float4_e2m1", "float4_e2m1fn_x2", "int8"])
def test_stored_quantised_numbers_are_changed(dtype):
    assert find_way_of(dtype).is_nudged
    assert not find_way_of(dtype, source="random").is_nudged  # any bits of them are flipped


@pytest.mark.parametrize(
    ("dtype", "told"),
    [
        ("float8_e8m0fnu", {}),
        ("uint8", {}),
        ("float16", {}),
        ("float8_e4m3fn", {"name": "w_scale"}),
        ("float8_e4m3fn", {"name": "top_p"}),
        ("int8", {"name": "block_table"}),
        ("int8", {"name": "expert_ids"}),
        ("int8", {"name": "w_scales"}),
        ("int8", {"name": "attn_mask"}),
        ("float8_e4m3fn", {"constraints": ["w.max() <= 1"]}),
        ("int8", {"constraints": ["n > 1", "w[-1] == n"]}),
        ("float8_e4m3fn", {"op_type": "gdn", "name": "k"}),
    ],
    ids=lambda told: told if isinstance(told, str) else "-".join(map(str, told)) or "plain",
)
def test_scales_bytes_indices_and_what_a_constraint_asks_for_stay(dtype, told):
    assert not find_way_of(dtype, **told).is_nudged


def test_a_constraint_on_a_shape_asks_for_no_values():
    assert find_way_of("float8_e4m3fn", constraints=["w.shape[0] == n"]).is_nudged


@pytest.mark.parametrize("dtype", [*FLOATS8, FLOAT4, torch.int8])
def test_a_stretch_of_a_stored_input_is_none_of_the_base_even_without_the_bits_that_stay(dtype):
    torch.manual_seed(0)
    base = torch.randint(-120, 120, (4, 64), dtype=torch.int8)
    value = base.view(FLOAT4) if dtype is FLOAT4 else base.to(dtype)
    contents = Contents([value], [VariedInput("w", "rolled", is_nudged=True)], 7, 3)
    flat = values_of(value)
    for number in (0, 1, 2):
        made = values_of(contents.make(number)[0])
        rolled = [flat.roll(by) for by in range(len(flat))]
        assert max(float((made == one).double().mean()) for one in rolled) < 0.8
        nearest = min(float((made.abs() - one.abs()).abs().max()) for one in rolled)
        assert nearest < 0.4 * flat.abs().max()
    assert torch.equal(values_of(contents.make(3)[0]).nan_to_num(), flat.nan_to_num())


def test_a_stored_constant_differs_from_call_to_call():
    value = torch.full((64,), 1.5).to(torch.float8_e4m3fn)
    value[3] = -1.625
    assert Contents([value], [VariedInput("w", "rolled", is_nudged=True)], 7, 3).differs


def test_the_base_is_never_written():
    value = torch.randn(64).to(torch.float8_e4m3fn)
    before = value.view(torch.uint8).clone()
    Contents([value], [VariedInput("w", "rolled", is_nudged=True)], 7, 3).make_all(range(4))
    assert torch.equal(value.view(torch.uint8), before)
