"""FLOPs and bytes of every routine, against counts by hand."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise

import pytest

from flashinfer_bench.routines.case.generated_entry import generate_entry
from flashinfer_bench.routines.table import ROUTINES, find_routine
from tests.routines.judged import make_case

ROWS = "--batch_size 2 --hidden_size 64"  # N = 128
DIT = "--batch_size 2 --hidden_size 3"  # 6 rows of 3072
ROPE = "--batch_size 2 --seq_len 3 --num_qo_heads 4 --num_kv_heads 2 --head_dim 8"  # T = 6
MAMBA = "--batch_size 2 --nheads 4 --dim 8 --dstate 8 --ngroups 4 --has_z"
HEADS = "--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads 4 --head_size 8"
VOCAB = "--batch_size 2 --vocab_size 10 --top_k 3"
SIZES = "--m 4 --n 128 --k 256"
MOE = "--num_tokens 4 --hidden_size 128 --intermediate_size 256 --num_experts 8 --top_k 2"
PAIR = "--num_tokens 4 --hidden_size 128 --intermediate_size 256 --num_experts 2 --top_k 2"
LAYERS = 128 * 256 * 9 / 16
PAGED = "--page_size 4 --batch_size 2 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 8 --s_kv 6"
MSA = "--batch_size 2 --s_qo 2 --s_kv 300 --num_qo_heads 4 --num_kv_heads 1"
MIXED = "--local_bs_list 2 --hidden_size 64 --dtype bfloat16"
PAIR_WORK = 6 * 128 * 256
ALL_PAIRS = 4 * 2
ACTIVE = 8 * (1 - (1 - 2 / 8) ** 4)

COUNTS = [
    # norm: x and residuals (in and out), weight, out, block scales, scale; 256 bytes are 128 numbers of bfloat16
    ("rmsnorm", ROWS, 640, 256 + 128 + 256),
    ("rmsnorm_quant", ROWS, 640, 256 + 128 + 128 + 4),
    ("fused_add_rmsnorm_quant", ROWS, 768, 3 * 256 + 128 + 128 + 4),
    ("fused_add_rmsnorm", ROWS, 768, 4 * 256 + 128),
    ("gemma_rmsnorm", f"{ROWS} --num_heads 3", 3 * 640, 3 * 256 + 128 + 3 * 256),
    ("gemma_fused_add_rmsnorm", ROWS, 768, 4 * 256 + 128),
    ("layernorm_quant", ROWS, 896, 256 + 2 * 256 + 128 + 4),
    ("fused_rmsnorm_silu", ROWS, 896, 256 + 128 + 256),
    # x, residual and both outputs; the parts of the time embedding that are read, each with its row of the table
    ("fused_dit_layernorm", DIT, 10 * 6 * 3072, 5 * 6 * 6144 + 3 * 12288),
    ("fused_dit_layernorm", f"{DIT} --dit_mode gate_residual_scale_shift", 13 * 6 * 3072, 7 * 6 * 6144 + 3 * 12288),
    ("fused_dit_layernorm", f"{DIT} --dit_mode residual_scale_shift", 11 * 6 * 3072, 6 * 6 * 6144 + 2 * 12288),
    ("fused_qk_rmsnorm_rope", f"{ROWS} --num_heads 1 --ppf 2 --pph 3 --ppw 1", 10 * 768, 6 * 2 * 768 + 2 * 128),
    ("rmsnorm_fp4quant", ROWS, 640, 256 + 128 + 64 + 8 + 4),
    ("add_rmsnorm_fp4quant", f"{ROWS} --output_both_sf_layouts", 768, 3 * 256 + 128 + 64 + 2 * 8 + 4),
    ("add_rmsnorm_fp4quant", f"{ROWS} --out_dtype mxfp4", 768, 3 * 256 + 128 + 64 + 4 + 4),
    # quantisation: x, out, block scales, global scale
    ("mxfp8_quantize", "--m 2 --k 64", 384, 256 + 128 + 4),
    ("mxfp4_quantize", "--m 2 --k 64", 384, 256 + 64 + 4),
    ("nvfp4_quantize", "--m 2 --k 64", 384, 256 + 64 + 8 + 4),
    ("nvfp4_quantize", "--m 2 --k 64 --per_token_activation", 384, 256 + 64 + 8 + 8),
    ("nvfp4_batched_quantize", "--batch_size 3 --m 2 --k 64", 3 * 384, 3 * (256 + 64 + 8) + 4),
    # GEMM: 2 m n k; factors, scales, out
    ("gemm_fp8_nt_groupwise", SIZES, 1 << 18, 1024 + 128 * 256 + 4 * (4 * 2 + 2) + 1024),
    ("group_gemm_fp8_nt_groupwise", f"{SIZES} --group_size 3", 3 << 18, 3 * (2048 + 128 * 256 + 40) + 16),
    ("bmm_fp8", "--batch_size 256 --m 1 --n 32 --k 64", 256 * 4096, 256 * (64 + 32 * 64 + 64) + 8),
    ("mm_fp4", "--m 2 --n 64 --k 128 --use_nvfp4", 4 * 64 * 128, 66 * 64 + 66 * 8 + 256 + 4),
    ("mm_bf16", "--m 2 --n 64 --k 32 --bias", 2 * 64 * 65, 66 * 64 + 2 * 64 + 256),
    ("bmm_bf16", "--batch_size 3 --m 2 --n 64 --k 32 --out_dtype float32", 3 * 8192, 3 * (66 * 64 + 512)),
    ("tinygemm_bf16", "--m 2 --n 64 --k 64", 4 * 64 * 64, 66 * 128 + 256),
    ("mm_fp8", "--m 2 --n 64 --k 128", 4 * 64 * 128, 66 * 128 + 256 + 4),
    ("bmm_mxfp8", "--batch_size 3 --m 2 --n 64 --k 64", 3 * 4 * 64 * 64, 3 * (66 * 64 + 66 * 2 + 256)),
    ("mm_mxfp8", "--m 2 --n 64 --k 128", 4 * 64 * 128, 66 * 128 + 66 * 4 + 256),
    ("mm_bf16_fp4", "--m 2 --n 64 --k 128", 4 * 64 * 128, 512 + 64 * 64 + 64 * 8 + 256 + 4),
    # ranks: additions, and bytes between ranks; 8 ranks, 6 of 2 groups, 3 groups of one
    ("allreduce_fusion", "--num_tokens 2 --hidden_size 64", 7 * 128, 2 * 7 * 256),
    ("allreduce_fusion", "--num_tokens 2 --hidden_size 64 --pattern ar_residual_rmsnorm", 13 * 128, 14 * 256),
    ("mixed_comm", f"{MIXED} --local_tp_size 3 --local_dp_size 2", 2 * 2 * 128, 2 * (2 + 2 + 3) * 256),
    ("mixed_comm", f"{MIXED} --local_tp_size 1 --local_dp_size 3 --op_name REDUCESCATTER", 3 * 2 * 128, 3 * 2 * 256),
    # sampling: rows in, what comes out
    ("softmax", VOCAB, 100, 80 + 80),
    ("sampling_from_probs", VOCAB, 0, 80 + 8),
    ("sampling_from_logits", f"{VOCAB} --input_dtype bfloat16", 0, 40 + 8),
    ("top_k_sampling_from_probs", VOCAB, 0, 80 + 8),
    ("top_p_sampling_from_probs", VOCAB, 0, 80 + 8),
    ("top_k_top_p_sampling_from_probs", VOCAB, 0, 80 + 8),
    ("top_k_top_p_sampling_from_logits", f"{VOCAB} --input_dtype float16", 0, 40 + 8),
    ("min_p_sampling_from_probs", VOCAB, 0, 80 + 8),
    ("top_k_renorm_probs", VOCAB, 0, 80 + 80),
    ("top_p_renorm_probs", VOCAB, 0, 80 + 80),
    ("top_k_mask_logits", f"{VOCAB} --input_dtype bfloat16", 0, 40 + 40),
    ("chain_speculative_sampling", f"{VOCAB} --num_speculate_tokens 3", 0, 240 + 24 + 320 + 32 + 16),
    ("top_k", f"{VOCAB} --input_dtype bfloat16", 0, 40 + 6 * (2 + 8)),
    ("top_k_page_table_transform", "--batch_size 2 --num_rows 4 --max_len 8 --top_k 3", 0, 128 + 64 + 32 + 48),
    ("top_k_ragged_transform", "--batch_size 2 --max_len 8 --top_k 3", 0, 64 + 16 + 24),
    ("top_k_varlen", "--batch_size 2 --max_seq_len 6 --top_k 6", 0, 48 + 8 + 48),
    # RoPE: q and k in and out, angles, positions or offsets
    ("apply_rope", ROPE, 864, 1152 + 4 * (3 + 2)),
    ("apply_rope_pos_ids", f"{ROPE} --rotary_dim 4", 432, 1152 + 24),
    ("apply_llama31_rope", ROPE, 864, 1152 + 4 * (3 + 2)),
    ("apply_llama31_rope_pos_ids", ROPE, 864, 1152 + 24),
    ("apply_rope_with_cos_sin_cache", ROPE, 864, 1152 + 96 + 24),
    ("mla_rope_quantize_fp8", f"{ROPE} --no_rope_dim 16", 720, 1440 + 720 + 96 + 24),
    ("rope_quantize_fp8", ROPE, 864, 576 + 288 + 96 + 24),
    ("rope_quantize_fp8_append_paged_kv_cache", f"{ROPE} --page_size 2", 864, 768 + 384 + 96 + 24 + 4 * 19),
    # Mamba: states in and out, x, z and out, steps, B and C, then A, D and bias; 512 numbers of states, 64 of x and B
    ("selective_state_update", MAMBA, 5 * 512, 2 * 1024 + 3 * 128 + 32 + 2 * 128 + 3 * 16),
    (
        "selective_state_update",
        f"{MAMBA} --cache_steps 3 --varlen --dt_softplus",
        3 * 5 * 512,
        (1 + 3) * 1024 + 3 * (3 * 128 + 32 + 2 * 128) + 3 * 16,
    ),
    # gated delta rule: 12 heads of q, k, v and out, states, gates, A_log and bias, offsets; 512 numbers of states
    ("gated_delta_rule_decode", HEADS, 6 * 512, 2 * 12 * 16 + 2 * 2048 + 2 * 16 + 2 * 16),
    (
        "gated_delta_rule_mtp",
        f"{HEADS} --cache_intermediate_states",
        2 * 6 * 512,
        2 * (2 * 12 * 16 + 2 * 16) + (1 + 2) * 2048 + 2 * 16,
    ),
    ("chunk_gated_delta_rule", f"{HEADS} --s_qo 3", 3 * 4 * 512, 6 * (12 * 16 + 2 * 16) + 2048 + 24),
    (
        "recurrent_kda_prefill",
        "--batch_size 2 --s_qo 3 --num_q_heads 4 --head_size 8 --has_initial_state --packed",
        3 * 6 * 512,
        6 * (5 * 4 * 16 + 8) + 2 * 1024 + 16 + 128 + 12,
    ),
    # attention: 2 pairs heads (qk + vo); q and o, k and v, page table, lengths
    ("BatchDecodeWithPagedKVCacheWrapper", PAGED, 2 * 12 * 4 * 16, 256 + 768 + 4 * (4 + 2)),
    (
        "BatchPrefillWithPagedKVCacheWrapper",
        f"{PAGED} --s_qo 3 --causal --kv_dtype fp8_e4m3",
        2 * (2 * (4 + 5 + 6)) * 4 * 16,
        768 + 384 + 4 * (4 + 2) + 4 * 3,
    ),
    (
        "BatchDecodeWithPagedKVCacheWrapper",
        f"{PAGED} --head_dim_qk 64 --q_dtype fp8_e4m3 --kv_dtype nvfp4 --out_dtype bfloat16",
        2 * 12 * 4 * 128,
        512 * 3 + 12 * 2 * 128 * 9 / 16 + 4 * (4 + 2),
    ),
    (
        "BatchPrefillWithRaggedKVCacheWrapper",
        "--batch_size 2 --s_qo 3 --s_kv 6 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 12 --head_dim_vo 8",
        2 * (2 * 3 * 6) * 4 * 20,
        960 + 960 + 8 * 3,
    ),
    (
        "BatchMLAPagedAttentionWrapper",
        "--page_size 4 --batch_size 2 --s_kv 6 --num_qo_heads 4 --num_kv_heads 1 --head_dim_ckv 16 --head_dim_kpe 8",
        2 * 12 * 4 * (2 * 16 + 8),
        640 + 576 + 4 * (4 + 2),
    ),
    # MSA: 256 for each score, 512 for each attended key; scales of 512 and 300 rows, block lists, and a page table
    ("MSAProxyScore", f"{MSA} --no-causal", 256 * 4 * 1200, 4096 + 256 * 600 + 4 * 4 * 3 * 4),
    ("MSAProxyScore", f"{MSA} --q_dtype nvfp4", 256 * 4 * 2 * 599, 0.5625 * 128 * (16 + 600) + 4 * 4 * 3 * 4),
    ("MSASparseAttention", f"{MSA} --topk 2", 512 * 4 * 2 * (171 + 172), 2 * 4096 + 512 * 600 + 4 * 2 * 4),
    ("MSASparseDecode", f"{MSA} --s_qo 1 --topk 2 --kv_layout paged", 512 * 8 * 172, 4096 + 512 * 400 + 4 * (4 + 6)),
    ("MSAPipeline", MSA, (256 + 512 * 4) * 2 * 599, 1024 + 2 * 4096 + 3 * 256 * 600),
    # MoE: logits, tokens, out, weights of the experts that are expected to be active
    (
        "trtllm_fp8_block_scale_moe",
        MOE,
        ALL_PAIRS * PAIR_WORK,
        4 * 8 * 4 + 4 * (128 + 4 + 256) + ACTIVE * 3 * 128 * 256 * (1 + 4 / 128**2),
    ),
    (
        "trtllm_fp8_per_tensor_scale_moe",
        f"{MOE} --local_num_experts 4 --routing_method renormalize",
        ALL_PAIRS / 2 * PAIR_WORK,
        4 * 8 * 2 + 4 * (128 + 256) + ACTIVE / 2 * (3 * 128 * 256 + 12),
    ),
    (
        "trtllm_fp4_block_scale_moe",
        f"{MOE} --use_routing_bias",
        ALL_PAIRS * PAIR_WORK,
        4 * 8 * 4 + 2 * 8 + 4 * (128 * 9 / 16 + 256) + ACTIVE * (3 * 128 * 256 * 9 / 16 + 12),
    ),
    (
        "trtllm_fp4_block_scale_moe",
        f"{MOE} --fp4_mode mxfp4_mxfp8",
        ALL_PAIRS * PAIR_WORK,
        4 * 8 * 4 + 4 * (128 * 33 / 32 + 256) + ACTIVE * 3 * 128 * 256 * 17 / 32,
    ),
    # nvfp4 experts that are all active: tokens, experts with their factors, layers with their factors, out
    (
        "cute_dsl_fp4_block_scale_moe",
        PAIR,
        ALL_PAIRS * PAIR_WORK,
        4 * 72 + 8 * (4 + 4) + 2 * (LAYERS * 3 + 8) + 4 * 256,
    ),
    (
        "unified_nvfp4_moe",
        f"{PAIR} --local_num_experts 1 --local_expert_offset 1",
        4 * PAIR_WORK,
        4 * 72 + 8 * (4 + 4) + LAYERS * 3 + 8 + 4 * 256,
    ),
    (
        "b12x_fused_moe",
        f"{PAIR} --activation_type Relu2",
        ALL_PAIRS * PAIR_WORK * 2 / 3,
        4 * 256 + 8 * (4 + 4) + 2 * (LAYERS * 2 + 8) + 4 * 256,
    ),
    # tokens, three slices of float32, indices and weights of pairs, adapters, both matrices of two experts
    (
        "bgmv_moe",
        "--num_tokens 4 --hidden_size 64 --intermediate_size 1 --num_experts 2 --top_k 2 --num_loras 1 --rank 8 "
        "--num_slices 3",
        3 * ALL_PAIRS * 4 * 64 * 8,
        4 * (128 + 3 * 256) + 8 * (8 + 8 + 4) + 4 * 8 + 3 * 2 * 2 * (2 * 64 * 8),
    ),
]


@pytest.mark.parametrize(("routine", "flags", "flops", "nbytes"), COUNTS, ids=[count[0] for count in COUNTS])
def test_a_routine_costs_what_a_hand_count_gives(routine, flags, flops, nbytes):
    cost = make_case(routine, flags).cost
    assert cost.flops == pytest.approx(flops, rel=1e-12)
    assert cost.bytes == pytest.approx(nbytes, rel=1e-12)


def test_every_routine_is_counted():
    counted = {count[0] for count in COUNTS} | {"cutlass_fused_moe", "moe_a2a_dispatch_combine"}
    assert counted == set(ROUTINES)


def test_cutlass_counts_the_pairs_and_experts_of_its_rank():
    case = make_case("cutlass_fused_moe", f"{MOE} --ep_size 2 --ep_rank 1 --tp_size 2")
    chosen = case.inputs["token_selected_experts"].value
    here = chosen[chosen >= 4].tolist()
    weights = len(set(here)) * 3 * 128 * 128 * 2
    assert (case.cost.flops, case.cost.bytes) == (len(here) * 6 * 128 * 128, 4 * (128 * 4 + 16) + weights)


def test_tokens_that_stay_on_their_rank_do_not_travel():
    case = make_case("moe_a2a_dispatch_combine", "--num_tokens 2 --hidden_size 128 --num_experts 8 --top_k 2")
    ranks = case.inputs["token_selected_experts"].value  # one expert a rank
    trips = sum(len(set(row) - {rank}) for rank, tokens in enumerate(ranks.tolist()) for row in tokens)
    assert case.cost.bytes == trips * (128 * 2 + 8 * 2 + 128 * 2)


@pytest.mark.parametrize(("quant", "size"), [("nvfp4", 9 / 16), ("fp8_block_scale", 1 + 4 / 128**2)])
def test_real_experts_add_their_products_and_the_weights_of_those_that_are_chosen(quant, size):
    flags = f"--num_tokens 2 --hidden_size 128 --num_experts 64 --top_k 2 --quant_dtype {quant}"
    plain = make_case("moe_a2a_dispatch_combine", flags).cost
    case = make_case("moe_a2a_dispatch_combine", f"{flags} --real_math --intermediate_size 256")
    active = len(set(case.inputs["token_selected_experts"].value.reshape(-1).tolist()))
    assert active < 8 * 2 * 2  # of 32 pairs some share an expert
    assert (plain.flops, case.cost.flops) == (0, 8 * 2 * 2 * PAIR_WORK)
    assert case.cost.bytes - plain.bytes == pytest.approx(active * 3 * 128 * 256 * size)


def test_random_lengths_are_counted_as_they_are():
    flags = "--batch_size 16 --s_qo 64 --s_kv 64 --num_qo_heads 2 --num_kv_heads 2 --head_dim_qk 8 --causal"
    case = make_case("BatchPrefillWithRaggedKVCacheWrapper", f"{flags} --random_actual_seq_len")
    bounds = case.inputs["qo_indptr"].value.tolist()
    lengths = [end - start for start, end in pairwise(bounds)]
    assert case.cost.flops == sum(2 * length * (length + 1) // 2 * 2 * 16 for length in lengths)
    assert 1 <= min(lengths) < max(lengths) <= 64


def test_a_saved_case_has_its_cost():
    case = make_case("mm_fp4", "--m 2 --n 64 --k 128 --use_nvfp4")
    assert generate_entry(find_routine("mm_fp4"), case, ()).workload.cost.model_dump() == asdict(case.cost)
