"""Every routine at a small size: its arguments, as one would type them."""

import csv
import shlex

from flashinfer_bench.cli.perf.cases import read_requests
from flashinfer_bench.routines.case.support import Platform

MSA = "--batch_size 2 --s_qo 5 --s_kv 260 --num_qo_heads 4 --num_kv_heads 2"
MIXED = "--local_bs_list 3 --hidden_size 32 --dtype bfloat16"
SMALL = {
    "rmsnorm": "--batch_size 5 --hidden_size 96",
    "rmsnorm_quant": "--batch_size 8 --hidden_size 128 --scale 0.5",
    "fused_add_rmsnorm_quant": "--batch_size 8 --hidden_size 128 --out_dtype fp8_e5m2 --scale 2",
    "fused_add_rmsnorm": "--batch_size 5 --hidden_size 96 --input_dtype float16",
    "gemma_rmsnorm": "--batch_size 5 --hidden_size 96",
    "gemma_fused_add_rmsnorm": "--batch_size 5 --hidden_size 96 --enable_pdl",
    "layernorm_quant": "--batch_size 16 --hidden_size 512 --scale 0.5",
    "fused_rmsnorm_silu": "--batch_size 5 --hidden_size 96",
    "fused_dit_layernorm": "--batch_size 2 --hidden_size 2",
    "fused_qk_rmsnorm_rope": "--batch_size 2 --hidden_size 128 --num_heads 2 --ppf 2 --pph 3 --ppw 4",
    "rmsnorm_fp4quant": "--batch_size 8 --hidden_size 128 --is_sf_swizzled_layout --use_global_scale",
    "add_rmsnorm_fp4quant": "--batch_size 8 --hidden_size 128 --out_dtype mxfp4",
    "selective_state_update": "--batch_size 3 --nheads 4 --dim 64 --dstate 64 --ngroups 2 --has_z --dt_softplus",
    "gated_delta_rule_decode": "--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads 4",
    "gated_delta_rule_mtp": "--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads 4",
    "chunk_gated_delta_rule": "--batch_size 2 --s_qo 5 --num_q_heads 2 --num_k_heads 2 --num_v_heads 4",
    "recurrent_kda_prefill": "--batch_size 2 --s_qo 5 --num_q_heads 2 --packed --has_initial_state",
    "apply_rope": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32 --rotary_dim 16",
    "apply_rope_pos_ids": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32 --interleave",
    "apply_llama31_rope": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32 --rope_scale 8",
    "apply_llama31_rope_pos_ids": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32",
    "apply_rope_with_cos_sin_cache": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32",
    "mla_rope_quantize_fp8": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 1 --head_dim 32 "
    "--no_rope_dim 64",
    "rope_quantize_fp8": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32",
    "rope_quantize_fp8_append_paged_kv_cache": "--batch_size 2 --seq_len 7 --num_qo_heads 4 --num_kv_heads 2 "
    "--head_dim 32 --no_rope_dim 16 --page_size 4 --kv_layout HND --quant_dtype fp8_e5m2",
    "softmax": "--batch_size 3 --vocab_size 100 --temperature 0.7 --input_dtype bfloat16",
    "sampling_from_probs": "--batch_size 4 --vocab_size 96",
    "sampling_from_logits": "--batch_size 4 --vocab_size 96 --input_dtype float16",
    "top_k_sampling_from_probs": "--batch_size 4 --vocab_size 96 --top_k 20",
    "top_p_sampling_from_probs": "--batch_size 4 --vocab_size 96",
    "top_k_top_p_sampling_from_probs": "--batch_size 4 --vocab_size 96 --filter_apply_order joint",
    "top_k_top_p_sampling_from_logits": "--batch_size 4 --vocab_size 96 --top_k 30 --top_p 0.8",
    "min_p_sampling_from_probs": "--batch_size 4 --vocab_size 96 --min_p 0.02",
    "top_k_renorm_probs": "--batch_size 4 --vocab_size 96 --top_k 20",
    "top_p_renorm_probs": "--batch_size 4 --vocab_size 96 --top_p 0.8",
    "top_k_mask_logits": "--batch_size 4 --vocab_size 96 --top_k 20 --input_dtype bfloat16",
    "chain_speculative_sampling": "--batch_size 8 --vocab_size 64 --num_speculate_tokens 3",
    "top_k": "--batch_size 4 --vocab_size 96 --top_k 20 --input_dtype bfloat16",
    "top_k_page_table_transform": "--batch_size 3 --num_rows 6 --max_len 64 --top_k 8",
    "top_k_ragged_transform": "--batch_size 3 --max_len 64 --top_k 8",
    "top_k_varlen": "--batch_size 5 --max_seq_len 96 --top_k 20 --input_dtype bfloat16",
    "gemm_fp8_nt_groupwise": "--m 8 --n 128 --k 256 --scale_major_mode K",
    "group_gemm_fp8_nt_groupwise": "--m 4 --n 128 --k 128 --group_size 3",
    "bmm_fp8": "--batch_size 3 --m 5 --n 48 --k 64 --mat2_dtype fp8_e5m2 --out_dtype float16",
    "mm_fp4": "--m 9 --n 64 --k 128 --use_nvfp4",
    "mm_bf16": "--m 5 --n 48 --k 128 --bias",
    "bmm_bf16": "--batch_size 3 --m 5 --n 48 --k 64 --out_dtype float32",
    "tinygemm_bf16": "--m 2 --n 48 --k 64 --bias --enable_pdl",
    "mm_fp8": "--m 5 --n 64 --k 128",
    "bmm_mxfp8": "--batch_size 2 --m 128 --n 128 --k 128",
    "mm_mxfp8": "--m 9 --n 128 --k 256",
    "mm_bf16_fp4": "--m 9 --n 64 --k 112",
    "mxfp8_quantize": "--m 8 --k 128",
    "mxfp4_quantize": "--m 8 --k 128 --input_dtype float16",
    "nvfp4_quantize": "--m 8 --k 128 --global_scale 4 --sf_layout 8x4",
    "nvfp4_batched_quantize": "--batch_size 2 --m 8 --k 128",
    "BatchDecodeWithPagedKVCacheWrapper": "--page_size 4 --batch_size 3 --s_kv 30 --num_qo_heads 4 --num_kv_heads 2 "
    "--head_dim_qk 32 --random_actual_seq_len",
    "BatchPrefillWithPagedKVCacheWrapper": "--page_size 4 --batch_size 3 --s_qo 8 --s_kv 30 --num_qo_heads 4 "
    "--num_kv_heads 2 --head_dim_qk 32 --random_actual_seq_len --causal --kv_dtype fp8_e4m3",
    "BatchPrefillWithRaggedKVCacheWrapper": "--batch_size 3 --s_qo 16 --s_kv 16 --num_qo_heads 4 --num_kv_heads 2 "
    "--head_dim_qk 48 --head_dim_vo 32 --random_actual_seq_len --causal",
    "BatchMLAPagedAttentionWrapper": "--page_size 4 --batch_size 2 --s_kv 30 --num_qo_heads 4 --num_kv_heads 1 "
    "--head_dim_ckv 64 --head_dim_kpe 16 --random_actual_seq_len",
    "MSAProxyScore": f"{MSA} --max_k_tiles 4",
    "MSASparseAttention": f"{MSA} --topk 2 --kv_layout paged",
    "MSASparseDecode": f"{MSA} --topk 2 --kv_layout packed",
    "MSAPipeline": f"{MSA} --s_kv 2300 --kv_layout packed --kv_dtype fp8_e4m3",
    "trtllm_fp4_block_scale_moe": "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 4 --top_k 2 "
    "--routing_method renormalize --activation-type Geglu",
    "trtllm_fp8_block_scale_moe": "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 8 --top_k 2 "
    "--n_group 4 --topk_group 2 --use_routing_bias --local_num_experts 6 --local_expert_offset 1",
    "trtllm_fp8_per_tensor_scale_moe": "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 4 "
    "--top_k 1 --routing_method llama4 --use_routing_bias --use_routing_scales_on_input",
    "cutlass_fused_moe": "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 4 --top_k 2 "
    "--cutlass_variant nvfp4",
    **dict.fromkeys(
        ("cute_dsl_fp4_block_scale_moe", "unified_nvfp4_moe"),
        "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 8 --top_k 3 --local_num_experts 6 "
        "--local_expert_offset 1",
    ),
    "b12x_fused_moe": "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 4 --top_k 2",
    "bgmv_moe": "--num_tokens 16 --hidden_size 384 --intermediate_size 1 --num_experts 4 --top_k 2 --rank 8 "
    "--num_loras 3 --num_slices 2",
    "moe_a2a_dispatch_combine": "--num_tokens 3 --hidden_size 128 --num_experts 16 --top_k 3 --quant_dtype fp8",
    "allreduce_fusion": "--num_tokens 16 --hidden_size 96 --pattern ar_residual_rmsnorm",
    "mixed_comm": f"{MIXED} --local_tp_size 2 --local_dp_size 2 --inter_tp_size 2",
}
"""Routine to its flags."""

MOE = "--num_tokens 16 --hidden_size 128 --intermediate_size 128 --num_experts 4 --top_k 2"
PREFILL = "--page_size 4 --batch_size 2 --s_qo 8 --s_kv 8 --num_qo_heads 4 --num_kv_heads 4 --head_dim_qk 32"
VARIANTS = [
    ("cutlass_fused_moe", f"{MOE} --tp_size 2 --ep_size 2 --ep_rank 0"),
    ("cutlass_fused_moe", f"{MOE} --cutlass_variant fp8 --gated_act geglu"),
    ("cutlass_fused_moe", f"{MOE} --cutlass_variant nvfp4 --quantized_input"),
    ("trtllm_fp8_block_scale_moe", f"{MOE} --routing_method renormalize_naive"),
    *(
        ("trtllm_fp4_block_scale_moe", f"{MOE} --routing_method renormalize --fp4_mode {mode}")
        for mode in ("mxfp4_mxfp8", "mxfp4_bf16")
    ),
    ("cute_dsl_fp4_block_scale_moe", f"{MOE} --activation-type Relu2 --use_functional_api"),
    ("b12x_fused_moe", f"{MOE} --activation-type GegluTanh --use_functional_api"),
    ("b12x_fused_moe", f"{MOE} --activation-type Relu2"),
    ("b12x_fused_moe", f"{MOE} --b12x_quant_mode w4a16"),
    ("BatchPrefillWithPagedKVCacheWrapper", PREFILL),
    ("BatchPrefillWithPagedKVCacheWrapper", f"{PREFILL} --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3 --out_dtype bfloat16"),
    ("BatchDecodeWithPagedKVCacheWrapper", f"{PREFILL} --s_qo 1 --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3"),
    ("BatchDecodeWithPagedKVCacheWrapper", f"{PREFILL} --s_qo 1 --out_dtype float16 --head_dim_qk 64 --page_size 16"),
    *(
        (routine, f"{PREFILL} --head_dim_qk 64 --q_dtype fp8_e4m3 --kv_dtype nvfp4 {flags}")
        for routine, flags in (
            ("BatchDecodeWithPagedKVCacheWrapper", "--s_qo 1 --page_size 16"),
            ("BatchPrefillWithPagedKVCacheWrapper", "--causal --out_dtype float16"),
        )
    ),
    (
        "BatchPrefillWithRaggedKVCacheWrapper",
        "--batch_size 2 --s_qo 8 --s_kv 8 --num_qo_heads 4 --num_kv_heads 2 --head_dim_qk 128 --enable_pdl",
    ),
    (
        "BatchMLAPagedAttentionWrapper",
        "--page_size 16 --batch_size 2 --s_kv 30 --num_qo_heads 2 --num_kv_heads 1 --head_dim_ckv 512 "
        "--head_dim_kpe 80 --mla_is_var_seq auto --mla_cute_dsl_impl modular --autotune",
    ),
    ("moe_a2a_dispatch_combine", "--num_tokens 3 --hidden_size 128 --num_experts 8 --top_k 3 --quant_dtype nvfp4"),
    ("allreduce_fusion", "--num_tokens 40 --hidden_size 96"),
    ("allreduce_fusion", "--num_tokens 40 --hidden_size 96 --pattern ar_residual_rmsnorm_dynamic_fp8"),
    ("mixed_comm", f"{MIXED} --local_tp_size 1 --local_dp_size 3 --op_name REDUCESCATTER"),
    *(
        (
            "moe_a2a_dispatch_combine",
            f"--num_tokens 3 --hidden_size 128 --num_experts 8 --top_k 3 --quant_dtype {quant} "
            "--real_math --intermediate_size 256",
        )
        for quant in ("nvfp4", "fp8_block_scale")
    ),
    ("MSAProxyScore", f"{MSA} --kv_layout paged --q_dtype nvfp4"),
    ("MSAProxyScore", f"{MSA} --no-causal"),
    ("MSASparseDecode", f"{MSA} --q_dtype fp8_e4m3 --kv_dtype fp8_e4m3 --no-causal --topk 2"),
    ("MSAPipeline", f"{MSA} --s_kv 2300 --q_dtype float16 --kv_dtype float16"),
    ("mm_fp4", "--m 9 --n 64 --k 128"),
    ("mm_bf16", "--m 5 --n 48 --k 64 --out_dtype float16 --autotune"),
    ("bmm_mxfp8", "--batch_size 3 --m 5 --n 40 --k 96 --out_dtype float16"),
    ("tinygemm_bf16", "--m 1 --n 16 --k 64"),
    ("gemm_fp8_nt_groupwise", "--m 8 --n 256 --k 128 --tile_size 64 --out_dtype float16"),
    ("rmsnorm", "--batch_size 3 --num_heads 4 --hidden_size 64 --input_dtype float16"),
    ("gemma_rmsnorm", "--batch_size 3 --num_heads 4 --hidden_size 64"),
    ("layernorm_quant", "--batch_size 16 --hidden_size 512 --out_dtype fp8_e5m2"),
    *(
        ("fused_dit_layernorm", f"--batch_size 2 --hidden_size 2 --dit_mode {mode}")
        for mode in ("gate_residual_scale_shift", "residual_scale_shift")
    ),
    ("rmsnorm_fp4quant", "--batch_size 128 --hidden_size 128 --out_dtype mxfp4 --is_sf_swizzled_layout"),
    ("rmsnorm_fp4quant", "--batch_size 3 --num_heads 4 --hidden_size 64 --output_both_sf_layouts"),
    ("add_rmsnorm_fp4quant", "--batch_size 128 --hidden_size 128 --out_dtype mxfp4 --output_both_sf_layouts"),
    ("top_k_varlen", "--batch_size 3 --max_seq_len 1024"),
    ("mxfp8_quantize", "--m 8 --k 64 --no_sf_swizzled_layout"),
    ("nvfp4_quantize", "--m 8 --k 64 --sf_layout linear --sf_vec_size 32"),
    ("nvfp4_quantize", "--m 8 --k 128 --per_token_activation --global_scale 0.01"),
    *(
        ("selective_state_update", f"--batch_size 2 --nheads 8 --dim 64 --dstate 64 --ngroups 1 --cache_steps 3 {more}")
        for more in ("--state_dtype float16", "--varlen --weight_dtype bfloat16 --state_dtype float32")
    ),
    *(
        (f"gated_delta_rule_{one}", f"--batch_size 2 --num_q_heads 2 --num_k_heads 2 --num_v_heads 2 {more}")
        for one, more in (
            ("decode", "--state_layout nontranspose --no_qk_l2norm --input_dtype float16"),
            ("decode", "--state_dtype bfloat16 --pool_mode split"),
            ("mtp", "--update_state --seq_len 3"),
            ("mtp", "--update_state --cache_intermediate_states"),
            ("mtp", "--state_dtype bfloat16"),
        )
    ),
    ("chunk_gated_delta_rule", "--batch_size 1 --s_qo 70 --num_q_heads 4 --num_k_heads 2 --num_v_heads 2"),
    ("recurrent_kda_prefill", "--batch_size 2 --s_qo 5 --num_q_heads 2 --lower_bound -1"),
    ("rope_quantize_fp8", "--batch_size 2 --seq_len 5 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32 --no_rope_dim 8"),
    (
        "rope_quantize_fp8_append_paged_kv_cache",
        "--batch_size 2 --seq_len 8 --num_qo_heads 4 --num_kv_heads 2 --head_dim 32 --page_size 4",
    ),
]
"""Routine and flags that take another way through it."""


def ask(words, platform=None, testlist=None):
    """Return the cases that a call of `perf` asks for, on a CPU if no platform is given."""
    platform = platform or Platform("a CPU", None, {}, frozenset())
    return read_requests(shlex.split(words), str(testlist) if testlist is not None else None, platform)


def read_rows(path):
    """Return the rows of a CSV, each a dict of texts."""
    with path.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))
