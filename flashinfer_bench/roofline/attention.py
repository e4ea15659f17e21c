"""What attention costs: the pairs of a query and a key that the lengths and the mask leave, and the tokens in use."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.roofline.problem import Counted, Problem, Unknown

CAUSAL: Final = re.compile(r"\b(no |non[- ]?|not[- ]?)?causal\b(\W*(?:false|no|0|off)\b)?", re.IGNORECASE)
"""The word, with what turns it round before or after it."""


def find_causal(definition: Definition) -> bool | None:
    """Tell whether a definition is causal by its name, else by its tags; None where neither says so.

    Published definitions are named ..._prefill_causal_...
    """
    for text in (definition.name, *definition.tags):
        found = CAUSAL.search(text.replace("_", " "))
        if found is not None:
            return not any(found.groups())
    return None


def count_pairs(queries: Sequence[int], keys: Sequence[int], *, causal: bool) -> int:
    """Count the pairs of a query and a key that it sees; causal: the last query sees all keys, each before it one less.

    Queries that precede all keys see none.
    """
    pairs = list(zip(queries, keys, strict=True))
    if not causal:
        return sum(q * kv for q, kv in pairs)
    return sum(seeing * (2 * kv - seeing + 1) // 2 for seeing, kv in ((min(q, kv), kv) for q, kv in pairs))


def _pairs(problem: Problem, queries: Sequence[int], keys: Sequence[int]) -> int:
    """Count the pairs under the definition's mask.

    Raises:
        Unknown: the mask would matter and the definition does not say which it is, or the queries are others.
    """
    name = problem.first_input
    if min([*queries, *keys], default=0) < 0 or prod(problem.shape(name)[:-1]) != sum(queries) * _heads(problem):
        raise Unknown(f"{problem.definition.name}: the lengths are not those of {name}")
    causal, all_pairs = find_causal(problem.definition), count_pairs(queries, keys, causal=False)
    if "qo_indptr" not in problem.definition.inputs or causal is False:
        return all_pairs
    seen = count_pairs(queries, keys, causal=True)
    if causal is None and seen != all_pairs:
        raise Unknown(f"{problem.definition.name} does not say whether it is causal")
    return seen


def _heads(problem: Problem) -> int:
    return problem.size("num_qo_heads")


def _lengths(problem: Problem) -> tuple[list[int], list[int]]:
    """Return the queries and keys of each sequence."""
    offsets = problem.numbers("kv_indptr")
    keys = [end - start for start, end in pairwise(offsets)]
    if "kv_indices" in problem.definition.inputs:
        page = problem.size("page_size")
        last = problem.values.get("kv_last_page_len") or [page] * len(keys)
        keys = [(pages - 1) * page + last[row] if pages else 0 for row, pages in enumerate(keys)]
    if "qo_indptr" in problem.definition.inputs:
        return [end - start for start, end in pairwise(problem.numbers("qo_indptr"))], keys
    return [1] * len(keys), keys


def count_attention(problem: Problem) -> Counted:
    """2 pairs Hq (dqk + dvo); of a paged cache the tokens in use."""
    queries, keys = _lengths(problem)
    qk = problem.size("head_dim", "qk_dim", "head_dim_qk")
    vo = problem.size("head_dim", "vo_dim", "head_dim_vo")
    used = _used_tokens(problem, ("k_cache", "v_cache"), sum(keys))
    return 2.0 * _pairs(problem, queries, keys) * _heads(problem) * (qk + vo), used


def count_mla(problem: Problem) -> Counted:
    """2 pairs H (2 ckv + kpe): scores over both parts, values from the compressed one."""
    if "ckv_cache" not in problem.definition.inputs:
        return count_attention(problem)
    queries, keys = _lengths(problem)
    ckv, kpe = problem.size("head_dim_ckv"), problem.size("head_dim_kpe")
    used = _used_tokens(problem, ("ckv_cache", "kpe_cache"), sum(keys))
    return 2.0 * _pairs(problem, queries, keys) * _heads(problem) * (2 * ckv + kpe), used


def _used_tokens(problem: Problem, caches: Sequence[str], tokens: int) -> dict[str, float]:
    used = {}
    for name in caches:
        if name in problem.definition.inputs:
            held = problem.size("num_pages") * problem.size("page_size")
            used[name] = problem.nbytes(name) * min(1.0, tokens / held) if held else 0.0
    return used


def count_dsa(problem: Problem) -> Counted:
    """Attention: as MLA over the chosen tokens. Indexer: 2 heads dim for every cached token."""
    if "sparse_indices" in problem.definition.inputs:
        chosen = [index for index in problem.numbers("sparse_indices") if index >= 0]
        ckv, kpe = problem.size("head_dim_ckv"), problem.size("head_dim_kpe")
        used = _used_tokens(problem, ("ckv_cache", "kpe_cache"), len(set(chosen)))
        return 2.0 * len(chosen) * problem.size("num_qo_heads") * (2 * ckv + kpe), used
    tokens = sum(problem.numbers("seq_lens"))
    used = _used_tokens(problem, ("k_index_cache_fp8",), tokens)
    return 2.0 * tokens * problem.size("num_index_heads") * problem.size("index_head_dim"), used
