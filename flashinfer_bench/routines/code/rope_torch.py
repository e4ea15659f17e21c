"""References of the RoPE family, in float32, rounded once at the end."""

import math

import torch

from flashinfer_bench.routines.code.formats import to_fp8

ROTARY_DIM = 128
HEAD_DIM = 128
INTERLEAVE = False
ROPE_SCALE = 1.0
ROPE_THETA = 1e4
LOW_FREQ_FACTOR = 1.0
HIGH_FREQ_FACTOR = 4.0
OLD_CONTEXT_LEN = 8192
LLAMA31 = False
OUT_DTYPE = "float8_e4m3fn"
PAGE_SIZE = 16
KV_LAYOUT = "NHD"
UNWRITTEN = 0xFF


def frequencies(device):
    """Give the angle per position of each pair; Llama 3.1 stretches the slow ones only."""
    exponent = torch.arange(0, ROTARY_DIM, 2, dtype=torch.float64, device=device) / ROTARY_DIM
    frequency = ROPE_THETA**-exponent
    if not LLAMA31:
        return frequency / ROPE_SCALE
    turns = OLD_CONTEXT_LEN * frequency / (2 * math.pi)
    share = ((turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)).clamp(0, 1)
    return (1 - share) * frequency / ROPE_SCALE + share * frequency


def rotate(x, cosine, sine):
    """Rotate the first ROTARY_DIM elements of each head; [tokens, heads, dim], angles [tokens, pairs]; float32."""
    wide = x.float()
    part, rest = wide[..., :ROTARY_DIM], wide[..., ROTARY_DIM:]
    cosine, sine = cosine[:, None, :].float(), sine[:, None, :].float()
    if INTERLEAVE:
        first, second = part[..., ::2], part[..., 1::2]
    else:
        first, second = part.chunk(2, dim=-1)
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    joined = torch.stack(turned, dim=-1).flatten(-2) if INTERLEAVE else torch.cat(turned, dim=-1)
    return torch.cat((joined, rest), dim=-1)


def rope_by_positions(q, k, pos_ids):
    """Rotate tokens at given positions, by angles that are computed from them."""
    angle = pos_ids.double()[:, None] * frequencies(q.device)
    cosine, sine = angle.cos(), angle.sin()
    return rotate(q, cosine, sine).to(q.dtype), rotate(k, cosine, sine).to(k.dtype)


def rope_by_offsets(q, k, indptr, offsets):
    """Rotate sequences that begin at the offsets."""
    lengths = torch.diff(indptr.long())
    start = torch.repeat_interleave(offsets.long() - indptr[:-1].long(), lengths)
    return rope_by_positions(q, k, start + torch.arange(q.shape[0], device=q.device))


def rotate_by_cache(x, pos_ids, cos_sin_cache):
    """Rotate [tokens, heads, dim] by angles from a cache."""
    return rotate(x, *cos_sin_cache[pos_ids.long()].chunk(2, dim=-1))


def rope_with_cache(q, k, pos_ids, cos_sin_cache):
    """Rotate flat queries and keys [tokens, heads * dim] by angles from a cache; the dim is in HEAD_DIM."""
    heads = [x.view(x.shape[0], -1, HEAD_DIM) for x in (q, k)]
    turned = [rotate_by_cache(x, pos_ids, cos_sin_cache) for x in heads]
    return turned[0].view_as(q).to(q.dtype), turned[1].view_as(k).to(k.dtype)


def round_to_fp8(values):
    """Round to fp8."""
    return to_fp8(values.float(), getattr(torch, OUT_DTYPE))


def rope_quantize_all(q_rope, k_rope, pos_ids, cos_sin_cache):
    """Rotate [tokens, heads, dim], or keys [tokens, dim], and round to fp8."""
    keys = k_rope if k_rope.ndim == 3 else k_rope[:, None, :]
    q, k = (round_to_fp8(rotate_by_cache(x, pos_ids, cos_sin_cache)) for x in (q_rope, keys))
    return q, k.view(k_rope.shape)


def rope_quantize(q_rope, k_rope, q_nope, k_nope, pos_ids, cos_sin_cache):
    """Rotate one part, leave the other, round both to fp8."""
    rotated = rope_quantize_all(q_rope, k_rope, pos_ids, cos_sin_cache)
    return *rotated, round_to_fp8(q_nope), round_to_fp8(k_nope)


def append_pages(rows, kv_indices, kv_indptr, batch_indices, positions):
    """Put rows [tokens, heads, dim] into pages by (sequence, position); slots that nobody owns hold NaN."""
    page = kv_indices[kv_indptr[batch_indices.long()].long() + positions.long() // PAGE_SIZE].long()
    shape = (kv_indices.shape[0], PAGE_SIZE, *rows.shape[1:])
    cache = torch.full(shape, UNWRITTEN, dtype=torch.uint8, device=rows.device)
    cache[page, positions.long() % PAGE_SIZE] = rows.view(torch.uint8)
    return (cache.transpose(1, 2).contiguous() if KV_LAYOUT == "HND" else cache).view(rows.dtype)


def rope_quantize_append(q_rope, k_rope, q_nope, k_nope, v, pos_ids, cos_sin_cache, *pages):
    """Rotate, round to fp8, and put keys and values into their pages."""
    q, k, q_rest, k_rest = rope_quantize(q_rope, k_rope, q_nope, k_nope, pos_ids, cos_sin_cache)
    joined = torch.cat((k.view(torch.uint8), k_rest.view(torch.uint8)), dim=-1).view(k.dtype)
    return q, q_rest, append_pages(joined, *pages), append_pages(round_to_fp8(v), *pages)


def rope_quantize_append_all(q_rope, k_rope, v, pos_ids, cos_sin_cache, *pages):
    """The same where every dimension is rotated."""
    q, k = rope_quantize_all(q_rope, k_rope, pos_ids, cos_sin_cache)
    return q, append_pages(k, *pages), append_pages(round_to_fp8(v), *pages)
