"""What attention costs: pairs of a query and a key, by lengths and mask, and the used tokens of a cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.roofline.sized_definition import Counted, SizedDefinition, Unknown

CAUSAL: Final = re.compile(r"\b(no |non[- ]?|not[- ]?)?causal\b(\W*(?:false|no|0|off)\b)?", re.IGNORECASE)
"""The word "causal"; the groups match a word before or after it that negates it."""


def find_causal(definition: Definition) -> bool | None:
    """Tell whether a definition is causal, by its name, else by its tags; None where neither has the word.

    Published definitions are named ..._prefill_causal_...
    """
    for text in (definition.name, *definition.tags):
        found = CAUSAL.search(text.replace("_", " "))
        if found is not None:
            return not any(found.groups())
    return None


def count_pairs(queries: Sequence[int], keys: Sequence[int], *, causal: bool) -> int:
    """Count the pairs of a query and a key that this query sees.

    With a causal mask the last query sees all keys, and each query before it sees one key less, down to none.
    """
    pairs = list(zip(queries, keys, strict=True))
    if not causal:
        return sum(q * kv for q, kv in pairs)
    return sum(seeing * (2 * kv - seeing + 1) // 2 for seeing, kv in ((min(q, kv), kv) for q, kv in pairs))


def _pairs(sized: SizedDefinition, queries: Sequence[int], keys: Sequence[int]) -> int:
    """Count the pairs under the definition's mask.

    Raises:
        Unknown: the mask matters and the definition does not name it, or the lengths do not fit the queries.
    """
    name = sized.first_input
    if min([*queries, *keys], default=0) < 0 or prod(sized.shape(name)[:-1]) != sum(queries) * _heads(sized):
        raise Unknown(f"{sized.definition.name}: the lengths are not those of {name}")
    causal, all_pairs = find_causal(sized.definition), count_pairs(queries, keys, causal=False)
    if "qo_indptr" not in sized.definition.inputs or causal is False:
        return all_pairs
    seen = count_pairs(queries, keys, causal=True)
    if causal is None and seen != all_pairs:
        raise Unknown(f"{sized.definition.name} does not say whether it is causal")
    return seen


def _heads(sized: SizedDefinition) -> int:
    return sized.size("num_qo_heads")


def _lengths(sized: SizedDefinition) -> tuple[list[int], list[int]]:
    """Return the queries and keys of each sequence."""
    offsets = sized.numbers("kv_indptr")
    keys = [end - start for start, end in pairwise(offsets)]
    if "kv_indices" in sized.definition.inputs:
        page = sized.size("page_size")
        last = sized.values.get("kv_last_page_len") or [page] * len(keys)
        keys = [(pages - 1) * page + last[row] if pages else 0 for row, pages in enumerate(keys)]
    if "qo_indptr" in sized.definition.inputs:
        return [end - start for start, end in pairwise(sized.numbers("qo_indptr"))], keys
    return [1] * len(keys), keys


def count_attention(sized: SizedDefinition) -> Counted:
    """2 pairs Hq (dqk + dvo). Only the used tokens of a paged cache are read."""
    queries, keys = _lengths(sized)
    qk = sized.size("head_dim", "qk_dim", "head_dim_qk")
    vo = sized.size("head_dim", "vo_dim", "head_dim_vo")
    used = _used_tokens(sized, ("k_cache", "v_cache"), sum(keys))
    return 2.0 * _pairs(sized, queries, keys) * _heads(sized) * (qk + vo), used


def count_mla(sized: SizedDefinition) -> Counted:
    """2 pairs H (2 ckv + kpe): scores over both parts, values from the compressed one."""
    if "ckv_cache" not in sized.definition.inputs:
        return count_attention(sized)
    queries, keys = _lengths(sized)
    ckv, kpe = sized.size("head_dim_ckv"), sized.size("head_dim_kpe")
    used = _used_tokens(sized, ("ckv_cache", "kpe_cache"), sum(keys))
    return 2.0 * _pairs(sized, queries, keys) * _heads(sized) * (2 * ckv + kpe), used


def _used_tokens(sized: SizedDefinition, caches: Sequence[str], tokens: int) -> dict[str, float]:
    used = {}
    for name in caches:
        if name in sized.definition.inputs:
            held = sized.size("num_pages") * sized.size("page_size")
            used[name] = sized.nbytes(name) * min(1.0, tokens / held) if held else 0.0
    return used


def count_dsa(sized: SizedDefinition) -> Counted:
    """Attention costs as MLA over the chosen tokens. The indexer costs 2 heads dim for every cached token."""
    if "sparse_indices" in sized.definition.inputs:
        chosen = [index for index in sized.numbers("sparse_indices") if index >= 0]
        ckv, kpe = sized.size("head_dim_ckv"), sized.size("head_dim_kpe")
        used = _used_tokens(sized, ("ckv_cache", "kpe_cache"), len(set(chosen)))
        return 2.0 * len(chosen) * sized.size("num_qo_heads") * (2 * ckv + kpe), used
    tokens = sum(sized.numbers("seq_lens"))
    used = _used_tokens(sized, ("k_index_cache_fp8",), tokens)
    return 2.0 * tokens * sized.size("num_index_heads") * sized.size("index_head_dim"), used
