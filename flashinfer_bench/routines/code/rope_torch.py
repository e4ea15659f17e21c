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
    part, rest = x.float().tensor_split((ROTARY_DIM,), dim=-1)
    first, second = (part[..., ::2], part[..., 1::2]) if INTERLEAVE else part.chunk(2, dim=-1)
    cosine, sine = cosine[:, None].float(), sine[:, None].float()
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    joined = torch.stack(turned, dim=-1).flatten(-2) if INTERLEAVE else torch.cat(turned, dim=-1)
    return torch.cat((joined, rest), dim=-1)


def rope_by_positions(q, k, pos_ids):
    """Rotate tokens at given positions, by angles that are computed from them."""
    angle = pos_ids.double()[:, None] * frequencies(q.device)
    return tuple(rotate(x, angle.cos(), angle.sin()).to(x.dtype) for x in (q, k))


def rope_by_offsets(q, k, indptr, offsets):
    """Rotate sequences that begin at the offsets."""
    start = torch.repeat_interleave(offsets.long() - indptr[:-1], torch.diff(indptr.long()))
    return rope_by_positions(q, k, start + torch.arange(len(q), device=q.device))


def rotate_by_cache(x, pos_ids, cos_sin_cache):
    """Rotate [tokens, heads, dim] by angles from a cache."""
    return rotate(x, *cos_sin_cache[pos_ids.long()].chunk(2, dim=-1))


def rope_with_cache(q, k, *angles):
    """Rotate flat queries and keys [tokens, heads * dim] by angles from a cache; the dim is in HEAD_DIM."""
    return tuple(rotate_by_cache(x.unflatten(1, (-1, HEAD_DIM)), *angles).flatten(1).to(x.dtype) for x in (q, k))


def round_to_fp8(values):
    """Round to fp8."""
    return to_fp8(values.float(), getattr(torch, OUT_DTYPE))


def rope_quantize(q_rope, k_rope, *rest):
    """Rotate [tokens, heads, dim], or keys [tokens, dim], leave the other part if there is one, and round to fp8."""
    *others, pos_ids, cos_sin_cache = rest
    wholes = (q_rope, k_rope.view(len(k_rope), -1, k_rope.shape[-1]))
    q, k = (round_to_fp8(rotate_by_cache(x, pos_ids, cos_sin_cache)) for x in wholes)
    return q, k.view(k_rope.shape), *map(round_to_fp8, others)


def append_pages(rows, kv_indices, kv_indptr, batch_indices, positions):
    """Put rows [tokens, heads, dim] into pages by (sequence, position); slots that nobody owns hold NaN."""
    page = kv_indices[kv_indptr[batch_indices] + positions // PAGE_SIZE]
    shape = (len(kv_indices), PAGE_SIZE, *rows.shape[1:])
    cache = torch.full(shape, UNWRITTEN, dtype=torch.uint8, device=rows.device)
    cache[page, positions % PAGE_SIZE] = rows.view(torch.uint8)
    return (cache.transpose(1, 2).contiguous() if KV_LAYOUT == "HND" else cache).view(rows.dtype)


def rope_quantize_append(q_rope, k_rope, *rest):
    """Rotate, round to fp8, and put keys and values into their pages."""
    *others, v, pos_ids, cos_sin_cache = rest[:-4]
    q, k, *parts = rope_quantize(q_rope, k_rope, *others, pos_ids, cos_sin_cache)
    keys = torch.cat([part.view(torch.uint8) for part in (k, *parts[1:])], dim=-1).view(k.dtype)
    return q, *parts[:1], append_pages(keys, *rest[-4:]), append_pages(round_to_fp8(v), *rest[-4:])
