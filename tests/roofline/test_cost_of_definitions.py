"""What definitions cost, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from flashinfer_bench.roofline.definitions import count_pairs, find_cost
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


@pytest.mark.parametrize(("residual", "flops"), [(False, 5 * 12), (True, 6 * 12)])
def test_a_norm_counts_five_or_six_an_element(residual, flops):
    inputs = {"x": "bfloat16[b, h]", **({"residual": "bfloat16[b, h]"} if residual else {}), "w": "bfloat16[h]"}
    assert cost("rmsnorm", {"b": 3, "h": 4}, inputs, {"y": "bfloat16[b, h]"}).flops == flops


def test_causal_pairs_leave_out_what_comes_later():
    assert count_pairs([3], [5], causal=True) == 3 + 4 + 5
    assert count_pairs([3, 1], [5, 2], causal=False) == 15 + 2


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
    inputs = {"q": "bfloat16[4, 2, 8]", "k": "bfloat16[9, 2, 8]", "kv_indptr": "int32[3]"}
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
