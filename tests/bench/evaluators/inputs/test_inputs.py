"""The inputs of a workload: the same from the same seed, valid for their axes, and given values unchanged."""

import math

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.evaluators.inputs import memory
from flashinfer_bench.bench.evaluators.inputs.constraints import (
    check_constraints,
    find_broken_by_axes,
    find_strange_names,
)
from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten, fill, fill_words
from flashinfer_bench.bench.evaluators.inputs.generate import InputMaker
from flashinfer_bench.bench.evaluators.verdict import check_form
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import CPU, define, make
from tests.kit.make import make_definition, make_workload
from tests.kit.nans import FLOATS, make_nans

pytestmark = pytest.mark.cpu
DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 float8_e8m0fnu float4_e2m1 "
    "int64 int32 int16 int8 uint8 uint32 bool"
)
STORED = {"type": "safetensors", "path": "blob/x.safetensors", "tensor_key": "k"}


def describe(op_type="test", constraints=(), axes=(), **inputs):
    return define(inputs, axes=axes, op_type=op_type, constraints=list(constraints))


@pytest.mark.parametrize("dtype", DTYPES.split())
def test_an_equal_seed_gives_equal_bytes_and_another_seed_or_name_others(dtype):
    definition = describe(x=f"{dtype}[n, 64]", w=f"{dtype}[n, 64]")
    first, other = (make(definition, n=16, seed=seed) for seed in (5, 6))
    alone = make(describe(x=f"{dtype}[n, 64]"), n=16, seed=5)["x"]
    made = (first["x"], other["x"], first["w"])
    assert [torch.equal(alone.view(torch.uint8), one.view(torch.uint8)) for one in made] == [True, False, False]
    assert alone.shape == ((16, 32) if dtype == "float4_e2m1" else (16, 64))


@pytest.mark.parametrize("constraint", ["total == x_indptr[-1].item()", "x_indptr[-1] == total"])
@pytest.mark.parametrize("total", [0, 3, 50])
def test_offsets_rise_from_zero_to_the_total_of_the_constraint(constraint, total):
    definition = describe(constraints=[constraint], x="float32[total]", x_indptr="int32[rows]")
    offsets = make(definition, rows=9, total=total)["x_indptr"]
    assert (offsets[0], offsets[-1], int(offsets.diff().min()) >= (total >= 8)) == (0, total, True)


@pytest.mark.parametrize("seed", range(9))
def test_random_paged_prefill_gives_every_query_a_key(seed):
    definition = describe(
        op_type="gqa_paged",
        axes={"page_size": 16},
        constraints=["t == qo_indptr[-1].item()", "i == kv_indptr[-1].item()"],
        q="bfloat16[t, 4]",
        cache="bfloat16[num_pages, page_size]",
        qo_indptr="int32[len_indptr]",
        kv_indptr="int32[len_indptr]",
        kv_indices="int32[i]",
        kv_last_page_len="int32[b]",
    )
    made = make(definition, seed=seed, t=60, num_pages=40, len_indptr=5, i=16, b=4)
    lasts, pages = made["kv_last_page_len"], made["kv_indices"]
    assert bool(((made["kv_indptr"].diff() - 1) * 16 + lasts >= made["qo_indptr"].diff()).all())
    assert 1 <= int(lasts.min()) <= int(lasts.max()) <= 16
    assert len(set(pages.tolist()) & set(range(40))) == 16


TABLES = {"state": "float32[pool_size, 4]", "cache": "float32[num_pages, page_size]", "cos": "float32[max_seq_len]"}
NAMED = [
    ("moe", "positions", "int64[n]", 0, 29),
    ("moe", "seq_lens", "int32[n]", 1, 30),
    ("moe", "top_k", "int32[n]", 1, 1000),
    ("moe", "topk_ids", "int32[n, 4]", 0, 15),
    ("moe", "state_indices", "int32[n]", 0, 99),
    ("sampling", "probs", "float32[n, vocab_size]", 0, 1),
    ("test", "top_p", "float32[n]", 0.1, 1),
    ("test", "x_scale", "float32[n]", 0.5, 1.5),
    ("gdn", "a_log", "float32[n]", math.log(0.001), math.log(16)),
    ("mamba", "A", "float32[n, 4]", -16.01, -0.00099),
    ("mamba", "dt_bias", "float32[n]", math.log(math.expm1(0.00099)), math.log(math.expm1(0.101))),
]


@pytest.mark.parametrize(("op_type", "name", "spec", "low", "high"), NAMED)
def test_names_decide_the_meaning_of_values(op_type, name, spec, low, high):
    axes = {"page_size": 8, "num_experts": 16, "vocab_size": 1000}
    sizes = {"n": 64, "pool_size": 100, "num_pages": 2000, "max_seq_len": 30, "max_num_pages": 3}
    values = make(describe(op_type, axes=axes, **TABLES, **{name: spec}), **sizes)[name]
    assert low <= float(values.min()) <= float(values.max()) <= high
    assert float(values.max()) > float(values.min()) + (high - low) / 4
    assert name != "state_indices" or values.unique().numel() == 64
    assert name != "topk_ids" or all(row.unique().numel() == 4 for row in values)
    assert name != "probs" or torch.allclose(values.sum(dim=1), torch.ones(64))


def test_packed_fp8_keys_hold_values_first_and_then_a_scale_for_each_token():
    definition = describe(op_type="dsa_paged", k_index_cache_fp8="int8[num_pages, 64, 1, 132]")
    pages = make(definition, num_pages=3)["k_index_cache_fp8"].view(torch.uint8).reshape(3, -1)
    keys, scales = (part.contiguous() for part in pages.split([64 * 128, 64 * 4], dim=1))
    assert bool(torch.isfinite(keys.view(torch.float8_e4m3fn).float()).all())
    assert bool(((scales.view(torch.float32) - 1).abs() <= 0.5).all())


def test_numbers_become_python_numbers_of_the_inputs_kind_and_have_the_sense_of_their_name():
    definition = describe(scale="float32", count="int32", flag="bool", whole="int32[]")
    made = make(definition, {"scale": 2, "count": 3.0, "flag": True, "whole": 7})
    assert [repr(made[name]) for name in ("scale", "count", "flag")] == ["2.0", "3", "True"]
    assert torch.equal(made["whole"], torch.tensor(7, dtype=torch.int32))
    made = make(describe(axes={"head_dim": 64, "page_size": 16}, sm_scale="float32", eps="float32", page_size="int32"))
    assert (made["sm_scale"], made["eps"], made["page_size"]) == (1 / math.sqrt(64), 1e-6, 16)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("set")
    (folder / "blob").mkdir()
    save_file({"k": torch.arange(12).reshape(3, 4).bfloat16()}, folder / "blob" / "x.safetensors")
    (folder / "blob" / "broken").write_bytes(b"no safetensors")
    return folder


def test_a_stored_input_is_read_once_for_all_trials_and_an_optional_input_is_skipped(root):
    optional = make_definition(inputs={"x": {"shape": ["n"], "dtype": "float32", "optional": True}})
    assert (make(optional, n=2)["x"], len(make(optional, {"x": "random"}, n=2)["x"])) == (None, 2)
    definition = describe(x="bfloat16[n, 4]", w="bfloat16[n]")
    maker = InputMaker(definition, make_workload(axes={"n": 3}, inputs={"x": STORED}), CPU, root)
    first, second = maker.make(1), maker.make(2)
    assert torch.equal(first[0], torch.arange(12).reshape(3, 4).bfloat16())
    assert (first[0] is second[0], torch.equal(first[1], second[1])) == (True, False)


@pytest.mark.parametrize(
    ("spec", "source", "words"),
    [
        ("bfloat16[n, 4]", {**STORED, "tensor_key": "other"}, ["other", "no such key", "k"]),
        ("bfloat16[n, 5]", STORED, ["[3, 4]", "[3, 5]"]),
        ("float16[n, 4]", STORED, ["bfloat16", "float16"]),
        ("bfloat16[n, 4]", {**STORED, "path": "blob/y.safetensors"}, ["y.safetensors", "not there"]),
        ("bfloat16[n, 4]", {**STORED, "path": "blob/broken"}, ["broken", "cannot be read"]),
        (f"float32[n, {memory.total_bytes(CPU)}]", "random", ["use a device with more memory"]),
        ("float32[n]", {"type": "custom"}, ["no custom_inputs_entrypoint"]),
        ("float32[n]", {"type": "generated"}, ["generated"]),
        *((spec, value, ["x"]) for spec, value in (("int32", 3.5), ("bool", 1), ("float32[n]", 1.0))),
    ],
)
def test_an_input_that_cannot_be_made_is_a_fault_that_says_why(root, spec, source, words):
    with pytest.raises(WorkloadFault) as fault:
        make(describe(x=spec, w="float32[n]"), {"x": source}, root=root, n=3)
    assert all(word in str(fault.value) for word in words)


def test_axes_are_worked_out_and_one_that_is_missing_or_contradicts_the_definition_is_a_fault():
    definition = make_definition(axes={"n": None, "h": 4, "m": "2 * n + 1"}, inputs={"x": "float32[m, h]"})
    assert tuple(make(definition, n=4)["x"].shape) == (9, 4)
    for axes, words in (({}, "n"), ({"n": 1, "h": 5}, "h=5")):
        with pytest.raises(WorkloadFault, match=words):
            make(definition, **axes)


# Constraints.


def test_constraints_are_kept_noted_or_a_fault():
    definition = describe(constraints=["n == m", "scale < n"], x="float32[n, m]", scale="float32")
    with pytest.raises(WorkloadFault, match=r"'scale < n' does not hold \(5.0 and 2\)") as fault:
        make(definition, {"scale": 5.0}, n=2, m=3)
    assert "n == m" not in str(fault.value)
    constraints = ["topk <= w * 4", "n == indptr[-1].item()", "is_power_of_two(n)"]
    definition = describe(constraints=constraints, x="float32[n, topk, w]", indptr="int32[b]")
    maker = InputMaker(definition, make_workload(axes={"n": 9, "w": 1, "topk": 8, "b": 4}), CPU, None)
    assert maker.make(seed=1)[1][-1] == 9
    assert maker.notes["broken_constraints"] == ["'topk <= w * 4' does not hold (8 and 4)"]
    assert "is_power_of_two" in maker.notes["unchecked_constraints"][0]


VALUES = {"n": 4, "m": 8, "scale": 0.5, "x": torch.zeros(4, 3), "indptr": torch.tensor([0, 2, 4]), "left_out": None}
HOLD = """m == 2 * n | n < m <= 8 | x.shape[0] == n | x.shape[-1] == 3 | len(x.shape) == 2 and x.ndim == 2
n == indptr[-1].item() | n == indptr[-1] | (indptr[1:] >= indptr[:-1]).all() | indptr.max() > x.max() and x == 0
indptr.max().item() <= n | not n > m or scale == 1 | n % 2 == 0 | m // n == 2 and m / n == 2.0 and n - m == -4"""
STRANGE = """__import__("os").getpid() == 0 | x.__class__ == n | x.tolist() == n | [i for i in x] == n | n ** m > 0
left_out.shape[0] == n | unknown == n | x.shape[7] == n | n.shape[0] == 1 | n / 0 == 1 | 'a' == n"""


def test_constraints_hold_or_not_and_other_expressions_are_reported_and_not_run():
    for constraint in HOLD.replace("\n", " | ").split(" | "):
        assert check_constraints([constraint], VALUES) == []
        with pytest.raises(WorkloadFault, match="does not hold"):
            check_constraints([f"not ({constraint})"], VALUES)
    for constraint in STRANGE.replace("\n", " | ").split(" | "):
        assert len(check_constraints([constraint], VALUES)) == 1


@pytest.mark.parametrize(
    ("constraint", "end"),
    [
        ("n >= 8", " (4 and 8)"),
        ("len(x) == n + 1", " (4 and 5)"),
        ("x.dim() == x.ndim + 1", " (2 and 3)"),
        ("n == 5 and x.max() < 3", ""),
        *((one, None) for one in ("n == 5 or x.max() < 3", "x[0] == 5", "left_out.shape[0] == 5")),
    ],
)
def test_constraints_on_axes_are_separated_from_constraints_on_values(constraint, end):
    left_out = {"shape": ["n"], "dtype": "float32", "optional": True}
    inputs = {"x": "float32[n, 3]", "scale": "float32", "left_out": left_out}
    definition = make_definition(axes={"n": None}, inputs=inputs, constraints=[constraint])
    found = find_broken_by_axes(definition, make_workload(axes={"n": 4}, inputs={}))
    assert found == ({} if end is None else {constraint: f"{constraint!r} does not hold{end}"})
    assert find_broken_by_axes(definition, make_workload(axes={})) == {}


def test_names_that_a_definition_lacks_are_found():
    definition = make_definition(constraints=["n <= token", "x.max() < n", "len(x) == n", "prod(x) > m"])
    assert find_strange_names(definition) == {"n <= token": ["token"], "prod(x) > m": ["m", "prod"]}


# The content of outputs before a call, and the memory of a GPU.


def filled(dtype, size=67):
    into = torch.zeros(size * dtype.itemsize, dtype=torch.uint8)
    fill(into, fill_words(dtype)[0])
    return into.view(dtype)


def test_no_arithmetic_and_no_conversion_makes_the_nan_of_a_fill():
    for made in [*make_nans(), *(filled(of).to(dtype) for of in FLOATS for dtype in FLOATS if of != dtype)]:
        assert made.isnan().all()
        assert count_unwritten(torch.full_like(made, torch.nan), made) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_elements_that_are_nan_by_right_and_were_not_written_are_counted(dtype):
    expected, got = torch.ones(67, dtype=dtype), filled(dtype)
    expected[10:20] = torch.nan
    assert got.isnan().all()
    assert count_unwritten(expected, got) == 10
    assert count_unwritten(got, got) == 0  # the reference returns these very bytes
    if dtype is torch.float32:
        wrong = check_form(make_definition(), [got], [torch.full((67,), torch.nan)])
        assert wrong.integrity == {"rule": "unwritten", "evidence": {"output": "y", "elements": 67}}


def test_free_memory_is_read_again_after_a_moment(monkeypatch):
    now, readings, gpu = [0.0], iter((60, 49, 48)), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (next(readings), 100))
    monkeypatch.setattr(memory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(memory, "_queries", {})
    for later_s, found in ((0, 60), (1, 60), (1, 49), (0, 49), (1, 48)):
        now[0] += later_s
        assert memory.recently_free_bytes(gpu) == found
