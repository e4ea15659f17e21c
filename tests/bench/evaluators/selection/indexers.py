"""Plain indexers for the bundled dsa_paged definition, a right one and ones with a single plausible fault."""

from __future__ import annotations

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


def index(q, cache, weights, lengths, table, *, keys=read_keys, rounded=torch.float32, relu=torch.relu, **how):
    """Choose as the definition says, or with one thing changed."""
    values, scales = keys(cache)
    keys_of = (values * scales).to(rounded).float()
    chosen = torch.full((len(lengths), TOPK), -1, dtype=torch.int32)
    for row, length in enumerate(lengths.tolist()):
        length = min(max(0, how.get("length", lambda n: n)(length)), table.shape[1] * cache.shape[1])
        place = torch.arange(length)
        token = table[row, place // 64].long() * 64 + place % 64
        scores = weights[row] @ relu(q[row].float() @ keys_of[token].T)
        best = scores.topk(min(TOPK, length)).indices
        chosen[row, : len(best)] = token[best] if how.get("mapped", True) else best
    return chosen


WRONG_INDEXERS: dict[str, Callable[..., torch.Tensor]] = {
    "scales read as if interleaved": lambda *given: index(*given, keys=interleaved_keys),
    "no relu": lambda *given: index(*given, relu=lambda dots: dots),
    "one token too many seen": lambda *given: index(*given, length=lambda n: n + 1),
    "positions instead of tokens": lambda *given: index(*given, mapped=False),
    "keys of three bits of mantissa": lambda *given: index(*given, rounded=torch.float8_e5m2),
}
