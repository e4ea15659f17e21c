"""What definitions cost, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from flashinfer_bench.roofline.cost import Cost
from flashinfer_bench.roofline.definitions import find_cost
from flashinfer_bench.roofline.workloads import cost_of_workload, read_integers
from tests.kit.make import make_definition, make_workload


def cost(op_type, axes, inputs, outputs, values=None, name="x"):
    definition = make_definition(
        name, op_type=op_type, axes=axes, inputs=inputs, outputs=outputs, reference="def run(*a):\n    return a\n"
    )
    return find_cost(definition, axes, values)


def test_a_gemm_counts_two_for_each_product_and_every_tensor_once():
    found = cost(
        "gemm", {"M": 2, "N": 3, "K": 5}, {"A": "bfloat16[M, K]", "B": "bfloat16[N, K]"}, {"C": "float32[M, N]"}
    )
    assert (found.flops, found.bytes, found.unit) == (2 * 2 * 3 * 5, 2 * 10 + 2 * 15 + 4 * 6, "fp16")


def test_scales_count_and_do_not_decide_the_unit():
    inputs = {"A": "float8_e4m3fn[M, K]", "A_scale": "float32[M, B]", "B": "float8_e4m3fn[N, K]"}
    found = cost("lowbit", {"M": 2, "N": 3, "K": 256, "B": 2}, inputs, {"C": "bfloat16[M, N]"})
    assert (found.bytes, found.unit) == (2 * 256 + 3 * 256 + 4 * 4 + 2 * 6, "fp8")


W4A8 = {"x": "float8_e4m3fn[m, k]", "weights": "int32[n, packed_k]", "scales": "bfloat16[n, blocks]"}
LOWBIT_AXES = {"m": 4, "n": 6, "k": 64, "packed_k": 8, "blocks": 2}


@pytest.mark.parametrize(
    ("inputs", "outputs", "flops"),
    [
        (W4A8, {"y": "bfloat16[m, n]"}, 2 * 4 * 6 * 64),
        ({"x": "bfloat16[m, k]"}, {"values": "float8_e4m3fn[m, k]", "scales": "uint8[m, blocks]"}, None),
        ({"x": "bfloat16[m, k]"}, {"values": "uint8[m, packed_k]", "scales": "uint8[m, blocks]"}, None),
        ({"x": "bfloat16[m, k]", "weight": "bfloat16[k]"}, {"y": "float8_e4m3fn[m, k]"}, None),
        ({"weights": "int8[n, packed_k]", "scales": "bfloat16[n, blocks]"}, {"y": "bfloat16[n, k]"}, None),
        ({"x": "float8_e4m3fn[m, k]", "scales": "float32[m, n]"}, {"y": "bfloat16[m, n]"}, None),
        ({"a": "uint8[m, packed_k]", "b": "uint8[n, packed_k]"}, {"y": "bfloat16[m, n]"}, None),
        ({"a": "float8_e4m3fn[k, m]", "b": "float8_e4m3fn[k, n]"}, {"y": "bfloat16[m, n]"}, None),
        ({"x": "bfloat16"}, {"y": "float8_e4m3fn[m, k]"}, None),
    ],
    ids=["w4a8", "fp8", "fp4", "norm", "dequantize", "scales", "packed", "transposed", "scalar"],
)
def test_low_bits_are_a_gemm_where_they_are_multiplied(inputs, outputs, flops):
    found = cost("lowbit", LOWBIT_AXES, inputs, outputs)
    assert (found.flops if found else None) == flops


def test_whole_numbers_that_are_multiplied_have_no_listed_peak():
    inputs = {"a": "int8[m, k]", "b": "int8[n, k]"}
    assert cost("gemm", LOWBIT_AXES, inputs, {"y": "int32[m, n]"}) is None


def test_a_head_that_may_be_rotated_in_part_is_not_counted():
    axes = {"num_tokens": 3, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 8, "max_seq_len": 16, "r": 4}
    inputs = {"q": "bfloat16[num_tokens, num_qo_heads, head_dim]", "k": "bfloat16[num_tokens, num_kv_heads, head_dim]"}
    out = {"q_out": "bfloat16[num_tokens, num_qo_heads, head_dim]"}
    assert cost("rope", axes, inputs, out) is None
    assert cost("rope", {**axes, "rotary_dim": 6}, inputs, out).flops == 3 * 3 * 6 * 6
    assert cost("rope", axes, {**inputs, "cos_sin_cache": "float32[max_seq_len, r]"}, out).flops == 3 * 3 * 6 * 4


@pytest.mark.parametrize(
    ("name", "out", "flops"),
    [
        ("softmax_v10", "float32[b, v]", 5 * 20),
        ("top_k_renorm_probs_v10", "float32[b, v]", 0),
        ("top_k_mask_logits_v10", "float32[b, v]", 0),
        ("top_p_sampling_from_probs_v10", "int64[b]", 0),
        ("temperature_v10", "float32[b, v]", None),
    ],
)
def test_sampling_counts_no_arithmetic_but_that_of_softmax(name, out, flops):
    found = cost("sampling", {"b": 2, "v": 10}, {"x": "float32[b, v]"}, {"y": out}, name=name)
    assert (found.flops if found else None) == flops


@pytest.mark.parametrize(
    ("op_type", "axes"),
    [("moe", {"seq_len": 2, "num_experts": 0, "top_k": 1, "hidden_size": 4, "intermediate_size": 4}), ("gemm", {})],
)
def test_sizes_that_make_no_sense_have_no_cost(op_type, axes):
    assert cost(op_type, axes, {}, {"y": "bfloat16[3]"}) is None


def test_the_experts_of_a_token_may_be_an_axis():
    axes = {"seq_len": 2, "num_experts": 4, "top_k": 1, "hidden_size": 4, "intermediate_size": 8}
    found = cost("moe", axes, {"x": "bfloat16[seq_len, hidden_size]"}, {"y": "bfloat16[seq_len, hidden_size]"})
    assert found.flops == 6 * 2 * 4 * 8


@pytest.mark.parametrize(("residual", "flops"), [(False, 5 * 12), (True, 6 * 12)])
def test_a_norm_counts_five_or_six_an_element(residual, flops):
    inputs = {"x": "bfloat16[b, h]", **({"residual": "bfloat16[b, h]"} if residual else {}), "w": "bfloat16[h]"}
    assert cost("rmsnorm", {"b": 3, "h": 4}, inputs, {"y": "bfloat16[b, h]"}).flops == flops


PAGED = {
    "q": "bfloat16[batch_size, num_qo_heads, head_dim]",
    "k_cache": "bfloat16[num_pages, page_size, num_kv_heads, head_dim]",
    "v_cache": "bfloat16[num_pages, page_size, num_kv_heads, head_dim]",
    "kv_indptr": "int32[len_indptr]",
    "kv_indices": "int32[used]",
    "kv_last_page_len": "int32[batch_size]",
}
PAGED_AXES = {
    "batch_size": 2,
    "num_qo_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "page_size": 4,
    "num_pages": 100,
    "len_indptr": 3,
    "used": 3,
}
PAGED_OUT = {"output": "bfloat16[batch_size, num_qo_heads, head_dim]"}


def test_decode_counts_the_tokens_in_use_and_not_the_cache():
    values = {"kv_indptr": [0, 1, 3], "kv_last_page_len": [3, 2]}  # 3 and 6 tokens
    found = cost("gqa_paged", PAGED_AXES, PAGED, PAGED_OUT, values)
    assert found.flops == 2 * (3 + 6) * 4 * (8 + 8)
    assert found.bytes == pytest.approx(2 * (2 * 64) + 2 * 9 * 2 * 8 * 2 + 4 * (3 + 3 + 2))


def test_unknown_lengths_have_no_cost():
    assert cost("gqa_paged", PAGED_AXES, PAGED, PAGED_OUT) is None
    assert cost("something", {"n": 1}, {"x": "float32[n]"}, {"y": "float32[n]"}) is None


def test_mla_multiplies_keys_twice_and_the_rotated_part_once():
    axes = {
        "batch_size": 1,
        "num_qo_heads": 2,
        "head_dim_ckv": 16,
        "head_dim_kpe": 4,
        "page_size": 1,
        "num_pages": 9,
        "len_indptr": 2,
        "used": 7,
    }
    inputs = {
        "q_nope": "bfloat16[batch_size, num_qo_heads, head_dim_ckv]",
        "ckv_cache": "bfloat16[num_pages, page_size, head_dim_ckv]",
        "kpe_cache": "bfloat16[num_pages, page_size, head_dim_kpe]",
        "kv_indptr": "int32[len_indptr]",
        "kv_indices": "int32[used]",
    }
    found = cost("mla_paged", axes, inputs, {"o": "bfloat16[batch_size]"}, {"kv_indptr": [0, 7]})
    assert found.flops == 2 * 7 * 2 * (2 * 16 + 4)
    assert found.bytes == pytest.approx(2 * 32 + 2 * 7 * 20 + 4 * 2 + 4 * 7 + 2)


def test_moe_expects_its_share_of_pairs_and_the_experts_that_are_active():
    axes = {"seq_len": 3, "num_experts": 8, "num_local_experts": 4, "hidden_size": 16, "intermediate_size": 32}
    inputs = {"x": "float8_e4m3fn[seq_len, hidden_size]", "gemm1_weights": "float8_e4m3fn[num_local_experts, 64, 16]"}
    found = cost("moe", axes, inputs, {"y": "bfloat16[seq_len, hidden_size]"}, name="moe_topk2_e8")
    assert found.flops == 6 * (3 * 2 * 4 / 8) * 16 * 32
    assert found.bytes == pytest.approx(48 + 4 * 64 * 16 * (1 - 0.75**3) + 96)


def test_lengths_are_read_from_the_blob(tmp_path):
    blob = tmp_path / "a.safetensors"
    save_file({"p": np.array([0, 4, 9], dtype=np.int32), "f": np.zeros(2, dtype=np.float32)}, blob)
    assert read_integers(blob, "p") == (0, 4, 9)
    assert read_integers(blob, "f") is None
    inputs = {"q": "bfloat16[2, 2, 8]", "k": "bfloat16[9, 2, 8]", "kv_indptr": "int32[3]"}
    definition = make_definition(
        op_type="gqa_ragged",
        axes={"num_qo_heads": 2, "head_dim": 8},
        inputs=inputs,
        outputs={"o": "bfloat16[4]"},
        reference="def run(q, k, p):\n    return q\n",
    )
    stored = {"type": "safetensors", "path": "a.safetensors", "tensor_key": "p"}
    workload = make_workload(axes={}, inputs={"kv_indptr": stored})
    assert cost_of_workload(definition, workload, tmp_path).flops == 2 * 9 * 2 * 16
    stated = make_workload(axes={}, inputs={"kv_indptr": stored}, cost={"flops": 5.0, "bytes": 7.0, "unit": "fp8"})
    assert cost_of_workload(definition, stated, tmp_path) == Cost(5.0, 7.0, "fp8")
