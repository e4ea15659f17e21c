"""Random integers that mean something: offsets, lengths, pages, positions, slots; valid for the axes around them."""

from __future__ import annotations

import re
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs import random_values
from flashinfer_bench.bench.evaluators.inputs.random_values import Draw, split_total

_TOTAL: Final = re.compile(r"(?:(\w+) == (\w+)\[-1\](?:\.item\(\))?|(\w+)\[-1\](?:\.item\(\))? == (\w+))")
_TOTAL_AXES: Final = {
    "q": ("total_q", "total_qo", "total_num_tokens", "num_tokens"),
    "kv": ("num_kv_indices", "total_kv", "total_num_pages", "total_k"),
    "": ("total_seq_len", "total_tokens", "num_tokens", "total_q", "total_kv"),
}
"""Where no constraint names the total: by what the offsets are of, the axes that may be it."""
FREE_LENGTH: Final = 4
"""Mean length where nothing says what the total is."""


def row_offsets(draw: Draw) -> torch.Tensor:
    """Draw offsets that begin at 0, never fall, and end at the total that a constraint or an axis gives."""
    parts = max(draw.shape[0] - 1, 0)
    total = _total(draw)
    if total is None:
        total = FREE_LENGTH * parts
    generator = draw.generator()
    base = _least_lengths(draw, parts)
    left = total - int(base.sum())
    lengths = base + split_total(left, parts, generator) if left >= 0 else split_total(total, parts, generator)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return draw.finish(offsets[: draw.shape[0]])


def last_page_lengths(draw: Draw) -> torch.Tensor:
    """Draw how many tokens the last page holds; no fewer than causal attention needs where queries are given."""
    page_size = draw.size("page_size") or 1
    least = torch.ones(draw.shape[0], dtype=torch.long)
    queries, pages = _lengths_of(draw.made.get("qo_indptr")), _lengths_of(draw.made.get("kv_indptr"))
    if queries is not None and pages is not None and len(queries) == len(pages) <= len(least):
        least[: len(queries)] = (queries - (pages - 1) * page_size).clamp(1, page_size)
    picked = torch.rand(draw.shape[0], generator=draw.generator(), dtype=torch.float64) * (page_size + 1 - least)
    return draw.finish(least + picked.long())


def lengths(draw: Draw) -> torch.Tensor:
    """Draw sequence lengths between 1 and what the block table or the longest sequence allows."""
    pages = draw.size("max_num_pages", "max_num_blocks", "max_pages_per_seq", "max_blocks_per_seq")
    if pages is not None:
        capacity: int | None = pages * (draw.size("page_size", "block_size") or 1)
    else:
        capacity = draw.size("max_seq_len", "max_kv_len", "max_seqlen", "max_context_len", "seq_len", "kv_len")
    top = max(capacity or 16, 1)
    return draw.finish(torch.randint(1, top + 1, draw.shape, generator=draw.generator()))


def sparse_tokens(draw: Draw) -> torch.Tensor:
    """Draw the cached tokens that each query looks at: distinct, -1 where the cache has too few."""
    tokens = (draw.size("num_pages") or 1) * (draw.size("page_size") or 1)
    chosen = min(draw.shape[-1], tokens)
    narrow = random_values.Draw(**{**vars(draw), "shape": (*draw.shape[:-1], chosen)})
    indices = torch.full(draw.shape, -1, dtype=torch.long)
    indices[..., :chosen] = random_values.distinct_rows(narrow, tokens).cpu()
    return draw.finish(indices)


def pages(draw: Draw) -> torch.Tensor:
    """Draw pages of the cache."""
    return random_values.distinct_rows(
        draw, draw.size("num_pages", "num_blocks", "max_num_pages") or _leading_size(draw)
    )


def positions(draw: Draw) -> torch.Tensor:
    """Draw positions in a sequence."""
    longest = draw.size("max_seq_len", "max_position_embeddings", "max_position", "max_positions") or 4096
    return draw.finish(torch.randint(max(longest, 1), draw.shape, generator=draw.generator()))


def top_k(draw: Draw) -> torch.Tensor:
    """Draw how many tokens stay: evenly on a logarithmic scale up to the vocabulary."""
    vocabulary = max(draw.size("vocab_size", "vocabulary_size", "vocab") or 64, 1)
    exponent = torch.rand(draw.shape, dtype=torch.float64, generator=draw.generator())
    return draw.finish((vocabulary**exponent).long().clamp(1, vocabulary))


def experts(draw: Draw) -> torch.Tensor:
    """Draw the experts of each token; where no other input has their weights these are packed in, as bfloat16 bits."""
    chosen = random_values.distinct_rows(draw, draw.size("num_experts", "num_local_experts", "num_global_experts") or 1)
    if any(re.fullmatch(r"(top_?k|expert|routing)_?weights", name) for name in draw.definition.inputs):
        return chosen
    if draw.dtype_name != "int32" or "packed" not in (draw.definition.inputs[draw.name].description or "").lower():
        return chosen
    weights = torch.rand(draw.shape, generator=draw.generator()).softmax(dim=-1).to(torch.bfloat16)
    bits = weights.view(torch.int16).to(torch.int32) & 0xFFFF
    return draw.finish((chosen.cpu() << 16) | bits)


def slots(draw: Draw) -> torch.Tensor:
    """Draw slots of a pool: distinct, for two sequences that write to one slot have no right answer."""
    pool = draw.size("pool_size", "state_cache_size", "num_slots", "cache_size", "max_batch_size")
    return random_values.distinct_rows(draw, pool or _leading_size(draw))


def any_index(draw: Draw) -> torch.Tensor:
    """Draw indices that are valid in whatever input they point into."""
    return draw.finish(torch.randint(_leading_size(draw), draw.shape, generator=draw.generator()))


def packed_keys(draw: Draw) -> torch.Tensor:
    """Draw pages of fp8 keys with their scales: all values of a page first, then one float32 for each of its tokens."""
    if len(draw.shape) != 4 or draw.shape[-1] <= 4:
        return random_values.fill_bytes(draw)
    page_count, page_size, _, width = draw.shape
    values_width = page_size * (width - 4)
    generator = draw.generator(draw.device)
    blank = torch.empty(0, dtype=torch.float32, device=draw.device)
    values = blank.new_empty(page_count, values_width).normal_(generator=generator).to(torch.float8_e4m3fn)
    scales = blank.new_empty(page_count, page_size).uniform_(0.5, 1.5, generator=generator)
    packed = torch.cat((values.view(torch.uint8), scales.view(torch.uint8)), dim=1)
    return packed.view(draw.shape).view(draw.empty().dtype)


def _total(draw: Draw) -> int | None:
    """Find what the last offset has to be."""
    for constraint in draw.definition.constraints:
        match = _TOTAL.fullmatch(constraint.strip())
        if match is not None:
            axis, name = (match[1], match[2]) if match[1] else (match[4], match[3])
            if name == draw.name and axis in draw.axes:
                return draw.axes[axis]
    owner = draw.name.lower()
    side = "kv" if "kv" in owner or owner.endswith("_k") else "q" if "q" in owner.split("_")[0] else ""
    return draw.size(*_TOTAL_AXES[side])


def _least_lengths(draw: Draw, parts: int) -> torch.Tensor:
    """Give what keys need at least: causal attention has no answer for a query that comes before all keys."""
    none = torch.zeros(parts, dtype=torch.long)
    queries = _lengths_of(draw.made.get("qo_indptr"))
    if "kv" not in draw.name.lower() or queries is None or len(queries) != parts:
        return none
    page_size = draw.size("page_size") or 1
    if "kv_indices" not in draw.definition.inputs:
        return queries
    return -(-queries // page_size) + (1 if page_size > 1 else 0)


def _lengths_of(offsets: Any) -> torch.Tensor | None:
    return torch.diff(offsets.long().cpu()) if isinstance(offsets, torch.Tensor) and offsets.ndim == 1 else None


def _leading_size(draw: Draw) -> int:
    """Give the smallest first dimension of the other tensors: an index below it is valid in all of them."""
    shapes = (spec.shape for name, spec in draw.definition.inputs.items() if name != draw.name)
    sizes = [draw.axes.get(shape[0]) or (int(shape[0]) if shape[0].isdigit() else 1) for shape in shapes if shape]
    return max(min(sizes, default=1), 1)
