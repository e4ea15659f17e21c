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
    VariedInput,
    choose_columns,
    choose_moves,
    find_nudge,
    find_varied,
)
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.inputs.rules import FEW_BOOLS
from flashinfer_bench.bench.evaluators.inputs.writer import Writer
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
BASE_NUMBER = 3
NUMBERS = [0, 1, 2, 4, 5, 6, 7, 8]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1", "int8", "uint8"]
STORED = {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}
FLOAT4 = torch.float4_e2m1fn_x2


def find(inputs, *, op_type="test", sources=None, constraints=(), **axes):
    definition = make_definition(
        op_type=op_type,
        axes=dict.fromkeys(axes),
        inputs=inputs,
        outputs={"y": "float32"},
        constraints=list(constraints),
        reference="def run(): 1",
    )
    workload = make_workload(axes=axes, inputs=sources or {})
    return definition, workload, find_varied(definition, workload, CPU)


def open_contents(inputs, *, op_type="test", seed=7, **axes):
    """Return the contents of random inputs."""
    definition, workload, varied = find(inputs, op_type=op_type, **axes)
    return Contents(InputMaker(definition, workload, CPU, None).make(1), varied, seed, BASE_NUMBER)


def open_one(value, way="scaled", **varied):
    return Contents([value], [VariedInput("x", way, **varied)], 7, BASE_NUMBER)


def make_each(contents):
    return [values[0] for values in contents.make_all(NUMBERS)]


def bytes_of(*values):
    return b"".join(value.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for value in values)


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_a_number_has_one_content_and_shares_no_row_with_the_base(dtype):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64)
    base = bytes_of(contents.base[0])
    made = make_each(contents)
    assert [bytes_of(one) for one in made] == [bytes_of(contents.make(number)[0]) for number in NUMBERS]
    assert len({base, *map(bytes_of, made)}) == len(made) + 1
    known = {bytes_of(row) for row in contents.base[0].view(torch.uint8)}
    assert not any(bytes_of(row) in known for one in made for row in one.view(torch.uint8))
    assert bytes_of(contents.make(BASE_NUMBER)[0]) == base == bytes_of(contents.base[0])  # it is never written
    other = open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64, seed=8)
    assert bytes_of(other.make(0)[0]) != bytes_of(made[0])


@pytest.mark.parametrize("dtype", FLOATS[1:])
def test_random_normal_inputs_are_drawn_anew(dtype):
    base = torch.randn(4096).to(getattr(torch, dtype))
    made = [one.float() for one in make_each(open_one(base, deviation=3.0))]
    for one, other in zip(made, [*made[1:], base.float()], strict=True):
        assert one.std() == pytest.approx(3.0, rel=0.1)
        assert (one / 3).pow(4).mean() == pytest.approx(3.0, rel=0.3)
        spectra = torch.fft.rfft(one.sign()) * torch.fft.rfft(other.sign()).conj()
        assert torch.fft.irfft(spectra).abs().max() / 4096 < 0.2  # 1 if one is the other moved along


@pytest.mark.parametrize("shape", [(256,), (3, 2), (2_000, 4), (3, 1_000), (2, 3, 5_000), (70_001,)])
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


def test_sums_and_largest_elements_of_rows_do_not_follow_from_the_base():
    base = torch.rand(4, 1 << 14) + 1
    made = torch.stack(make_each(open_one(base)))
    sums = made.log().mean(-1)
    assert (sums - base.log().mean()).std() > 0.03
    assert (sums.diff(dim=-1).abs() > 0.01).double().mean() > 0.7
    assert len(made.argmax(-1).unique()) > 24


def test_only_an_input_of_both_signs_is_negated_and_only_in_some_calls():
    both, one_sign, infinite = torch.randn(255), torch.rand(255), torch.tensor([-1.0, 2.0, math.inf])
    largest = both[both.abs().argmax()]
    made = [open_one(both).make(number)[0] for number in range(10, 42)]
    assert 4 <= sum(bool(one[one.abs().argmax()] * largest < 0) for one in made) <= 28
    assert all(bool((one > 0).all()) for one in make_each(open_one(one_sign)))
    assert all(bool(one.amax() == math.inf) for one in make_each(open_one(infinite)))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (1, 5), (7, 1), (4, 4)])
def test_no_move_is_by_whole_rows(shape):
    value = torch.zeros(shape)
    moves = choose_moves(value, np.arange(0, 2**62, 2**62 // 1_000, dtype=np.uint64))
    columns, count = shape[-1] if shape else 1, value.numel()
    assert (moves == 0).all() if count < 2 else (moves > 0).all()
    assert (moves < count).all()
    assert not 1 < columns < count or (moves % columns).all()


@pytest.mark.parametrize(("shape", "columns"), [((3, 2), 6), ((1_001, 9), 3_003), ((1, 9 << 20), 3 << 20)])
def test_short_rows_are_shuffled_together_and_long_ones_in_parts(shape, columns):
    assert choose_columns(torch.empty(shape, device="meta")) == columns


@pytest.mark.parametrize("dtype", [dtype for dtype in NARROW if dtype != "float8_e8m0fnu"])
def test_random_bytes_are_moved_along_and_bits_flipped_that_may_be(dtype):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64)
    base, free = contents.base[0].view(torch.uint8).view(-1), 0x80 if dtype.startswith("float8") else 0xFF
    changed = 0.0
    for one in make_each(contents):
        made = one.view(torch.uint8).view(-1)
        moves = [by for by in range(1, 256) if not ((made ^ base.roll(-by)) & ~free & 0xFF).any()]
        assert moves
        changed += float((made != base.roll(-moves[0])).double().mean()) / len(NUMBERS)
    assert (0.4 < changed < 0.6) if free == 0x80 else changed > 0.95


@pytest.mark.parametrize(
    ("name", "spec", "is_moved_only"),
    [
        ("scale", "float8_e4m3fn[n]", True),
        ("x", "float8_e8m0fnu[n]", True),
        ("mask", f"bool[{FEW_BOOLS - 1}]", True),
        ("mask", "bool[n]", False),
    ],
)
def test_exponents_scales_and_few_bools_are_moved_along_only_and_many_bools_flipped(name, spec, is_moved_only):
    contents = open_contents({name: spec}, n=5_000)
    base = contents.base[0].view(torch.uint8).sort().values
    made = make_each(contents)
    assert all(torch.equal(one.view(torch.uint8).sort().values, base) for one in made) is is_moved_only
    for one in made if not is_moved_only else ():
        assert one.view(torch.uint8).max() == 1
        assert 0.2 < one.float().mean() < 0.8


def test_integers_that_give_structure_and_numbers_stay_as_they_are():
    inputs = {"kv_indptr": "int32[n]", "kv_indices": "int32[p]", "eps": "float32", "x": "float32[n]"}
    contents = open_contents(inputs, n=9, p=32)
    for *structure, eps, x in contents.make_all(NUMBERS):
        assert bytes_of(*structure) == bytes_of(*contents.base[:2])
        assert eps == contents.base[2]
        assert not torch.equal(x, contents.base[-1])
    assert Contents([None, torch.ones(4)], [VariedInput("b", "scaled")] * 2, 7, 0).make(1)[0] is None


def test_random_probabilities_are_made_anew_and_sum_to_one():
    contents = open_contents({"probs": "float32[n, v]"}, op_type="sampling", n=4, v=512)
    for made in make_each(contents):
        assert made.sum(dim=-1).tolist() == pytest.approx([1] * 4, abs=1e-5)
        assert not torch.equal(made.sort().values, contents.base[0].sort().values)


@pytest.mark.parametrize("dtype", FLOATS[1:3])
@pytest.mark.parametrize("has_signs", [False, True])
def test_stored_rows_with_a_form_keep_their_sum_or_length_and_nothing_else(dtype, has_signs):
    torch.manual_seed(0)
    base = (torch.randn(4, 512) * torch.tensor([[0.5], [1], [2], [4]])).softmax(dim=-1)
    base[:, 100:120] = 0
    base = (base * (torch.randint(0, 2, base.shape) * 2 - 1) if has_signs else base).to(getattr(torch, dtype))
    power, precise = 2 if has_signs else 1, 1e-6 if dtype == "float32" else 0.01
    for made in make_each(open_one(base, "redrawn")):
        sizes = [rows.double().norm(power, dim=-1).tolist() for rows in (base, made)]
        assert sizes[0] == pytest.approx(sizes[1], rel=precise)
        assert (made < 0).sum() == (base < 0).sum() or dtype == "float16"  # whose small numbers become zero
        assert not any(torch.equal(base.roll(by, -1).argsort(), made.argsort()) for by in range(512))
        factors = made.double().abs().sort().values / base.double().abs().sort().values
        assert len(factors.unique()) > 100  # one temperature or scale does not give them


def test_stored_rows_of_zeros_or_with_infinities_spoil_no_other_element():
    base = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.25, 0.25], [1.0, 2.0, math.inf]])
    (made,) = open_one(base, "redrawn").make(1)
    assert made[0].tolist() == [0, 0, 0]
    assert float(made[1].sum()) == pytest.approx(1)
    assert int(made[2].isfinite().sum()) == 2


@pytest.mark.parametrize(
    ("value", "way", "differs"),
    [
        (torch.tensor(2.0), "scaled", True),
        (torch.zeros(8), "scaled", False),
        (torch.ones(8), "rolled", False),
        (torch.arange(8.0), "rolled", True),
        (torch.ones(4, 1), "redrawn", False),
        (torch.full((4, 2), 0.5), "redrawn", True),
        (torch.arange(8), "fixed", False),
        (torch.empty(0), "scaled", False),
        (None, "scaled", False),
    ],
)
def test_it_is_known_if_nothing_can_differ(value, way, differs):
    assert open_one(value, way).differs is differs
    assert Contents([value, torch.ones(3)], [VariedInput("x", way), VariedInput("y", "scaled")], 7, 0).differs


@pytest.mark.parametrize("way", ["scaled", "rolled", "redrawn", "fixed"])
def test_every_way_takes_every_shape(way):
    for shape in ((0,), (1,), (2, 1), (1, 2), (3, 5)):
        (made,) = open_one(torch.randn(shape), way).make(1)
        assert made.shape == shape
        assert bool(made.isfinite().all())


def test_calls_get_the_sets_of_inputs_in_turn_and_no_two_the_same():
    bases = [torch.full((64,), 10.0**at) for at in range(3)]
    dealt = DealtContents([Contents([base], [VariedInput("x", "scaled")], at, 1) for at, base in enumerate(bases)])
    made = [values[0] for values in dealt.make_all(range(12))]
    assert [dealt.set_of(number) for number in range(12)] == [0, 1, 2] * 4
    assert [round(float(one.abs().log10().mean())) for one in made] == [0, 1, 2] * 4
    assert [number for number in range(12) if dealt.is_base(number)] == [3, 4, 5]
    assert all(map(torch.equal, made[3:6], bases))
    assert all(torch.equal(dealt.make(number)[0], one) for number, one in enumerate(made))
    assert len(set(map(bytes_of, made))) == 12


@pytest.mark.parametrize(
    ("op_type", "inputs", "deviations"),
    [
        ("test", {"x": "bfloat16[n, 16]", "x_scale": "float32[n]", "i": "int32[n]"}, [1.0, None, None]),
        ("sampling", {"logits": "float32[n, 16]", "probs": "float32[n, 16]"}, [3.0, None]),
        ("moe", {"gemm1_weights": "bfloat16[n, 8, 16]", "w2": "float8_e4m3fn[n, 8, 16]"}, [0.25, None]),
    ],
)
def test_the_deviation_of_random_normal_inputs_is_known(op_type, inputs, deviations):
    definition, workload, varied = find(inputs, op_type=op_type, n=4096)
    assert [one.deviation for one in varied] == deviations
    made = InputMaker(definition, workload, CPU, None).make(1)
    assert made[0].float().std() == pytest.approx(deviations[0], rel=0.05)


@pytest.mark.parametrize(
    ("is_nudged", "name", "dtype", "told"),
    [
        *((True, "x", dtype, {}) for dtype in ("float8_e4m3fn", "float8_e5m2", "float4_e2m1fn_x2", "int8")),
        (True, "x", "float8_e4m3fn", {"constraints": ["x.shape[0] == n"]}),
        (False, "x", "float8_e4m3fn", {"sources": {"x": {"type": "random"}}}),  # any of its bits are flipped
        *((False, "x", dtype, {}) for dtype in ("float8_e8m0fnu", "uint8", "float16")),
        *((False, name, "float8_e4m3fn", {}) for name in ("w_scale", "top_p")),
        *((False, name, "int8", {}) for name in ("block_table", "expert_ids", "w_scales", "attn_mask")),
        (False, "x", "float8_e4m3fn", {"constraints": ["x.max() <= 1"]}),
        (False, "k", "float8_e4m3fn", {"op_type": "gdn"}),
    ],
)
def test_only_stored_quantised_numbers_are_changed_a_little(is_nudged, name, dtype, told):
    _, _, (varied,) = find({name: f"{dtype}[n]"}, n=4, **{"sources": {name: STORED}, **told})
    assert (varied.is_nudged, varied.deviation) == (is_nudged, None)


EVERY_BYTE = torch.arange(256, dtype=torch.int16).to(torch.uint8).repeat(16)


def nudge(value, count=24):
    """Return some calls' values of a stored input that is not moved along: [calls, elements], and its own."""
    flips, made = find_nudge(value), torch.stack([value] * count)
    if flips is not None:
        writer = Writer(CPU)
        writer.flip_rows(made, range(count), np.arange(count, dtype=np.uint64), flips)
        writer.finish()
    read = unpack if value.dtype is FLOAT4 else torch.Tensor.double
    return torch.stack([read(one) for one in made]), read(value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, FLOAT4])
def test_narrow_floats_change_signs_and_lowest_bits_and_keep_what_is_special(dtype):
    made, before = nudge(EVERY_BYTE.view(dtype))
    odd = ~before.isfinite()
    assert torch.equal(made[:, odd].nan_to_num(), before[odd].nan_to_num().expand(len(made), -1))
    assert bool(((made == 0) == (before == 0)).all())
    ratio = made[:, ~odd & (before != 0)].abs() / before[~odd & (before != 0)].abs()
    assert 0.49 < ratio.min() < 0.9 < 1.1 < ratio.max() <= 2
    found = [len(set(column.tolist())) for column in made[:, :256].nan_to_num(nan=3.0).T]
    assert found.count(4) > (128 if dtype is FLOAT4 else 200)  # either sign, and either lowest bit


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
@pytest.mark.parametrize("size", [7.0, 100.0])
def test_no_number_becomes_larger_than_those_seen(dtype, size):
    value = (torch.randn(5_000, generator=torch.Generator().manual_seed(0)) * size).clamp(-128, 127).to(dtype)
    made, before = nudge(value)
    assert made.max() <= before.max()
    assert made.min() >= min(before.min(), -before.max())
    assert 0.2 < (made != before).double().mean() < 0.8


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_floats_of_one_sign_keep_it(sign):
    value = (torch.rand(4_000).add(0.01) * sign).to(torch.float8_e4m3fn)
    value[17] = -0.03 * sign  # one number of the other sign does not make it any sign
    made, before = nudge(value)
    assert torch.equal(made.sign(), before.sign().expand_as(made))
    assert not torch.equal(made[0], before)


def test_whole_numbers_change_their_sign_if_both_signs_were_seen():
    made, before = nudge(torch.tensor([*range(-20, 13), -128, -127, 127], dtype=torch.int8).repeat(50))
    assert torch.equal(made.abs(), before.abs().expand_as(made))
    both = (before.abs() <= 12) | (before.abs() == 127)
    assert bool((made[:, ~both] == before[~both]).all())
    assert bool(((made < 0).any(0) == (made > 0).any(0))[both & (before != 0)].all())


CODES = torch.cartesian_prod(*[torch.arange(3)] * 4) @ torch.tensor([1, 4, 16, 64])


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([-1, 0, 1, 2, 77], dtype=torch.int8),  # indices, -1 for none
        torch.tensor([*range(10), -100], dtype=torch.int8),  # labels
        torch.empty(0, dtype=torch.int8),
        torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan]).to(torch.float8_e5m2),
        EVERY_BYTE.view(torch.float8_e8m0fnu),
        EVERY_BYTE,
    ],
)
def test_other_bytes_stay(value):
    assert find_nudge(value) is None


def test_four_codes_of_0_to_2_in_a_byte_stay_such_codes():
    made, before = nudge(CODES.to(torch.uint8).view(torch.int8).repeat(9))
    assert set(made.unique().tolist()) <= set(before.tolist())
