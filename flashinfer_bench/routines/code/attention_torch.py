"""References of the attention family, in float32, a sequence and a stretch of queries at a time."""

import torch

SM_SCALE = 0.125
CAUSAL = False
HEAD_DIM_CKV = 512
STRETCH = 1 << 27
"""Number of scores that are held in memory at once."""


def attend(q, k, v):
    """Attention of one sequence; q [queries, heads, dqk], k [keys, kv_heads, dqk], v [keys, kv_heads, dvo].

    Causal: the last query sees all keys, the one before it one less.
    """
    queries, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    group = heads // kv_heads
    wide_k = k.float().permute(1, 2, 0)
    wide_v = v.float().permute(1, 0, 2)
    out = torch.empty(queries, heads, v.shape[-1], dtype=torch.float32, device=q.device)
    step = max(1, STRETCH // max(1, keys * heads))
    for start in range(0, queries, step):
        part = q[start : start + step].float()
        rows = part.shape[0]
        grouped = part.view(rows, kv_heads, group, -1).permute(1, 0, 2, 3).reshape(kv_heads, rows * group, -1)
        scores = (grouped @ wide_k).view(kv_heads, rows, group, keys) * SM_SCALE
        if CAUSAL:
            last = torch.arange(start, start + rows, device=q.device) + keys - queries
            hidden = torch.arange(keys, device=q.device) > last[:, None]
            scores = scores.masked_fill(hidden[None, :, None, :], float("-inf"))
        mixed = scores.softmax(dim=-1).view(kv_heads, rows * group, keys) @ wide_v
        out[start : start + rows] = mixed.view(kv_heads, rows, group, -1).permute(1, 0, 2, 3).reshape(rows, heads, -1)
    return out


def gather(cache, pages, length):
    """Bring the pages [pages, page_size, ...] of a sequence into one piece."""
    count = -(-length // cache.shape[1])
    return cache[pages[:count].long()].flatten(0, 1)[:length]


def over_pages(q, bounds, kv_cache, block_tables, kv_lens):
    """Queries of several sequences, one after the other, over a paged cache [pages, 2, page_size, heads, dim]."""
    out = torch.empty_like(q)
    for row, length in enumerate(kv_lens.tolist()):
        k, v = (gather(kv_cache[:, side], block_tables[row], length) for side in (0, 1))
        own = slice(bounds[row], bounds[row + 1])
        out[own] = attend(q[own], k, v).to(q.dtype)
    return out


def decode(q, kv_cache, block_tables, kv_lens):
    """One query a sequence over a paged cache."""
    return over_pages(q, range(len(q) + 1), kv_cache, block_tables, kv_lens)


def paged(q, kv_cache, qo_indptr, block_tables, kv_lens):
    """Several queries a sequence over a paged cache."""
    return over_pages(q, qo_indptr.tolist(), kv_cache, block_tables, kv_lens)


def ragged(q, k, v, qo_indptr, kv_indptr):
    """Queries, keys and values of several sequences, one after the other."""
    out = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype, device=q.device)
    queries, keys = qo_indptr.tolist(), kv_indptr.tolist()
    for row in range(len(queries) - 1):
        own, seen = slice(queries[row], queries[row + 1]), slice(keys[row], keys[row + 1])
        out[own] = attend(q[own], k[seen], v[seen]).to(q.dtype)
    return out


def mla(q, kv_cache, block_tables, kv_lens):
    """MLA with absorbed weights: q [batch, queries, heads, ckv + kpe], cache [pages, page_size, ckv + kpe].

    Every head sees the whole of a cached token as its key, and the first part of it as its value.
    """
    out = torch.empty(*q.shape[:3], HEAD_DIM_CKV, dtype=torch.bfloat16, device=q.device)
    for row, length in enumerate(kv_lens.tolist()):
        keys = gather(kv_cache, block_tables[row], length)[:, None, :]
        out[row] = attend(q[row], keys, keys[..., :HEAD_DIM_CKV]).to(out.dtype)
    return out
