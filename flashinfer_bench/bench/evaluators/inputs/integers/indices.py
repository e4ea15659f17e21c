"""Random integers with a meaning: offsets, lengths, pages, positions, slots. All fit the axes around them.

Indices stay below the sizes of what the reference indexes with them, where its source says that. Where it tests them
for padding, some are -1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.inputs import random_values
from flashinfer_bench.bench.evaluators.inputs.constraints import find_bounds
from flashinfer_bench.bench.evaluators.inputs.integers.amounts import (
    ENDLESS,
    FAR,
    Amount,
    Extent,
    Given,
    Leaf,
    Reach,
    evaluate,
    find_range,
)
from flashinfer_bench.bench.evaluators.inputs.integers.found import USUAL_PADDING, Use
from flashinfer_bench.bench.evaluators.inputs.integers.indexing import find_use
from flashinfer_bench.bench.evaluators.inputs.random_values import Blank, split_total
from flashinfer_bench.bench.evaluators.inputs.seeds import make_generator
from flashinfer_bench.data.dtypes import DTYPES

_TOTAL: Final = re.compile(r"(?:(\w+) == (\w+)\[-1\](?:\.item\(\))?|(\w+)\[-1\](?:\.item\(\))? == (\w+))")
_TOTAL_AXES: Final = {
    "q": ("total_q", "total_qo", "total_num_tokens", "num_tokens"),
    "kv": ("num_kv_indices", "total_kv", "total_num_pages", "total_k"),
    "": ("total_seq_len", "total_tokens", "num_tokens", "total_q", "total_kv"),
}
"""Axes that may be the total of offsets where no constraint names it: for queries, for keys and values, for others."""
_CLASS_AXES: Final = (
    *("num_classes", "n_classes", "num_labels", "n_labels", "num_categories"),
    *("vocab_size", "vocabulary_size", "n_vocab", "vocab"),
)
SMALL: Final = 8
"""Integers of which nothing is said stay below it."""
PADDED_SHARE: Final = 1 / 8
"""Share of the indices that are -1 where the reference tests for that."""
IGNORED_SHARE: Final = 1 / 4
"""Share of the values that are another negative number, as -100 for labels, where the reference tests for that."""
WRAPPED_SHARE: Final = 2
"""What the reference brings below a size gets values below so many times the size."""
SURELY_PADDED: Final = 8
"""Of so many indices one at least is padding."""
FREE_LENGTH: Final = 4
"""Mean length of a sequence where nothing says what the total is."""


def row_offsets(blank: Blank) -> torch.Tensor:
    """Make offsets that begin at 0, never fall, and end at the total that a constraint or an axis gives."""
    parts = max(blank.shape[0] - 1, 0)
    total = _total(blank)
    if total is None:
        total = _valid(blank, FREE_LENGTH * parts + 1).stop - 1
    generator = blank.generator()
    base = _least_lengths(blank, parts)
    left = total - int(base.sum())
    lengths = base + split_total(left, parts, generator) if left >= 0 else split_total(total, parts, generator)
    offsets = torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0)))
    return blank.finish(offsets[: blank.shape[0]])


def last_page_lengths(blank: Blank) -> torch.Tensor:
    """Make numbers of tokens in the last page; where queries are given, no fewer than causal attention needs."""
    page_size = blank.size("page_size") or 1
    least = torch.ones(blank.shape[0], dtype=torch.long)
    queries, pages = _lengths_of(blank.made.get("qo_indptr")), _lengths_of(blank.made.get("kv_indptr"))
    if queries is not None and pages is not None and len(queries) == len(pages) <= len(least):
        least[: len(queries)] = (queries - (pages - 1) * page_size).clamp(1, page_size)
    picked = torch.rand(blank.shape[0], generator=blank.generator(), dtype=torch.float64) * (page_size + 1 - least)
    return blank.finish(least + picked.long())


def lengths(blank: Blank) -> torch.Tensor:
    """Make sequence lengths from 1 to what the block table or the longest sequence allows."""
    pages = blank.size("max_num_pages", "max_num_blocks", "max_pages_per_seq", "max_blocks_per_seq")
    if pages is not None:
        capacity: int | None = pages * (blank.size("page_size", "block_size") or 1)
    else:
        capacity = blank.size("max_seq_len", "max_kv_len", "max_seqlen", "max_context_len", "seq_len", "kv_len")
    valid = _valid(blank, max(capacity or 16, 1) + 1)
    top = min(valid.stop - 1, capacity or valid.stop)
    least = max(valid.start, 1)
    return blank.finish(torch.randint(least, max(top, least) + 1, blank.shape, generator=blank.generator()))


def sparse_tokens(blank: Blank) -> torch.Tensor:
    """Make the cached tokens that each query looks at: distinct tokens, and -1 where the cache has too few."""
    tokens = (blank.size("num_pages") or 1) * (blank.size("page_size") or 1)
    chosen = min(blank.shape[-1], tokens)
    narrow = random_values.Blank(**{**vars(blank), "shape": (*blank.shape[:-1], chosen)})
    indices = torch.full(blank.shape, -1, dtype=torch.long)
    indices[..., :chosen] = random_values.distinct_rows(narrow, tokens).cpu()
    return blank.finish(indices)


def pages(blank: Blank) -> torch.Tensor:
    """Make page numbers of the cache."""
    size = blank.size("num_pages", "num_blocks", "max_num_pages") or _leading_size(blank)
    return _pad(blank, _distinct(blank, size))


def positions(blank: Blank) -> torch.Tensor:
    """Make positions in a sequence, valid in what the reference indexes by them."""
    longest = blank.size("max_seq_len", "max_position_embeddings", "max_position", "max_positions") or 4096
    valid = _valid(blank, longest)
    stop = max(min(max(longest, 1), valid.stop), valid.start + 1)
    return blank.finish(torch.randint(valid.start, stop, blank.shape, generator=blank.generator()))


def top_k(blank: Blank) -> torch.Tensor:
    """Make numbers of tokens to keep: uniform on a logarithmic scale, up to the vocabulary."""
    vocabulary = max(blank.size("vocab_size", "vocabulary_size", "vocab") or 64, 1)
    exponent = torch.rand(blank.shape, dtype=torch.float64, generator=blank.generator())
    return blank.finish((vocabulary**exponent).long().clamp(1, vocabulary))


def experts(blank: Blank) -> torch.Tensor:
    """Make the experts of each token.

    Where no input has the experts' weights and the description says "packed", the weights are the lower 16 bits, as
    bfloat16.
    """
    chosen = random_values.distinct_rows(
        blank, blank.size("num_experts", "num_local_experts", "num_global_experts") or 1
    )
    if any(re.fullmatch(r"(top_?k|expert|routing)_?weights", name) for name in blank.definition.inputs):
        return chosen
    if blank.dtype_name != "int32" or "packed" not in (blank.definition.inputs[blank.name].description or "").lower():
        return chosen
    weights = torch.rand(blank.shape, generator=blank.generator()).softmax(dim=-1).to(torch.bfloat16)
    bits = weights.view(torch.int16).to(torch.int32) & 0xFFFF
    return blank.finish((chosen.cpu() << 16) | bits)


def slots(blank: Blank) -> torch.Tensor:
    """Make slots of a pool: distinct, because there is no right answer where two sequences write to one slot."""
    pool = blank.size("pool_size", "state_cache_size", "num_slots", "cache_size", "max_batch_size")
    limit = pool or _leading_size(blank)
    return _pad(blank, _distinct(blank, limit))


def any_index(blank: Blank) -> torch.Tensor:
    """Make indices that are valid in what the reference indexes; where that is not known, in every other input."""
    valid = _valid(blank, _leading_size(blank))
    values = torch.randint(valid.start, valid.stop, blank.shape, generator=blank.generator())
    return _pad(blank, blank.finish(values))


def labels(blank: Blank) -> torch.Tensor:
    """Make labels: valid in what the reference indexes, else below the number of classes, else small."""
    valid = _valid(blank, blank.size(*_CLASS_AXES) or SMALL)
    return _pad(blank, random_values.integers(blank, valid.start, valid.stop))


def small(blank: Blank) -> torch.Tensor:
    """Make integers of which nothing is said: valid in what the reference indexes, else small."""
    valid = _valid(blank, SMALL)
    return _pad(blank, random_values.integers(blank, valid.start, valid.stop))


def packed_keys(blank: Blank) -> torch.Tensor:
    """Make pages of fp8 keys: first all values of a page, then one float32 scale for each of its tokens."""
    if len(blank.shape) != 4 or blank.shape[-1] <= 4:
        return random_values.fill_bytes(blank)
    page_count, page_size, _, width = blank.shape
    values_width = page_size * (width - 4)
    generator = blank.generator(blank.device)
    floats = torch.empty(0, dtype=torch.float32, device=blank.device)
    values = floats.new_empty(page_count, values_width).normal_(generator=generator).to(torch.float8_e4m3fn)
    scales = floats.new_empty(page_count, page_size).uniform_(0.5, 1.5, generator=generator)
    packed = torch.cat((values.view(torch.uint8), scales.view(torch.uint8)), dim=1)
    return packed.view(blank.shape).view(blank.empty().dtype)


def _total(blank: Blank) -> int | None:
    """Find the number that the last offset must have; None where nothing says it."""
    for constraint in blank.definition.constraints:
        match = _TOTAL.fullmatch(constraint.strip())
        if match is not None:
            axis, name = (match[1], match[2]) if match[1] else (match[4], match[3])
            if name == blank.name and axis in blank.axes:
                return blank.axes[axis]
    owner = blank.name.lower()
    side = "kv" if "kv" in owner or owner.endswith("_k") else "q" if "q" in owner.split("_")[0] else ""
    return blank.size(*_TOTAL_AXES[side])


def _least_lengths(blank: Blank, parts: int) -> torch.Tensor:
    """Give the smallest lengths of keys with which causal attention has an answer for every query."""
    none = torch.zeros(parts, dtype=torch.long)
    queries = _lengths_of(blank.made.get("qo_indptr"))
    if "kv" not in blank.name.lower() or queries is None or len(queries) != parts:
        return none
    page_size = blank.size("page_size") or 1
    if "kv_indices" not in blank.definition.inputs:
        return queries
    return -(-queries // page_size) + (1 if page_size > 1 else 0)


def _lengths_of(offsets: Any) -> torch.Tensor | None:
    return torch.diff(offsets.long().cpu()) if isinstance(offsets, torch.Tensor) and offsets.ndim == 1 else None


def _valid(blank: Blank, usual: int) -> range:
    """Return which values are valid where the reference is known to index by them, or by what it computes of them.

    Where it may index more, and where it indexes nothing, they are so few as is usual. Constraints may ask for less,
    not for more, and so does the dtype.
    """
    use, bounds = _use_of(blank), find_bounds(blank.definition.constraints, blank.name, blank.axes)
    starts, stops = zip((0, FAR), *_list_ranges(blank, use.extents), strict=True)
    are_known = len(starts) == 1 + len(use.extents)
    start, stop = max(starts), min(stops)
    if not (use.is_clear and are_known and bounds is not None) or stop > ENDLESS:
        wrapped = [end for _, end in _list_ranges(blank, use.wraps, WRAPPED_SHARE) if end <= ENDLESS]
        is_free = use.is_clear and are_known and bounds is not None and len(wrapped) == len(use.wraps)
        stop = min(stop, start + max(usual, *wrapped, 0) if is_free else usual)
    stop = int(max(min(stop, _largest(blank), math.inf if bounds is None else bounds.most + 1), 1))
    return range(start, stop) if start < stop else range(max(min(stop, usual), 1))


def _largest(blank: Blank) -> int:
    """Return the number that is the first too large for the dtype."""
    dtype = DTYPES[blank.dtype_name]
    return 1 << dtype.bits - (dtype.kind == "int")


def _distinct(blank: Blank, most: int) -> torch.Tensor:
    """Make distinct valid numbers below a size, as far as there are so many."""
    valid = _valid(blank, most)
    values = random_values.distinct_rows(blank, max(min(valid.stop, most) - valid.start, 1))
    return values + valid.start if valid.start else values


def _use_of(blank: Blank) -> Use:
    definition = blank.definition
    numbers = frozenset(name for name, spec in definition.inputs.items() if spec.shape is None)
    return find_use(definition.reference, blank.name, numbers)


def _list_ranges(blank: Blank, reaches: Iterable[Amount | Reach], share: int = 1) -> list[tuple[int, int]]:
    """List the least value and the end of the values that each bound allows, where it is known."""
    found = (_find_range(blank, one if isinstance(one, Reach) else Reach(one), share) for one in reaches)
    return [(least, most + 1) for least, most in filter(None, found)]


def _find_range(blank: Blank, reach: Reach, share: int) -> tuple[int, int] | None:
    """Return the least and the most value that a bound allows; None where that is not known.

    Where few values are left, and a negative index is valid, too, all that give one count. Where no value is left, the
    reference has to look itself whether what it computes is valid.
    """
    largest = _largest(blank)
    dtype = (-largest if DTYPES[blank.dtype_name].kind == "int" else 0, largest - 1)
    found = find_range(reach, lambda leaf: _size_of(blank, leaf), share=share, dtype=dtype)
    rows = evaluate(reach.below, lambda leaf: _size_of(blank, leaf))
    if found is None or rows is None or not reach.applied:
        return found
    if reach.takes_negative and found[1] - max(found[0], 0) + 1 < min(SMALL, rows):
        found = find_range(reach, lambda leaf: _size_of(blank, leaf), share=share, dtype=dtype, from_end=True)
    return found if found is not None and found[1] >= max(found[0], 0) else None


def _size_of(blank: Blank, leaf: Leaf) -> int | None:
    if isinstance(leaf, Given):
        number = blank.axes.get(leaf.name, blank.made.get(leaf.name))
        return number if isinstance(number, int) and not isinstance(number, bool) else None
    spec = blank.definition.inputs.get(leaf.name)
    shape = spec.shape if spec is not None else None
    if spec is None or shape is None:
        return None
    is_packed = DTYPES[spec.dtype].storage.endswith("_x2")  # two elements lie in a byte
    sizes = [blank.axes.get(axis) or (int(axis) if axis.isdigit() else None) for axis in shape]
    if isinstance(leaf, Extent):
        is_there = -len(shape) <= leaf.axis < len(shape) and not (is_packed and leaf.axis in (-1, len(shape) - 1))
        return sizes[leaf.axis] if is_there else None
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) and not is_packed else None


def _pad(blank: Blank, values: torch.Tensor) -> torch.Tensor:
    """Write padding over some indices, where the reference tests for it; some of each row stay."""
    use, bounds = _use_of(blank), find_bounds(blank.definition.constraints, blank.name, blank.axes)
    count, columns = values.numel(), values.shape[-1] if values.ndim else 1
    is_padded = DTYPES[blank.dtype_name].kind == "int" and use.is_tested and not _valid(blank, 1).start
    if not is_padded or bounds is None or max(bounds.least, -_largest(blank)) > use.padding or count < 2:
        return values
    share = PADDED_SHARE if use.padding == USUAL_PADDING else IGNORED_SHARE
    generator = make_generator(blank.seed, blank.name, "padding", device=torch.device("cpu"))
    is_padding = torch.rand(count, generator=generator) < share
    if count >= SURELY_PADDED and not is_padding.any():
        is_padding[torch.randint(count, (), generator=generator)] = True
    rows = is_padding.view(-1, columns if columns > 1 else count)
    kept = torch.randint(rows.shape[1], (len(rows), 1), generator=generator)
    rows.scatter_(1, kept, rows.gather(1, kept) & ~rows.all(dim=1, keepdim=True))
    return values.masked_fill_(is_padding.view(values.shape).to(values.device), use.padding)


def _leading_size(blank: Blank) -> int:
    """Give the smallest first dimension of the other inputs: an index below it is valid in all of them."""
    shapes = (spec.shape for name, spec in blank.definition.inputs.items() if name != blank.name)
    sizes = [blank.axes.get(shape[0]) or (int(shape[0]) if shape[0].isdigit() else 1) for shape in shapes if shape]
    return max(min(sizes, default=1), 1)
