"""Plain solutions of the bundled dsa_paged definitions, right ones and ones with a single plausible fault."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

TOPK, DIM = 64, 128


def read_keys(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the fp8 values and the scales of every token of a packed cache."""
    pages, size = cache.shape[:2]
    raw = cache.flatten(1).view(torch.uint8)
    values = raw[:, : size * DIM].contiguous().view(torch.float8_e4m3fn).view(pages * size, DIM).float()
    return values, raw[:, size * DIM :].contiguous().view(torch.float32).view(-1, 1)


def interleaved_keys(cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """As if each token's scale followed its values."""
    raw = cache.view(torch.uint8).reshape(-1, DIM + 4)
    values = raw[:, :DIM].contiguous().view(torch.float8_e4m3fn).float().nan_to_num()
    return values, raw[:, DIM:].contiguous().view(torch.float32).nan_to_num()


def index(
    q, cache, weights, lengths, table, *, keys=read_keys, rounded=torch.float32, relu=torch.relu, head_of=None, **how
):
    """Choose as the definition says, or with one thing changed."""
    values, scales = keys(cache)
    keys_of = (values * (scales if how.get("scaled", True) else 1)).to(rounded).float()
    chosen = torch.full((len(lengths), TOPK), -1, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        length = min(max(0, how.get("length", lambda n: n)(length)), table.shape[1] * cache.shape[1])
        place = torch.arange(length)
        token = table[row, place // 64].long() * 64 + place % 64
        heads = weights[row] if how.get("weighted", True) else torch.ones_like(weights[row])
        scores = heads @ relu(q[row].float() @ keys_of[token].T)
        best = scores.topk(min(TOPK, length), largest=how.get("largest", True)).indices
        chosen[row, : len(best)] = token[best] if how.get("mapped", True) else best
    return chosen


WRONG_INDEXERS: dict[str, Callable[..., torch.Tensor]] = {
    "scale forgotten": lambda *given: index(*given, scaled=False),
    "scales read as if interleaved": lambda *given: index(*given, keys=interleaved_keys),
    "no relu": lambda *given: index(*given, relu=lambda dots: dots),
    "weights forgotten": lambda *given: index(*given, weighted=False),
    "last page ignored": lambda *given: index(*given, length=lambda n: n // 64 * 64),
    "one token too many seen": lambda *given: index(*given, length=lambda n: n + 1),
    "one token too few seen": lambda *given: index(*given, length=lambda n: n - 1),
    "positions instead of tokens": lambda *given: index(*given, mapped=False),
    "lowest instead of best": lambda *given: index(*given, largest=False),
    "heads in reversed order": lambda q, *given: index(q.flip(1), *given),
    "keys of three bits of mantissa": lambda *given: index(*given, rounded=torch.float8_e5m2),
    "table of the next sequence": lambda q, cache, weights, lengths, table: index(
        q, cache, weights, lengths, table.roll(1, 0)
    ),
}


def attend(q_nope, q_pe, ckv_cache, kpe_cache, sparse_indices, sm_scale, *, seen=lambda row: row[row >= 0], **how):
    """Attend as the definition says, or with one thing changed."""
    output = torch.zeros_like(q_nope)
    lse = torch.full(q_nope.shape[:2], how.get("empty", -math.inf))
    rounded = how.get("rounded", torch.float32)
    for token, row in enumerate(sparse_indices.long()):
        chosen = seen(row)
        if len(chosen) == 0 or token == how.get("skipped"):
            continue
        ckv, kpe = (cache.flatten(0, 1)[chosen].float() for cache in (ckv_cache, kpe_cache))
        logits = q_nope[token].float() @ ckv.T + how.get("rope", 1.0) * (q_pe[token].float() @ kpe.T)
        logits = (logits * how.get("scale", sm_scale)).to(rounded).float()
        lse[token] = torch.logsumexp(logits, dim=1) / how.get("base", math.log(2))
        weights = logits.softmax(dim=1) if how.get("normalised", True) else logits.exp() / len(chosen)
        output[token] = weights @ how.get("values", lambda keys: keys)(ckv)
    return output, lse


WRONG_ATTENTION: dict[str, Callable[..., object]] = {
    "padding read as token 0": lambda *given: attend(*given, seen=lambda row: row.clamp(min=0)),
    "last index ignored": lambda *given: attend(*given, seen=lambda row: row[row >= 0][:-1]),
    "page and offset swapped": lambda *given: attend(
        *given, seen=lambda row: row[row >= 0] % 64 * 6 + row[row >= 0] // 64
    ),
    "natural lse": lambda *given: attend(*given, base=1.0),
    "lse of 0 where nothing is seen": lambda *given: attend(*given, empty=0.0),
    "lse of nan where nothing is seen": lambda *given: attend(*given, empty=math.nan),
    "rotary part forgotten": lambda *given: attend(*given, rope=0.0),
    "scale forgotten": lambda *given: attend(*given, scale=1.0),
    "scale of the absorbed dimension": lambda *given: attend(*given, scale=576**-0.5),
    "weights not normalised": lambda *given: attend(*given, normalised=False),
    "one token skipped": lambda *given: attend(*given, skipped=0),
    "values of the wrong half": lambda *given: attend(*given, values=lambda keys: keys.roll(256, 1)),
    "logits in fp8": lambda *given: attend(*given, rounded=torch.float8_e4m3fn),
}
