"""The inputs of a workload: the same from the same seed, valid for their axes, as given where they are given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from flashinfer_bench.bench.evaluators.inputs.make import InputMaker
from flashinfer_bench.bench.evaluators.inputs.memory import total_bytes
from flashinfer_bench.bench.evaluators.inputs.rules import ANY, NUMBER_RULES, TENSOR_RULES, Rule
from flashinfer_bench.errors import WorkloadFault
from tests.bench.evaluators.judging import Judging
from tests.kit.make import make_definition, make_workload

pytestmark = pytest.mark.cpu

CPU = torch.device("cpu")
FLOATS = ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1"]
OTHERS = ["int64", "int32", "int16", "int8", "uint8", "uint32", "bool"]


def inputs_of(definition, workload=None, *, seed=1, root=Path("nowhere"), **axes):
    workload = workload or make_workload(axes=axes, inputs={})
    made = InputMaker(definition, workload, CPU, root).make(seed)
    return dict(zip(definition.inputs, made, strict=True))


def definition_with(op_type="test", constraints=(), axes=None, **inputs):
    names = {axis for spec in inputs.values() for axis in spec.partition("[")[2].strip("]").split(", ") if axis}
    sizes = {name: None for name in sorted(names) if not name.isdigit()}
    return make_definition(
        op_type=op_type,
        axes={**sizes, **(axes or {})},
        inputs=inputs,
        outputs={"y": "float32"},
        constraints=list(constraints),
    )


@pytest.mark.parametrize("dtype", [*FLOATS, *OTHERS])
def test_an_equal_seed_gives_equal_bytes_and_another_seed_others(dtype):
    definition = definition_with(x=f"{dtype}[n, 64]")
    first, again, other = (inputs_of(definition, n=16, seed=seed)["x"] for seed in (5, 5, 6))
    assert torch.equal(first.view(torch.uint8), again.view(torch.uint8))
    assert not torch.equal(first.view(torch.uint8), other.view(torch.uint8))


def test_an_input_does_not_depend_on_the_others():
    alone = inputs_of(definition_with(x="float32[n]"), n=8)["x"]
    beside = inputs_of(definition_with(w="float32[n]", x="float32[n]"), n=8)
    assert torch.equal(beside["x"], alone)
    assert not torch.equal(beside["w"], alone)


def test_floats_are_normal_whatever_the_dtype():
    for dtype in ("float32", "bfloat16", "float8_e4m3fn"):
        x = inputs_of(definition_with(x=f"{dtype}[n]"), n=100_000)["x"].float()
        assert abs(float(x.mean())) < 0.02
        assert abs(float(x.std()) - 1) < 0.02


def test_a_packed_input_has_half_the_bytes_of_its_last_dimension():
    x = inputs_of(definition_with(x="float4_e2m1[n, 64]"), n=3)["x"]
    assert (x.dtype, tuple(x.shape)) == (torch.float4_e2m1fn_x2, (3, 32))


@pytest.mark.parametrize(
    "constraint", ["total == x_indptr[-1].item()", "x_indptr[-1] == total"], ids=["axis first", "axis last"]
)
@pytest.mark.parametrize("total", [0, 3, 50])
def test_offsets_rise_from_zero_to_the_total_of_the_constraint(constraint, total):
    definition = definition_with(constraints=[constraint], x="float32[total]", x_indptr="int32[rows]")
    offsets = inputs_of(definition, rows=9, total=total)["x_indptr"]
    assert (offsets[0], offsets[-1]) == (0, total)
    assert bool((offsets.diff() >= 0).all())
    assert total < 8 or bool((offsets.diff() > 0).all())


@pytest.mark.parametrize("seed", range(20))
def test_random_paged_prefill_gives_every_query_a_key(seed):
    definition = definition_with(
        op_type="gqa_paged",
        axes={"page_size": 16},
        constraints=["total_q == qo_indptr[-1].item()", "num_kv_indices == kv_indptr[-1].item()"],
        q="bfloat16[total_q, 4]",
        cache="bfloat16[num_pages, page_size]",
        qo_indptr="int32[len_indptr]",
        kv_indptr="int32[len_indptr]",
        kv_indices="int32[num_kv_indices]",
        kv_last_page_len="int32[batch_size]",
    )
    made = inputs_of(definition, seed=seed, total_q=60, num_pages=40, len_indptr=5, num_kv_indices=16, batch_size=4)
    keys = (made["kv_indptr"].diff() - 1) * 16 + made["kv_last_page_len"]
    assert bool((keys >= made["qo_indptr"].diff()).all())
    assert bool(((made["kv_last_page_len"] >= 1) & (made["kv_last_page_len"] <= 16)).all())
    assert made["kv_indices"].unique().numel() == 16
    assert 0 <= int(made["kv_indices"].min()) <= int(made["kv_indices"].max()) < 40


def test_names_decide_what_integers_mean():
    definition = definition_with(
        op_type="moe",
        axes={"page_size": 8, "num_experts": 16, "vocab_size": 1000},
        state="float32[pool_size, 4]",
        cache="float32[num_pages, page_size]",
        cos="float32[max_seq_len]",
        probs="float32[n, vocab_size]",
        positions="int64[n]",
        seq_lens="int32[n]",
        block_table="int32[n, max_num_pages]",
        top_k="int32[n]",
        topk_ids="int32[n, 4]",
        state_indices="int32[n]",
    )
    made = inputs_of(definition, n=64, pool_size=100, num_pages=2000, max_seq_len=30, max_num_pages=3)
    limits = {
        "positions": (0, 29),
        "seq_lens": (1, 24),
        "block_table": (0, 1999),
        "top_k": (1, 1000),
        "topk_ids": (0, 15),
    }
    for name, (low, high) in limits.items():
        assert low <= int(made[name].min()) <= int(made[name].max()) <= high, name
    assert made["state_indices"].unique().numel() == 64
    assert all(row.unique().numel() == 4 for row in made["topk_ids"])


def test_probabilities_sum_to_one_and_scales_are_positive():
    definition = definition_with(
        op_type="sampling", probs="float32[n, vocab]", top_p="float32[n]", x_scale="float32[n]", min_p="float32[n]"
    )
    made = inputs_of(definition, n=50, vocab=512)
    assert torch.allclose(made["probs"].sum(dim=1), torch.ones(50))
    assert bool(((made["top_p"] > 0.1) & (made["top_p"] <= 1)).all())
    assert bool((made["x_scale"] >= 0.5).all())
    assert bool((made["min_p"] > 0).all())


@pytest.mark.parametrize("op_type", ["gdn", "mamba", "mamba_ssu"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_channels_of_a_state_forget_quickly_and_slowly(op_type, has_bias):
    bias = {"dt_bias": "float32[h]"} if has_bias else {}
    definition = definition_with(
        op_type, a_log="float32[h]", **({"A": "float32[h, n]"} if op_type != "gdn" else {}), **bias
    )
    for seed in range(20):
        made = inputs_of(definition, h=4, n=8, seed=seed)
        steps = torch.nn.functional.softplus(made["dt_bias"]) if has_bias else torch.ones(4)
        rates = [made["a_log"].exp(), *([-made["A"].view(-1)] if "A" in made else [])]
        for one in rates:
            low, high = (1.0, 16.0) if has_bias else (0.001, 16.0)
            assert 0.999 * low <= one.min() < low * 2.1 * (high / low) ** 0.25
            assert 1.001 * high >= one.max() > high / 16
        if has_bias:
            factor = 10 if op_type == "gdn" else 1
            assert 0.00099 * factor <= steps.min() < 0.0033 * factor
            assert 0.03 * factor < steps.max() < 0.1001 * factor


@pytest.mark.parametrize("count", [1, 7, 5_000])
def test_logarithms_are_uniform_and_no_two_of_few_are_near_each_other(count):
    made = inputs_of(definition_with("mamba", A="float32[h]"), h=count)["A"]
    places = (-made).log().sub(math.log(0.001)).div(math.log(16_000)).sort().values
    assert bool(((places >= -1e-6) & (places <= 1 + 1e-6)).all())
    if count == 7:
        assert places.mul(7).floor().tolist() == list(range(7))
    if count > 7:
        assert places.mean() == pytest.approx(0.5, abs=0.03)


def test_packed_fp8_keys_hold_values_first_and_then_a_scale_for_each_token():
    definition = definition_with(op_type="dsa_paged", k_index_cache_fp8="int8[num_pages, 64, 1, 132]")
    pages = inputs_of(definition, num_pages=3)["k_index_cache_fp8"].view(torch.uint8).reshape(3, -1)
    values = pages[:, : 64 * 128].contiguous().view(torch.float8_e4m3fn).float()
    scales = pages[:, 64 * 128 :].contiguous().view(torch.float32)
    assert bool(torch.isfinite(values).all())
    assert bool(((scales >= 0.5) & (scales <= 1.5)).all())


def test_numbers_become_python_numbers_of_the_inputs_kind():
    definition = definition_with(x="float32[n]", scale="float32", count="int32", flag="bool", whole="int32[]")
    given = make_workload(axes={"n": 2}, inputs={"scale": 2, "count": 3.0, "flag": True, "whole": 7})
    made = inputs_of(definition, given)
    assert [(made[name], type(made[name])) for name in ("scale", "count", "flag")] == [
        (2.0, float),
        (3, int),
        (True, bool),
    ]
    assert torch.equal(made["whole"], torch.tensor(7, dtype=torch.int32))


def test_random_numbers_have_the_sense_of_their_name():
    definition = definition_with(
        axes={"head_dim": 64, "page_size": 16}, sm_scale="float32", eps="float32", page_size="int32"
    )
    made = inputs_of(definition)
    assert (made["sm_scale"], made["eps"], made["page_size"]) == (1 / math.sqrt(64), 1e-6, 16)


@pytest.mark.parametrize(
    ("name", "value"), [("count", 3.5), ("flag", 1), ("x", 1.0)], ids=["fraction for int", "number for bool", "tensor"]
)
def test_a_number_of_another_kind_is_a_fault(name, value):
    definition = definition_with(x="float32[n]", count="int32", flag="bool")
    with pytest.raises(WorkloadFault, match=name):
        inputs_of(definition, make_workload(axes={"n": 2}, inputs={name: value}))


def test_an_optional_input_that_the_workload_does_not_name_is_left_out():
    definition = definition_with(x="float32[n]")
    spec = definition.inputs["x"].model_copy(update={"optional": True})
    definition = definition.model_copy(update={"inputs": {"x": spec}})
    assert inputs_of(definition, n=2)["x"] is None
    assert inputs_of(definition, make_workload(axes={"n": 2}, inputs={"x": "random"}))["x"] is not None


def stored(key="k", path="blob/x.safetensors"):
    return {"type": "safetensors", "path": path, "tensor_key": key}


def test_a_stored_input_is_read_as_it_is(tmp_path):
    values = torch.randn(3, 4, dtype=torch.bfloat16)
    (tmp_path / "blob").mkdir()
    save_file({"k": values}, tmp_path / "blob" / "x.safetensors")
    workload = make_workload(axes={"n": 3}, inputs={"x": stored()})
    made = inputs_of(definition_with(x="bfloat16[n, 4]"), workload, root=tmp_path)["x"]
    assert torch.equal(made, values)
    made.zero_()
    again = inputs_of(definition_with(x="bfloat16[n, 4]"), workload, root=tmp_path)["x"]
    assert torch.equal(again, values)


def test_the_trials_of_a_workload_share_what_was_read_once(tmp_path):
    (tmp_path / "blob").mkdir()
    save_file({"k": torch.ones(3, 4)}, tmp_path / "blob" / "x.safetensors")
    workload = make_workload(axes={"n": 3}, inputs={"x": stored()})
    definition = make_definition(
        inputs={"x": "float32[n, 4]", "w": "float32[n]"},
        outputs={"y": "float32[n, 4]"},
        axes={"n": None},
        reference="def run(x, w):\n    return x * w[:, None]\n",
    )
    job = Judging(definition, workload, root=tmp_path)
    made = job.baseline().inputs
    assert made[0][0] is made[1][0] is made[2][0]
    assert not torch.equal(made[0][1], made[1][1])


@pytest.mark.parametrize(
    ("spec", "source", "words"),
    [
        pytest.param("bfloat16[n, 4]", stored("other"), ["other", "no such key", "k"], id="key"),
        pytest.param("bfloat16[n, 5]", stored(), ["[3, 4]", "[3, 5]"], id="shape"),
        pytest.param("float16[n, 4]", stored(), ["bfloat16", "float16"], id="dtype"),
        pytest.param("bfloat16[n, 4]", stored(path="blob/y.safetensors"), ["y.safetensors", "not there"], id="file"),
        pytest.param("bfloat16[n, 4]", stored(path="blob/broken"), ["broken", "cannot be read"], id="content"),
    ],
)
def test_a_stored_input_that_does_not_fit_is_a_fault_that_says_why(tmp_path, spec, source, words):
    (tmp_path / "blob").mkdir()
    save_file({"k": torch.zeros(3, 4, dtype=torch.bfloat16)}, tmp_path / "blob" / "x.safetensors")
    (tmp_path / "blob" / "broken").write_bytes(b"no safetensors")
    with pytest.raises(WorkloadFault) as fault:
        inputs_of(definition_with(x=spec), make_workload(axes={"n": 3}, inputs={"x": source}), root=tmp_path)
    assert all(word in str(fault.value) for word in words)


def test_an_axis_that_is_missing_or_contradicts_the_definition_is_a_fault():
    definition = make_definition(axes={"n": None, "h": 4}, inputs={"x": "float32[n, h]"})
    with pytest.raises(WorkloadFault, match="n"):
        inputs_of(definition)
    with pytest.raises(WorkloadFault, match="h=5"):
        inputs_of(definition, n=1, h=5)


def test_axes_that_follow_from_others_are_worked_out():
    definition = make_definition(axes={"n": None, "m": "2 * n + 1"}, inputs={"x": "float32[m, 3]"})
    assert tuple(inputs_of(definition, n=4)["x"].shape) == (9, 3)


def test_a_constraint_that_an_input_breaks_is_a_fault_with_both_sides():
    definition = definition_with(constraints=["n == m", "scale < n"], x="float32[n, m]", scale="float32")
    with pytest.raises(WorkloadFault, match=r"'scale < n' does not hold \(5.0 and 2\)") as fault:
        inputs_of(definition, make_workload(axes={"n": 2, "m": 3}, inputs={"scale": 5.0}))
    assert "n == m" not in str(fault.value)


def test_a_constraint_that_axes_alone_break_is_noted_and_the_others_are_kept():
    constraints = ["topk <= w * 4", "x.shape[0] == 3", "n == indptr[-1].item()"]
    definition = definition_with(constraints=constraints, x="float32[n, topk, w]", indptr="int32[b]")
    maker = InputMaker(definition, make_workload(axes={"n": 9, "w": 1, "topk": 8, "b": 4}), CPU, Path("nowhere"))
    assert maker.make(seed=1)[1][-1] == 9
    assert maker.notes == {
        "broken_constraints": ["'topk <= w * 4' does not hold (8 and 4)", "'x.shape[0] == 3' does not hold (9 and 3)"]
    }


def test_a_constraint_that_cannot_be_checked_is_noted():
    definition = definition_with(constraints=["is_power_of_two(n)"], x="float32[n]")
    maker = InputMaker(definition, make_workload(axes={"n": 2}, inputs={}), CPU, Path("nowhere"))
    maker.make(seed=1)
    assert "is_power_of_two" in maker.notes["unchecked_constraints"][0]


def test_inputs_that_no_device_holds_are_a_fault_before_they_are_tried():
    with pytest.raises(WorkloadFault, match="use a device with more memory"):
        inputs_of(definition_with(x="float32[n]"), n=total_bytes(CPU))


@pytest.mark.parametrize(("kind", "words"), [("custom", "no custom_inputs_entrypoint"), ("generated", "generated")])
def test_inputs_that_nobody_here_can_make_are_a_fault(kind, words):
    with pytest.raises(WorkloadFault, match=words):
        inputs_of(definition_with(x="float32[n]"), make_workload(axes={"n": 2}, inputs={"x": {"type": kind}}))


def render_rules(rules: tuple[Rule, ...]) -> str:
    lines = ["| op type | kind of dtype | name | values |", "|---|---|---|---|"]
    for rule in rules:
        op_type, name = (
            "any" if pattern == ANY else f"`{pattern}`".replace("|", "\\|") for pattern in (rule.op_type, rule.name)
        )
        lines.append(f"| {op_type} | {rule.kinds.replace(' ', ', ')} | {name} | {rule.what} |")
    return "\n".join(lines)


@pytest.mark.parametrize("rules", [TENSOR_RULES, NUMBER_RULES], ids=["tensors", "numbers"])
def test_the_documentation_lists_the_rules_as_they_are(rules):
    text = (Path(__file__).resolve().parents[4] / "docs" / "inputs.md").read_text(encoding="utf-8")
    assert render_rules(rules) in text, f"docs/inputs.md should have\n{render_rules(rules)}"
