"""Calls of FlashInfer's RoPE kernels."""

from typing import Any

import flashinfer
import torch
from torch import Tensor

ROTARY_DIM = 128
HEAD_DIM = 128
INTERLEAVE = False
ROPE_SCALE = 1.0
ROPE_THETA = 1e4
LOW_FREQ_FACTOR = 1.0
HIGH_FREQ_FACTOR = 4.0
OLD_CONTEXT_LEN = 8192
QUANTISER = "rope_quantize_fp8"
OUT_DTYPE = "float8_e4m3fn"
PAGE_SIZE = 16
KV_LAYOUT = "NHD"
ENABLE_PDL = False
PLAIN: dict[str, Any] = {
    "rotary_dim": ROTARY_DIM,
    "interleave": INTERLEAVE,
    "rope_scale": ROPE_SCALE,
    "rope_theta": ROPE_THETA,
}
LLAMA31: dict[str, Any] = {
    **PLAIN,
    "low_freq_factor": LOW_FREQ_FACTOR,
    "high_freq_factor": HIGH_FREQ_FACTOR,
    "old_context_len": OLD_CONTEXT_LEN,
}
QUANTISED: dict[str, Any] = {
    "is_neox": not INTERLEAVE,
    "quantize_dtype": getattr(torch, OUT_DTYPE),
    "enable_pdl": ENABLE_PDL,
}
APPENDED: dict[str, Any] = {**QUANTISED, "page_size": PAGE_SIZE, "kv_layout": KV_LAYOUT}


def apply_rope(q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor) -> Any:
    """apply_rope."""
    return flashinfer.apply_rope(q, k, indptr, offsets, **PLAIN)


def apply_rope_pos_ids(q: Tensor, k: Tensor, pos_ids: Tensor) -> Any:
    """apply_rope_pos_ids."""
    return flashinfer.apply_rope_pos_ids(q, k, pos_ids, **PLAIN)


def apply_llama31_rope(q: Tensor, k: Tensor, indptr: Tensor, offsets: Tensor) -> Any:
    """apply_llama31_rope."""
    return flashinfer.apply_llama31_rope(q, k, indptr, offsets, **LLAMA31)


def apply_llama31_rope_pos_ids(q: Tensor, k: Tensor, pos_ids: Tensor) -> Any:
    """apply_llama31_rope_pos_ids."""
    return flashinfer.apply_llama31_rope_pos_ids(q, k, pos_ids, **LLAMA31)


def apply_rope_with_cos_sin_cache(q: Tensor, k: Tensor, pos_ids: Tensor, cos_sin_cache: Tensor) -> Any:
    """apply_rope_with_cos_sin_cache; the cache is float32, as the library wants it."""
    return flashinfer.apply_rope_with_cos_sin_cache(pos_ids, q, k, HEAD_DIM, cos_sin_cache, is_neox=not INTERLEAVE)


def rope_quantize_fp8(
    q_rope: Tensor,
    k_rope: Tensor,
    q_nope: Tensor,
    k_nope: Tensor,
    pos_ids: Tensor,
    cos_sin_cache: Tensor,
    q_rope_out: Tensor,
    k_rope_out: Tensor,
    q_nope_out: Tensor,
    k_nope_out: Tensor,
) -> None:
    """rope_quantize_fp8, or mla_rope_quantize_fp8 by QUANTISER."""
    outputs = {"q_rope_out": q_rope_out, "k_rope_out": k_rope_out, "q_nope_out": q_nope_out, "k_nope_out": k_nope_out}
    quantise = getattr(flashinfer.rope, QUANTISER)
    quantise(q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, **outputs, **QUANTISED)


def rope_quantize_fp8_all(
    q_rope: Tensor, k_rope: Tensor, pos_ids: Tensor, cos_sin_cache: Tensor, q_rope_out: Tensor, k_rope_out: Tensor
) -> None:
    """rope_quantize_fp8 where every dimension is rotated."""
    outputs = {"q_rope_out": q_rope_out, "k_rope_out": k_rope_out}
    flashinfer.rope.rope_quantize_fp8(q_rope, k_rope, None, None, cos_sin_cache, pos_ids, **outputs, **QUANTISED)


def rope_quantize_fp8_append(
    q_rope: Tensor,
    k_rope: Tensor,
    q_nope: Tensor,
    k_nope: Tensor,
    v: Tensor,
    pos_ids: Tensor,
    cos_sin_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    q_rope_out: Tensor,
    q_nope_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """rope_quantize_fp8_append_paged_kv_cache."""
    tokens = (q_rope, k_rope, q_nope, k_nope, v, cos_sin_cache, pos_ids)
    pages = ((k_cache, v_cache), kv_indices, kv_indptr, batch_indices, positions)
    flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        *tokens, *pages, q_rope_out=q_rope_out, q_nope_out=q_nope_out, **APPENDED
    )


def rope_quantize_fp8_append_all(
    q_rope: Tensor,
    k_rope: Tensor,
    v: Tensor,
    pos_ids: Tensor,
    cos_sin_cache: Tensor,
    kv_indices: Tensor,
    kv_indptr: Tensor,
    batch_indices: Tensor,
    positions: Tensor,
    q_rope_out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
) -> None:
    """The same where every dimension is rotated."""
    tokens = (q_rope, k_rope, None, None, v, cos_sin_cache, pos_ids)
    pages = ((k_cache, v_cache), kv_indices, kv_indptr, batch_indices, positions)
    flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(*tokens, *pages, q_rope_out=q_rope_out, **APPENDED)
