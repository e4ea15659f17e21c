"""What the inputs of single calls hold: content of their own, from a secret, and always the same for a number."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.evaluators.inputs.contents import (
    Contents,
    DealtContents,
    VariedInput,
    find_both_signs,
    find_varied,
)
from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.inputs.rules import FEW_BOOLS
from flashinfer_bench.bench.evaluators.inputs.writer import LARGEST_FACTOR, TorchWriter
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
BASE_NUMBER = 3
NUMBERS = [0, 1, 2, 4, 5, 6, 7, 8]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
NARROW = ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1", "int8", "uint8"]


@pytest.fixture
def open_contents(tmp_path):
    """Return what a workload's calls are given; inputs are random unless the workload says otherwise."""

    def opened(inputs, *, op_type="test", sources=None, seed=7, **axes):
        definition = make_definition(
            op_type=op_type, axes=dict.fromkeys(axes), inputs=inputs, outputs={"y": "float32"}, reference="def run(): 1"
        )
        workload = make_workload(axes=axes, inputs=sources or {})
        base = InputMaker(definition, workload, CPU, tmp_path).make(1)
        return Contents(base, find_varied(definition, workload, CPU), seed, BASE_NUMBER)

    return opened


def as_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).reshape(-1)


def bytes_of(values):
    return b"".join(as_bytes(value).numpy().tobytes() for value in values if isinstance(value, torch.Tensor))


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
def test_a_number_has_one_content_and_no_two_numbers_have_the_same(open_contents, dtype):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=8, m=64)
    made = [bytes_of(contents.make(number)) for number in NUMBERS]
    assert made == [bytes_of(contents.make(number)) for number in NUMBERS]
    assert len({*made, bytes_of(contents.base)}) == len(made) + 1


def test_another_secret_gives_other_contents(open_contents):
    first, other = (open_contents({"x": "float32[n]"}, n=64, seed=seed) for seed in (7, 8))
    assert not torch.equal(first.make(0)[0], other.make(0)[0])


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW])
@pytest.mark.parametrize("rows", [1, 2, 16])
def test_no_row_of_a_call_is_a_row_of_the_base(open_contents, dtype, rows):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=rows, m=64)
    known = {bytes_of([row]) for row in contents.base[0].view(torch.uint8)}
    for number in NUMBERS:
        assert not known & {bytes_of([row]) for row in contents.make(number)[0].view(torch.uint8)}


@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_are_scaled_within_the_factor(open_contents, dtype):
    contents = open_contents({"x": f"{dtype}[n]"}, n=256)
    base = contents.base[0].double().abs().sum()
    for number in NUMBERS:
        factor = contents.make(number)[0].double().abs().sum() / base
        assert 0.99 / LARGEST_FACTOR < factor < 1.01 * LARGEST_FACTOR


def test_sums_of_rows_are_no_sums_of_stretches_of_the_base(open_contents):
    contents = open_contents({"x": "float32[n, m]"}, n=2, m=128)
    flat = contents.base[0].reshape(-1).double().square()
    sums = torch.cat((flat, flat)).cumsum(0)
    known = sums[128:384] - sums[:256]  # of every stretch of a row's length
    for number in NUMBERS:
        made = contents.make(number)[0].double().square().sum(dim=1)
        ratios = (made[0] / made[1], known / known.roll(128))
        assert (ratios[1] / ratios[0] - 1).abs().min() > 1e-6


def test_an_input_of_both_signs_is_negated_in_some_calls_and_one_of_a_single_sign_in_none(open_contents):
    contents = open_contents({"x": "float32[n]", "scale": "float32[n]"}, n=255)
    with_sign = contents.base[0].abs().argmax()
    flips = 0
    for number in range(10, 42):
        x, scale = contents.make(number)
        flips += bool(x[x.abs().argmax()].sign() != contents.base[0][with_sign].sign())
        assert bool((scale > 0).all())
    assert 4 <= flips <= 28


@pytest.mark.parametrize("dtype", [dtype for dtype in NARROW if dtype != "float8_e8m0fnu"])
def test_bytes_are_moved_along_and_bits_flipped_that_may_be(open_contents, dtype):
    contents = open_contents({"x": f"{dtype}[n, m]"}, n=4, m=64)
    base, free = as_bytes(contents.base[0]), 0x80 if dtype.startswith("float8") else 0xFF
    changed = []
    for number in NUMBERS:
        made = as_bytes(contents.make(number)[0])
        kept = made & (0xFF ^ free)
        moves = [by for by in range(1, base.numel()) if torch.equal(kept, base.roll(-by) & (0xFF ^ free))]
        assert moves
        assert bytes_of(contents.make(number)) == bytes_of([made])
        changed += [int(((made ^ base.roll(-by)) != 0).sum()) for by in moves[:1]]
    share = sum(changed) / len(changed) / base.numel()
    assert (0.4 < share < 0.6) if free == 0x80 else share > 0.95
    assert torch.equal(as_bytes(contents.make(contents.base_number)[0]), base)


@pytest.mark.parametrize("name", ["x", "scale"])
def test_exponents_and_scales_keep_their_bits(open_contents, name):
    for dtype in ("float8_e8m0fnu", "float8_e4m3fn") if name == "scale" else ("float8_e8m0fnu",):
        contents = open_contents({name: f"{dtype}[n, m]"}, n=4, m=64)
        base = as_bytes(contents.base[0]).sort().values
        for number in NUMBERS:
            assert torch.equal(as_bytes(contents.make(number)[0]).sort().values, base)


def test_stored_bytes_keep_their_values(open_contents):
    contents = open_contents({"x": "uint8[n, m]"}, n=4, m=64)
    contents._varied = [VariedInput("x", "rolled")]
    base = as_bytes(contents.base[0]).sort().values
    for number in NUMBERS:
        assert torch.equal(as_bytes(contents.make(number)[0]).sort().values, base)


def test_integers_that_give_structure_stay_as_they_are(open_contents):
    inputs = {"kv_indptr": "int32[n]", "kv_indices": "int32[p]", "seq_lens": "int32[n]"}
    contents = open_contents({**inputs, "x": "float32[n]"}, n=9, p=32)
    for number in NUMBERS:
        *structure, x = contents.make(number)
        assert bytes_of(structure) == bytes_of(contents.base[:-1])
        assert not torch.equal(x, contents.base[-1])


@pytest.mark.parametrize(("size", "keeps_count"), [(FEW_BOOLS - 1, True), (FEW_BOOLS, False), (5_000, False)])
def test_random_bools_differ_and_few_of_them_stay_as_many(open_contents, size, keeps_count):
    contents = open_contents({"mask": "bool[n]"}, n=size)
    made = [contents.make(number)[0] for number in NUMBERS]
    assert {value.view(torch.uint8).max().item() for value in made} == {1}
    assert len({bytes_of([value]) for value in made}) > len(made) // 2
    assert ({int(value.sum()) for value in made} == {int(contents.base[0].sum())}) is keeps_count
    assert all(0.2 < value.float().mean() < 0.8 for value in made)


def test_probabilities_still_sum_to_one(open_contents):
    contents = open_contents({"probs": "float32[n, v]"}, op_type="sampling", n=4, v=512)
    for number in NUMBERS:
        (made,) = contents.make(number)
        assert made.sum(dim=-1).tolist() == pytest.approx([1] * 4, abs=1e-5)
        assert not torch.equal(made.sort().values, contents.base[0].sort().values)  # made anew, not moved along


def stored(base, seed=7):
    return Contents([base], [VariedInput("probs", "redrawn")], seed, BASE_NUMBER)


def find_moved(base, made):
    """Return where each element of a call's row stood, if all rows were only moved along by one number; else None."""
    moves = [by for by in range(base.shape[-1]) if torch.equal(base.roll(by, -1).argsort(), made.argsort())]
    return moves[0] if moves else None


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_known_of_the_order_of_stored_probabilities_is_of_no_use_in_another_call(dtype, rows):
    torch.manual_seed(0)
    base = torch.randn(rows, 256).mul(2).softmax(dim=-1).to(getattr(torch, dtype))
    for number in NUMBERS:
        (made,) = stored(base).make(number)
        assert find_moved(base, made) is None
        assert not torch.equal(made.sort().values, base.sort().values)
        assert not torch.equal(made.sort().values.cumsum(-1), base.sort().values.cumsum(-1))
        factors = made.double().sort().values / base.double().sort().values
        assert len(set(factors.flatten().tolist())) > 100  # one temperature or scale does not give them


@pytest.mark.parametrize("dtype", FLOATS)
def test_stored_probabilities_stay_probabilities_about_as_sharp_as_they_were(dtype):
    torch.manual_seed(0)
    base = (torch.randn(4, 4096) * torch.tensor([[0.5], [1], [2], [4]])).softmax(dim=-1)
    base[:, 100:300] = 0
    base = base.to(getattr(torch, dtype))
    for number in NUMBERS:
        (made,) = stored(base).make(number)
        assert made.dtype == base.dtype
        precise = 1e-6 if dtype in ("float64", "float32") else 0.01
        assert made.double().sum(-1).tolist() == pytest.approx(base.double().sum(-1).tolist(), rel=precise)
        assert bool((made >= 0).all())
        if dtype != "float16":  # whose small numbers become zero
            assert torch.equal((made == 0).sum(-1), (base == 0).sum(-1))
        entropies = [torch.special.entr(rows.double()).sum(-1) for rows in (base, made)]
        assert (entropies[0] - entropies[1]).abs().max() < 1  # of 3.5 to 8.2


def test_stored_rows_of_both_signs_keep_their_length():
    base = torch.nn.functional.normalize(torch.randn(4, 2, 128), dim=-1)
    for number in NUMBERS:
        (made,) = stored(base).make(number)
        assert made.norm(dim=-1).flatten().tolist() == pytest.approx([1] * 8, abs=1e-5)
        assert find_moved(base, made) is None


def test_another_number_of_threads_gives_the_same_stored_rows():
    base = torch.randn(1, 200_000).softmax(dim=-1)
    threads, made = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        made.append(stored(base).make(1)[0])
    torch.set_num_threads(threads)
    assert torch.equal(made[0], made[1])
    assert torch.equal(made[0], made[2])


def test_stored_rows_of_zeros_or_with_infinities_spoil_no_other_element():
    base = torch.tensor([[0.0, 0.0, 0.0], [0.5, 0.25, 0.25], [1.0, 2.0, math.inf]])
    (made,) = stored(base).make(1)
    assert made[0].tolist() == [0, 0, 0]
    assert float(made[1].sum()) == pytest.approx(1)
    assert int(made[2].isfinite().sum()) == 2


@pytest.mark.parametrize(
    ("value", "way", "differs"),
    [
        (torch.tensor([2.0]), "scaled", True),
        (torch.tensor(2.0), "scaled", True),
        (torch.zeros(8), "scaled", False),
        (torch.full((8,), float("inf")), "scaled", False),
        (torch.ones(8), "scaled", True),
        (torch.ones(8), "rolled", False),
        (torch.arange(8.0), "rolled", True),
        (torch.tensor([3], dtype=torch.uint8), "rolled", False),
        (torch.full((8,), 3, dtype=torch.int8), "rolled", False),
        (torch.full((8,), 3, dtype=torch.int32), "rolled", False),
        (torch.ones(4, 1), "redrawn", False),
        (torch.full((4, 2), 0.5), "redrawn", True),
        (torch.rand(4, 2), "redrawn", True),
        (torch.rand(4, 2).T, "scaled", True),
        (torch.arange(8), "fixed", False),
        (torch.empty(0), "scaled", False),
        (2.0, "scaled", False),
        (None, "scaled", False),
    ],
)
def test_where_nothing_can_differ_that_is_known(value, way, differs):
    assert Contents([value], [VariedInput("x", way)], 7, 0).differs is differs
    others = [VariedInput("x", way), VariedInput("other", "scaled")]
    assert Contents([value, torch.ones(3)], others, 7, 0).differs


def test_the_base_is_given_at_its_number_and_never_written(open_contents):
    contents = open_contents({"x": "float32[n]", "q": "uint8[n]", "w": "float4_e2m1[n]"}, n=64)
    before = bytes_of(contents.base)
    made = [bytes_of(contents.make(number)) for number in (BASE_NUMBER, *NUMBERS)]
    assert made[0] == before == bytes_of(contents.base)
    assert before not in made[1:]


def test_what_is_made_is_written_in_place_too(open_contents):
    contents = open_contents({"x": "bfloat16[n, m]", "indptr": "int32[n]", "eps": "float32"}, n=8, m=16)
    into = [torch.empty_like(value) if isinstance(value, torch.Tensor) else None for value in contents.base]
    contents.write_all([5], [None if value is None else [value] for value in into], TorchWriter())
    assert bytes_of(into) == bytes_of(contents.make(5))
    assert contents.make(5)[2] == contents.base[2]


def test_an_input_that_is_left_out_stays_left_out():
    contents = Contents([None, torch.ones(4)], [VariedInput("bias", "scaled"), VariedInput("x", "scaled")], 7, 0)
    assert contents.make(1)[0] is None


@pytest.mark.parametrize(
    ("inputs", "differs"),
    [
        ({"x": "float32[n]", "indptr": "int32[n]"}, True),
        ({"q": "uint8[n]"}, True),
        ({"indptr": "int32[n]", "scale": "float32"}, False),
        ({"cos_sin_cache": "float32[n, 8]"}, False),
        ({}, False),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else str(value),
)
def test_differs_says_whether_any_input_is_varied(open_contents, inputs, differs):
    assert open_contents(inputs, n=8).differs is differs


def test_calls_have_the_sets_of_inputs_by_turns_and_no_two_the_same():
    bases = [torch.full((64,), 10.0**at) for at in range(3)]
    dealt = DealtContents([Contents([base], [VariedInput("x", "scaled")], at, 1) for at, base in enumerate(bases)])
    into = [torch.empty(64) for _ in range(12)]
    dealt.write_all(range(12), [into], TorchWriter())
    assert [dealt.set_of(number) for number in range(12)] == [0, 1, 2] * 4
    assert [round(float(one.abs().log10().mean())) for one in into] == [0, 1, 2] * 4
    assert [number for number in range(12) if dealt.is_base(number)] == [3, 4, 5]
    assert all(torch.equal(into[number], bases[number - 3]) for number in (3, 4, 5))
    assert all(torch.equal(dealt.make(number)[0], one) for number, one in enumerate(into))
    assert len({one.numpy().tobytes() for one in into}) == 12


def test_empty_inputs_vary_nothing(open_contents):
    contents = open_contents({"x": "float32[n]"}, n=0)
    assert contents.make(1)[0].shape == (0,)
    assert not contents.differs


@pytest.mark.parametrize("way", ["scaled", "rolled", "redrawn", "fixed"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (2, 1), (1, 2), (3, 5)])
def test_every_way_takes_every_shape(way, shape):
    base = torch.randn(shape)
    (made,) = Contents([base], [VariedInput("x", way)], 7, BASE_NUMBER).make(1)
    assert made.shape == base.shape
    assert bool(made.isfinite().all())


@pytest.mark.parametrize("dtype", FLOATS)
def test_signs_of_all_inputs_are_found_at_once(dtype):
    wanted = {
        (-1, 2): True,
        (0, 2): False,
        (-2, -1): False,
        (-1, 2, math.inf): False,
        (-1, math.nan, 2): False,
        (): False,
    }
    values = [torch.tensor(numbers, dtype=getattr(torch, dtype)) for numbers in wanted]
    assert find_both_signs([*values, None, 3.0, torch.tensor([-1, 1])]) == [*wanted.values(), False, False, False]


@pytest.mark.parametrize(
    ("op_type", "inputs", "deviations"),
    [
        ("test", {"x": "bfloat16[n, 16]", "z": "float8_e4m3fn[n]", "i": "int32[n]"}, [1.0, None, None]),
        ("test", {"x_scale": "float32[n]", "e": "float8_e8m0fnu[n]"}, [None, None]),
        ("sampling", {"logits": "float32[n, 16]", "probs": "float32[n, 16]"}, [3.0, None]),
        ("moe", {"gemm1_weights": "bfloat16[n, 8, 16]", "w2": "float8_e4m3fn[n, 8, 16]"}, [0.25, None]),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)
def test_of_normal_inputs_the_deviation_is_known(op_type, inputs, deviations):
    definition = make_definition(
        op_type=op_type, axes={"n": None}, inputs=inputs, outputs={"y": "float32"}, reference="def run(): 1"
    )
    assert [one.deviation for one in find_varied(definition, make_workload(axes={"n": 4}), CPU)] == deviations
    made = InputMaker(definition, make_workload(axes={"n": 4096}), CPU, None).make(1)
    for value, deviation in zip(made, deviations, strict=True):
        assert deviation is None or value.float().std() == pytest.approx(deviation, rel=0.05)


def test_stored_inputs_have_no_deviation(tmp_path):
    definition = make_definition()
    save_file({"x": torch.randn(4)}, tmp_path / "x.safetensors")
    stored = {"x": {"type": "safetensors", "path": "x.safetensors", "tensor_key": "x"}}
    (one,) = find_varied(definition, make_workload(axes={"n": 4}, inputs=stored), CPU)
    assert one.deviation is None
