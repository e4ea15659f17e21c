"""References of the RoPE family, in float32, rounded once at the end."""

import math

import torch

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
HND = False
UNWRITTEN = 0xFF


def frequencies(device: torch.device) -> torch.Tensor:
    """Give the angle per position of each pair; Llama 3.1 stretches the slow ones only."""
    exponent = torch.arange(0, ROTARY_DIM, 2, dtype=torch.float64, device=device) / ROTARY_DIM
    frequency = ROPE_THETA**-exponent
    if not LLAMA31:
        return frequency / ROPE_SCALE
    turns = OLD_CONTEXT_LEN * frequency / (2 * math.pi)
    share = ((turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)).clamp(0, 1)
    return (1 - share) * frequency / ROPE_SCALE + share * frequency


def rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
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


def rotate_both(q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys by angles that are computed from the positions."""
    angle = positions.double()[:, None] * frequencies(q.device)
    cosine, sine = angle.cos(), angle.sin()
    return rotate(q, cosine, sine).to(q.dtype), rotate(k, cosine, sine).to(k.dtype)


def rope_by_offsets(
    q: torch.Tensor, k: torch.Tensor, indptr: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate sequences that begin at the offsets."""
    lengths = torch.diff(indptr.long())
    start = torch.repeat_interleave(offsets.long() - indptr[:-1].long(), lengths)
    return rotate_both(q, k, start + torch.arange(q.shape[0], device=q.device))


def rope_by_positions(q: torch.Tensor, k: torch.Tensor, pos_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate tokens at given positions."""
    return rotate_both(q, k, pos_ids)


def rope_with_cache(
    q: torch.Tensor, k: torch.Tensor, pos_ids: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate flat queries and keys [tokens, heads * dim] by angles from a cache; the dim is in HEAD_DIM."""
    cosine, sine = cos_sin_cache[pos_ids.long()].chunk(2, dim=-1)
    turned = [rotate(x.view(x.shape[0], -1, HEAD_DIM), cosine, sine).view_as(x).to(x.dtype) for x in (q, k)]
    return turned[0], turned[1]


def to_fp8(values: torch.Tensor) -> torch.Tensor:
    """Round to fp8; what is too large becomes the largest value."""
    dtype = getattr(torch, OUT_DTYPE)
    limit = torch.finfo(dtype).max
    return values.float().clamp(-limit, limit).to(dtype)


def turn_by_cache(x: torch.Tensor, pos_ids: torch.Tensor, cos_sin_cache: torch.Tensor) -> torch.Tensor:
    """Rotate [tokens, heads, dim] or [tokens, dim] by angles from a cache."""
    cosine, sine = cos_sin_cache[pos_ids.long()].chunk(2, dim=-1)
    heads = x if x.ndim == 3 else x[:, None, :]
    return rotate(heads, cosine, sine).view(x.shape)


def rope_quantize(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotate one part, leave the other, round both to fp8."""
    q = to_fp8(turn_by_cache(q_rope, pos_ids, cos_sin_cache))
    k = to_fp8(turn_by_cache(k_rope, pos_ids, cos_sin_cache))
    return q, k, to_fp8(q_nope), to_fp8(k_nope)


def rope_quantize_all(
    q_rope: torch.Tensor, k_rope: torch.Tensor, pos_ids: torch.Tensor, cos_sin_cache: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate, round to fp8."""
    q = to_fp8(turn_by_cache(q_rope, pos_ids, cos_sin_cache))
    return q, to_fp8(turn_by_cache(k_rope, pos_ids, cos_sin_cache))


def append_pages(
    rows: torch.Tensor, kv_indices: torch.Tensor, kv_indptr: torch.Tensor, where: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Put rows [tokens, heads, dim] into pages by (sequence, position); slots that nobody owns hold NaN."""
    batch_indices, positions = where
    page = kv_indices[kv_indptr[batch_indices.long()].long() + positions.long() // PAGE_SIZE].long()
    shape = (kv_indices.shape[0], PAGE_SIZE, *rows.shape[1:])
    cache = torch.full(shape, UNWRITTEN, dtype=torch.uint8, device=rows.device)
    cache[page, positions.long() % PAGE_SIZE] = rows.view(torch.uint8)
    return (cache.transpose(1, 2).contiguous() if HND else cache).view(rows.dtype)


def rope_quantize_append(
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rotate, round to fp8, and put keys and values into their pages."""
    q, k, q_rest, k_rest = rope_quantize(q_rope, k_rope, q_nope, k_nope, pos_ids, cos_sin_cache)
    joined = torch.cat((k.view(torch.uint8), k_rest.view(torch.uint8)), dim=-1).view(k.dtype)
    where = (batch_indices, positions)
    keys = append_pages(joined, kv_indices, kv_indptr, where)
    return q, q_rest, keys, append_pages(to_fp8(v), kv_indices, kv_indptr, where)


def rope_quantize_append_all(
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    v: torch.Tensor,
    pos_ids: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_indptr: torch.Tensor,
    batch_indices: torch.Tensor,
    positions: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The same where every dimension is rotated."""
    q, k = rope_quantize_all(q_rope, k_rope, pos_ids, cos_sin_cache)
    where = (batch_indices, positions)
    keys = append_pages(k, kv_indices, kv_indptr, where)
    return q, keys, append_pages(to_fp8(v), kv_indices, kv_indptr, where)
