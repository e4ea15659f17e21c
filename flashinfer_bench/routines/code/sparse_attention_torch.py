"""References of MSA, in float32. All sequences have S_QO queries and S_KV keys."""

import torch

from flashinfer_bench.routines.code.attention_torch import CAUSAL, mix, multiply
from flashinfer_bench.routines.code.formats import by_tiles

S_QO = 4096
S_KV = 4096
TOPK = 16
COLUMNS = 32
OUT_DTYPE = "bfloat16"
PAGE = 128


def read(cache, *table):
    """Give a cache in float32, [batch, keys, heads, dim]: in one piece, or in pages with a table."""
    if not table:
        return cache.float().unflatten(0, (-1, S_KV))
    return cache.float()[table[0].long()].transpose(2, 3).flatten(1, 2)[:, :S_KV]


def proxy(q, k, *table):
    """Give the largest product of each head, block and query."""
    parts = []
    for queries, keys in zip(q.split(S_QO), read(k, *table), strict=True):
        for _, products in multiply(queries, keys):
            padded = torch.nn.functional.pad(products, (0, COLUMNS * PAGE - S_KV), value=float("-inf"))
            parts.append(padded.unflatten(-1, (COLUMNS, PAGE)).amax(-1).flatten(0, 1).mT)
    return torch.cat(parts, dim=2)


def proxy_fp4(q, k, q_scale, k_scale, *table):
    """The same of 4-bit floats with scales in tiles."""
    wide = (by_tiles(x.flatten(0, -2), scale).unflatten(0, x.shape[:-1]) for x, scale in ((q, q_scale), (k, k_scale)))
    return proxy(*wide, *table)


def attend(q, blocks, *caches):
    """Attention to the chosen blocks of keys; -1 is no block."""
    *whole, table = caches if caches[-1].dtype == torch.int32 else (*caches, None)
    pair = whole if len(whole) > 1 else whole[0].chunk(2, dim=-1)
    k, v = (read(one) if table is None else read(one, table) for one in pair)
    parts = []
    for queries, own_blocks, keys, values in zip(q.split(S_QO), blocks.long().split(S_QO, dim=1), k, v, strict=True):
        for query, products in multiply(queries, keys):
            own = own_blocks[:, query]
            chosen = torch.zeros(*own.shape[:2], COLUMNS + 1, dtype=torch.bool, device=q.device)
            chosen.scatter_(2, own.where(own >= 0, COLUMNS), True)
            kept = chosen[:, None, :, :-1].repeat_interleave(PAGE, dim=-1)[..., :S_KV]
            parts.append(mix(products.masked_fill_(~kept, float("-inf")), values))
    return torch.cat(parts).to(getattr(torch, OUT_DTYPE))


def decode(*given):
    """The same."""
    return attend(*given)


def pipeline(index_q, index_k, q, *caches):
    """Attention of each query to its last block, and to the blocks with the largest products of the index."""
    scores = proxy(index_q, index_k, *(one for one in caches if one.dtype == torch.int32)).mT
    last = torch.arange(S_KV - S_QO, S_KV) if CAUSAL else torch.full((S_QO,), S_KV - 1)
    last = (last.to(q.device) // PAGE).repeat(len(q) // S_QO)[:, None]
    column = torch.arange(COLUMNS, device=q.device)
    ranks = scores.masked_fill(column == last, float("inf")).masked_fill(column > last, float("-inf"))
    best = ranks.topk(min(TOPK, COLUMNS), dim=-1).indices
    return attend(q, best.where(best <= last, -1), *caches)
