"""References of the attention family, in float32, one sequence and one block of queries after the other."""

from itertools import pairwise

import torch

from flashinfer_bench.routines.code.formats import by_rows

SM_SCALE = 0.125
CAUSAL = False
PAGE_SIZE = 16
HEAD_DIM_CKV = 512
OUT_DTYPE = "bfloat16"
FACTOR = 1.0
STRETCH = 1 << 27
"""Number of scores that are held in memory at once."""


def multiply(q, k):
    """Yield stretches of the queries of one sequence: their places, and products [kv_heads, group, queries, keys].

    Causal: the last query sees all keys, the one before it one less. An unseen key has the product minus infinity.
    """
    step, key = max(1, STRETCH // (len(k) * q.shape[1])), torch.arange(len(q) - len(k), len(q), device=q.device)
    for query in torch.arange(len(q), device=q.device).split(step):
        products = torch.einsum("qhgd,khd->hgqk", q[query].float().unflatten(1, (k.shape[1], -1)), k.float())
        yield query, products.masked_fill_(key > query[:, None], float("-inf")) if CAUSAL else products


def mix(products, v):
    """Add up values with the softmax of the products as weights; v [keys, kv_heads, dvo]. The products are scaled in
    place, since they are large."""
    return torch.einsum("hgqk,khd->qhgd", products.mul_(SM_SCALE).softmax(dim=-1), v.float()).flatten(1, 2)


def attend(q, k, v):
    """Attention of one sequence; q [queries, heads, dqk], k [keys, kv_heads, dqk], v [keys, kv_heads, dvo]."""
    return torch.cat([mix(products, v) for _, products in multiply(q, k)])


def attend_each(q, bounds, caches):
    """Attention of several sequences, one after the other; the bounds of each in `q`, and its keys and values."""
    parts = [attend(q[start:end], *cache) for (start, end), cache in zip(pairwise(bounds), caches, strict=True)]
    return torch.cat(parts).to(getattr(torch, OUT_DTYPE))


def pages_of(cache, block_tables, kv_lens):
    """Give the pages of each sequence, and its number of keys."""
    for table, length in zip(block_tables.long(), kv_lens.tolist(), strict=True):
        yield cache[table[: -(-length // PAGE_SIZE)]], length


def over_pages(q, bounds, *paged):
    """Attention over a paged cache [pages, 2, page_size, heads, dim]."""
    caches = (pages.transpose(0, 1).flatten(1, 2)[:, :length] for pages, length in pages_of(*paged))
    return attend_each(q, bounds, caches)


def decode(q, kv_cache, block_tables, kv_lens):
    """One query a sequence over a paged cache."""
    return over_pages(q, range(len(q) + 1), kv_cache, block_tables, kv_lens)


def paged(q, kv_cache, qo_indptr, block_tables, kv_lens):
    """Several queries a sequence over a paged cache."""
    return over_pages(q, qo_indptr.tolist(), kv_cache, block_tables, kv_lens)


def ragged(q, k, v, qo_indptr, kv_indptr):
    """Queries, keys and values of several sequences, one after the other."""
    caches = ((k[start:end], v[start:end]) for start, end in pairwise(kv_indptr.tolist()))
    return attend_each(q, qo_indptr.tolist(), caches)


def mla(q, *paged):
    """MLA with absorbed weights: q [batch, queries, heads, ckv + kpe], cache [pages, page_size, ckv + kpe].

    Every head sees the whole of a cached token as its key, and the first part of it as its value.
    """
    keys = (pages.flatten(0, 1)[:length, None] for pages, length in pages_of(*paged))
    rows = q.flatten(0, 1)
    out = attend_each(rows, range(0, len(rows) + 1, q.shape[1]), ((key, key[..., :HEAD_DIM_CKV]) for key in keys))
    return out.unflatten(0, q.shape[:2])


def decode_nvfp4(q, kv_cache, kv_scale, *lists):
    """One query a sequence over a paged cache of 4-bit floats, with scales of blocks and one factor."""
    return decode(q, by_rows(kv_cache, kv_scale, FACTOR), *lists)


def paged_nvfp4(q, kv_cache, kv_scale, *lists):
    """Several queries a sequence over such a cache."""
    return paged(q, by_rows(kv_cache, kv_scale, FACTOR), *lists)
