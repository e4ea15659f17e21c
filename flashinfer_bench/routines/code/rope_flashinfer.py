"""Calls of FlashInfer's quantising RoPE kernels."""

import flashinfer
import torch

INTERLEAVE = False
QUANTISER = "rope_quantize_fp8"
OUT_DTYPE = "float8_e4m3fn"
PAGE_SIZE = 16
KV_LAYOUT = "NHD"
ENABLE_PDL = False
QUANTISED = {
    "is_neox": not INTERLEAVE,
    "quantize_dtype": getattr(torch, OUT_DTYPE),
    "enable_pdl": ENABLE_PDL,
}
APPENDED = {**QUANTISED, "page_size": PAGE_SIZE, "kv_layout": KV_LAYOUT}


def rope_quantize(q_rope, k_rope, q_nope, k_nope, pos_ids, cos_sin_cache, **outputs):
    """rope_quantize_fp8, or mla_rope_quantize_fp8 by QUANTISER."""
    function = getattr(flashinfer.rope, QUANTISER)
    function(q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, **outputs, **QUANTISED)


def rope_quantize_all(q_rope, k_rope, pos_ids, cos_sin_cache, **outputs):
    """rope_quantize_fp8 where every dimension is rotated."""
    flashinfer.rope.rope_quantize_fp8(q_rope, k_rope, None, None, cos_sin_cache, pos_ids, **outputs, **QUANTISED)


def append(tokens, pages, k_cache, v_cache, **outputs):
    """rope_quantize_fp8_append_paged_kv_cache."""
    function = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache
    function(*tokens, (k_cache, v_cache), *pages, **outputs, **APPENDED)


def rope_quantize_append(q_rope, k_rope, q_nope, k_nope, v, pos_ids, cos_sin_cache, *pages, **outputs):
    """Rotate one part of queries and keys, and append."""
    append((q_rope, k_rope, q_nope, k_nope, v, cos_sin_cache, pos_ids), pages, **outputs)


def rope_quantize_append_all(q_rope, k_rope, v, pos_ids, cos_sin_cache, *pages, **outputs):
    """The same where every dimension is rotated."""
    append((q_rope, k_rope, None, None, v, cos_sin_cache, pos_ids), pages, **outputs)
