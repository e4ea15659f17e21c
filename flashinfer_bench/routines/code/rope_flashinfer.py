"""Calls of FlashInfer's RoPE kernels."""

from typing import Any

import flashinfer
import torch

ROTARY_DIM = 128
HEAD_DIM = 128
INTERLEAVE = False
ROPE_SCALE = 1.0
ROPE_THETA = 1e4
LOW_FREQ_FACTOR = 1.0
HIGH_FREQ_FACTOR = 4.0
OLD_CONTEXT_LEN = 8192
OUT_DTYPE = "float8_e4m3fn"
PAGE_SIZE = 16
KV_LAYOUT = "NHD"
ENABLE_PDL = False


def apply_rope(q: torch.Tensor, k: torch.Tensor, indptr: torch.Tensor, offsets: torch.Tensor) -> Any:
    """apply_rope."""
    return flashinfer.apply_rope(
        q,
        k,
        indptr,
        offsets,
        rotary_dim=ROTARY_DIM,
        interleave=INTERLEAVE,
        rope_scale=ROPE_SCALE,
        rope_theta=ROPE_THETA,
    )


def apply_rope_pos_ids(q: torch.Tensor, k: torch.Tensor, pos_ids: torch.Tensor) -> Any:
    """apply_rope_pos_ids."""
    return flashinfer.apply_rope_pos_ids(
        q, k, pos_ids, rotary_dim=ROTARY_DIM, interleave=INTERLEAVE, rope_scale=ROPE_SCALE, rope_theta=ROPE_THETA
    )


def apply_llama31_rope(q: torch.Tensor, k: torch.Tensor, indptr: torch.Tensor, offsets: torch.Tensor) -> Any:
    """apply_llama31_rope."""
    return flashinfer.apply_llama31_rope(
        q,
        k,
        indptr,
        offsets,
        rotary_dim=ROTARY_DIM,
        interleave=INTERLEAVE,
        rope_scale=ROPE_SCALE,
        rope_theta=ROPE_THETA,
        low_freq_factor=LOW_FREQ_FACTOR,
        high_freq_factor=HIGH_FREQ_FACTOR,
        old_context_len=OLD_CONTEXT_LEN,
    )


def apply_llama31_rope_pos_ids(q: torch.Tensor, k: torch.Tensor, pos_ids: torch.Tensor) -> Any:
    """apply_llama31_rope_pos_ids."""
    return flashinfer.apply_llama31_rope_pos_ids(
        q,
        k,
        pos_ids,
        rotary_dim=ROTARY_DIM,
        interleave=INTERLEAVE,
        rope_scale=ROPE_SCALE,
        rope_theta=ROPE_THETA,
        low_freq_factor=LOW_FREQ_FACTOR,
        high_freq_factor=HIGH_FREQ_FACTOR,
        old_context_len=OLD_CONTEXT_LEN,
    )


def apply_rope_with_cos_sin_cache(
    q: torch.Tensor, k: torch.Tensor, pos_ids: torch.Tensor, cos_sin_cache: torch.Tensor
) -> Any:
    """apply_rope_with_cos_sin_cache; the cache is float32, as the library wants it."""
    return flashinfer.apply_rope_with_cos_sin_cache(pos_ids, q, k, HEAD_DIM, cos_sin_cache, is_neox=not INTERLEAVE)


def mla_rope_quantize_fp8(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_rope_out: torch.Tensor,
    k_rope_out: torch.Tensor,
    q_nope_out: torch.Tensor,
    k_nope_out: torch.Tensor,
) -> None:
    """mla_rope_quantize_fp8."""
    flashinfer.rope.mla_rope_quantize_fp8(
        q_rope,
        k_rope,
        q_nope,
        k_nope,
        cos_sin_cache,
        pos_ids,
        is_neox=not INTERLEAVE,
        quantize_dtype=getattr(torch, OUT_DTYPE),
        q_rope_out=q_rope_out,
        k_rope_out=k_rope_out,
        q_nope_out=q_nope_out,
        k_nope_out=k_nope_out,
        enable_pdl=ENABLE_PDL,
    )


def rope_quantize_fp8(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_rope_out: torch.Tensor,
    k_rope_out: torch.Tensor,
    q_nope_out: torch.Tensor,
    k_nope_out: torch.Tensor,
) -> None:
    """rope_quantize_fp8."""
    flashinfer.rope.rope_quantize_fp8(
        q_rope,
        k_rope,
        q_nope,
        k_nope,
        cos_sin_cache,
        pos_ids,
        is_neox=not INTERLEAVE,
        quantize_dtype=getattr(torch, OUT_DTYPE),
        q_rope_out=q_rope_out,
        k_rope_out=k_rope_out,
        q_nope_out=q_nope_out,
        k_nope_out=k_nope_out,
        enable_pdl=ENABLE_PDL,
    )


def rope_quantize_fp8_all(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    q_rope_out: torch.Tensor,
    k_rope_out: torch.Tensor,
) -> None:
    """rope_quantize_fp8 where every dimension is rotated."""
    flashinfer.rope.rope_quantize_fp8(
        q_rope,
        k_rope,
        None,
        None,
        cos_sin_cache,
        pos_ids,
        is_neox=not INTERLEAVE,
        quantize_dtype=getattr(torch, OUT_DTYPE),
        q_rope_out=q_rope_out,
        k_rope_out=k_rope_out,
        enable_pdl=ENABLE_PDL,
    )


def rope_quantize_fp8_append_paged_kv_cache(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    v: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    q_rope_out: torch.Tensor,
    q_nope_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """rope_quantize_fp8_append_paged_kv_cache."""
    flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        q_rope,
        k_rope,
        q_nope,
        k_nope,
        v,
        cos_sin_cache,
        pos_ids,
        (k_cache, v_cache),
        kv_indices,
        kv_indptr,
        batch_indices,
        positions,
        is_neox=not INTERLEAVE,
        quantize_dtype=getattr(torch, OUT_DTYPE),
        page_size=PAGE_SIZE,
        kv_layout=KV_LAYOUT,
        q_rope_out=q_rope_out,
        q_nope_out=q_nope_out,
        enable_pdl=ENABLE_PDL,
    )


def rope_quantize_fp8_append_all(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    v: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
    q_rope_out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> None:
    """The same where every dimension is rotated."""
    flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        q_rope,
        k_rope,
        None,
        None,
        v,
        cos_sin_cache,
        pos_ids,
        (k_cache, v_cache),
        kv_indices,
        kv_indptr,
        batch_indices,
        positions,
        is_neox=not INTERLEAVE,
        quantize_dtype=getattr(torch, OUT_DTYPE),
        page_size=PAGE_SIZE,
        kv_layout=KV_LAYOUT,
        q_rope_out=q_rope_out,
        enable_pdl=ENABLE_PDL,
    )
