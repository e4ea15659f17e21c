"""The cost of a definition on a workload, counted by op type from the format's names of axes and inputs.

FLOPs follow the true lengths. Bytes count all inputs and outputs. Only the used part of a pool (cached tokens, experts,
states, angles) counts. A wrong cost would be worse than none. So a definition has no cost if its axes have other names,
its lengths or mask are unknown, or its inputs contradict each other. A formula then raises LookupError, ValueError or
ArithmeticError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Final

from flashinfer_bench.data.definition import Definition, TensorSpec
from flashinfer_bench.data.dtypes import DTYPES, Unit
from flashinfer_bench.roofline.cost import UNIT_OF, Cost, size_of

PLAIN: Final = ("rmsnorm", "rope", "sampling")
"""Op types without a product of matrices: their unit is fp32."""
NO_FACTOR: Final = re.compile(r"scale|logits|^weights$|cache$")
"""Names of inputs that tensor cores do not multiply, or whose content is unknown."""
COMPARES: Final = re.compile(r"renorm|mask")
"""Names of sampling operations that map scores to scores, so that they only compare or rescale."""
CAUSAL: Final = re.compile(r"\b(no |non[- ]?|not[- ]?)?causal\b(\W*(?:false|no|0|off)\b)?", re.IGNORECASE)
"""The word "causal". The groups match a negation before or after the word."""
TOP_K: Final = re.compile(r"(?:^|_)topk(\d+)(?:_|$)")
"""Finds k in the name of a definition without an axis for k, such as moe_..._topk8_...."""

Values = Mapping[str, Sequence[int]]
"""Name of an input → its numbers: offsets, lengths, indices."""
Counted = tuple[float, Mapping[str, float]]
"""FLOPs, and a mapping: name of a partly used input or output → the used share of its bytes."""


@dataclass(frozen=True)
class Sized:
    """A definition with the sizes of its axes, and the known values of its index inputs."""

    definition: Definition
    axes: Mapping[str, int]
    """Every axis → its size."""
    values: Values
    specs: Mapping[str, TensorSpec]
    """All inputs and outputs by name."""

    def __contains__(self, name: str) -> bool:
        return name in self.definition.inputs

    def __getitem__(self, names: str) -> int:
        """Return the size of the first axis that exists, among names separated by |; ValueError if none exists."""
        size, *_ = [self.axes[name] for name in names.split("|") if name in self.axes]
        return size

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of the first input."""
        return self.shape(next(iter(self.definition.inputs), ""))

    @property
    def result(self) -> tuple[int, ...]:
        """The shape of the first output."""
        return self.shape(next(iter(self.definition.outputs), ""))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input or output, in elements."""
        return tuple(self.axes[axis] if axis in self.axes else int(axis) for axis in self.specs[name].shape or ())

    def nbytes(self, name: str) -> float:
        """Return the bytes of an input or output; 0 for a single number."""
        spec = self.specs[name]
        return 0.0 if spec.shape is None else prod(self.shape(name)) * size_of(spec.dtype)


def find_cost(definition: Definition, axes: Mapping[str, int], values: Values | None = None) -> Cost | None:
    """Return the cost of one call; None if the op type, its axes or its lengths are unknown.

    Args:
        definition: the definition.
        axes: every axis by name.
        values: the known values of index inputs.
    """
    sized = Sized(definition, axes, values or {}, {**definition.inputs, **definition.outputs})
    try:
        flops, shares = FORMULAS[definition.op_type.replace("-", "_")](sized)
        total = sum(shares.get(name, 1.0) * sized.nbytes(name) for name in sized.specs)
        return Cost(flops, total, _unit(sized)) if min(flops, total) >= 0 else None
    except (LookupError, ArithmeticError, ValueError):  # stored numbers may be invalid
        return None


def _unit(sized: Sized) -> Unit:
    """Return the arithmetic unit for the wider of two dtypes: the first factor's and the largest factor's. Op types in
    `PLAIN` have fp32."""
    if sized.definition.op_type in PLAIN:
        return "fp32"
    factors = [
        (prod(sized.shape(name)), spec.dtype)
        for name, spec in sized.definition.inputs.items()
        if DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) >= 2 and not NO_FACTOR.search(name.lower())
    ]
    (_, first), *_ = factors  # raises for whole numbers: no peak is listed for them
    _, largest = max(factors, key=lambda factor: factor[0])
    return UNIT_OF.get(max(first, largest, key=size_of), "fp32")


def _gemm(sized: Sized) -> Counted:
    """2 m n k: every element of the output sums over the last axis of the first input."""
    if sized.rows[:-1] != sized.result[:-1]:
        raise LookupError
    return 2.0 * prod(sized.result) * sized.rows[-1], {}


def _lowbit(sized: Sized) -> Counted:
    """The cost of a GEMM, if the definition is a product of two matrices. Other definitions of this op type
    (quantizers, norms, RoPE) have no cost.

    The second factor has the output's last axis, no "scale" in its name, and at least one bit for each element. The
    first factor has a float dtype. Integers may be packed, so their last axis may not be the summed axis.
    """
    (_, first), *others = sized.definition.inputs.items()
    (out, *_) = sized.definition.outputs.values()
    summed, kept = (first.shape or [""])[-1], (out.shape or [""])[-1]
    wanted = sized.rows[-1] * sized.result[-1]
    factors = (
        8 * sized.nbytes(name) >= wanted
        for name, spec in others
        if len(spec.shape or ()) >= 2 and kept in (spec.shape or ()) and "scale" not in name.lower()
    )
    if summed == kept or DTYPES[first.dtype].kind != "float" or not any(factors):
        raise LookupError
    return _gemm(sized)


def _rmsnorm(sized: Sized) -> Counted:
    """Five operations for each element (square, add, two multiplications, mean and root); six with a residual."""
    return float((5 + ("residual" in sized)) * prod(sized.rows)), {}


def _rope(sized: Sized) -> Counted:
    """Three operations for each rotated element. At most one row of angles is read for each token.

    The kernel may rotate only a part of each head, so `rotary_dim` or the cache of angles is needed.
    """
    tokens, angles = sized["num_tokens|tokens|nnz"], "cos_sin_cache"
    elements = 3.0 * tokens * (sized["num_qo_heads|num_heads"] + sized["num_kv_heads"])
    if angles not in sized:
        return elements * sized["rotary_dim"], {}
    rotary = sized.axes.get("rotary_dim", sized.shape(angles)[-1])
    return elements * rotary, {angles: min(1.0, tokens / sized["max_seq_len"])}


def _attention(sized: Sized) -> Counted:
    """2 pairs Hq (dqk + dvo). Only the used tokens of a paged cache are read."""
    queries, keys = _lengths(sized)
    flops = 2.0 * _pairs(sized, queries, keys) * sized["num_qo_heads"]
    if "ckv_cache" in sized:
        return flops * _mla_dims(sized), _used_tokens(sized, sum(keys), "ckv_cache", "kpe_cache")
    dims = sized["head_dim|qk_dim|head_dim_qk"] + sized["head_dim|vo_dim|head_dim_vo"]
    return flops * dims, _used_tokens(sized, sum(keys), "k_cache", "v_cache")


def _dsa(sized: Sized) -> Counted:
    """Attention costs as much as MLA over the chosen tokens. The indexer costs 2 heads dim for every cached token."""
    if "sparse_indices" in sized:
        chosen = [index for index in sized.values["sparse_indices"] if index >= 0]
        flops = 2.0 * len(chosen) * sized["num_qo_heads"] * _mla_dims(sized)
        return flops, _used_tokens(sized, len(set(chosen)), "ckv_cache", "kpe_cache")
    tokens = sum(sized.values["seq_lens"])
    flops = 2.0 * tokens * sized["num_index_heads"] * sized["index_head_dim"]
    return flops, _used_tokens(sized, tokens, "k_index_cache_fp8")


def _mla_dims(sized: Sized) -> int:
    """The dimensions of scores and values together: scores use both parts of the cache, values only the compressed
    part."""
    return 2 * sized["head_dim_ckv"] + sized["head_dim_kpe"]


def find_causal(definition: Definition) -> bool | None:
    """Return whether a definition is causal, by its name, else by its tags; None if neither has the word.

    Published definitions are named ..._prefill_causal_...
    """
    for text in (definition.name, *definition.tags):
        found = CAUSAL.search(text.replace("_", " "))
        if found is not None:
            return not any(found.groups())
    return None


def _pairs(sized: Sized, queries: Sequence[int], keys: Sequence[int]) -> int:
    """Count the pairs of a query and a key in which the query sees the key, under the definition's mask.

    With a causal mask the last query sees all keys, and each query before it sees one key less, down to zero.
    """
    if min([*queries, *keys], default=0) < 0 or prod(sized.rows[:-1]) != sum(queries) * sized["num_qo_heads"]:
        raise LookupError
    causal = find_causal(sized.definition) if "qo_indptr" in sized else False
    pairs = list(zip(queries, keys, strict=True))
    every = sum(q * kv for q, kv in pairs)
    seeing = [(min(q, kv), kv) for q, kv in pairs]
    masked = sum(q * (2 * kv - q + 1) // 2 for q, kv in seeing)
    if causal is None and masked != every:
        raise LookupError  # the mask matters, and is unknown
    return every if causal is False else masked


def _lengths(sized: Sized) -> tuple[list[int], list[int]]:
    """Return the queries and keys of each sequence."""
    keys = [end - start for start, end in pairwise(sized.values["kv_indptr"])]
    if "kv_indices" in sized:
        page = sized["page_size"]
        last = sized.values.get("kv_last_page_len") or [page] * len(keys)
        keys = [(pages - 1) * page + last[row] if pages else 0 for row, pages in enumerate(keys)]
    if "qo_indptr" in sized:
        return [end - start for start, end in pairwise(sized.values["qo_indptr"])], keys
    return [1] * len(keys), keys


def _used_tokens(sized: Sized, tokens: int, *caches: str) -> dict[str, float]:
    if not any(cache in sized for cache in caches):
        return {}
    held = sized["num_pages"] * sized["page_size"]
    return dict.fromkeys(caches, min(1.0, tokens / held) if held else 0.0)


def _gdn(sized: Sized) -> Counted:
    """Six d² operations for each token and value head: state times key, update of the state, state times query."""
    tokens = sized.axes.get("total_seq_len") or sized["batch_size"] * sized["seq_len"]
    share = min(1.0, sized["batch_size"] / sized["pool_size"]) if "pool_size" in sized.axes else 1.0
    used = dict.fromkeys(("initial_state", "intermediate_states_buffer", "final_state"), share)
    return 6.0 * tokens * sized["num_v_heads"] * sized["head_size"] ** 2, used


def _mamba(sized: Sized) -> Counted:
    """Five operations for each element of the state. The used slots of the pool are read and written."""
    batch = sized["batch_size"]
    used = dict.fromkeys(("state", "new_state"), min(1.0, batch / sized["state_cache_size"]))
    return 5.0 * batch * sized["nheads"] * sized["head_dim|dim"] * sized["dstate"], used


def _moe(sized: Sized) -> Counted:
    """6 h i for each pair of a token and an expert. Pairs and active experts are counted for uniform routing."""
    tokens, local = sized["seq_len|num_tokens"], sized["num_local_experts|local_experts|num_experts"]
    top_k = sized.axes.get("top_k") or int(TOP_K.findall(sized.definition.name)[0])
    share = top_k / sized.axes.get("num_experts", local)
    active = 1 - (1 - min(share, 1.0)) ** tokens
    weights = [name for name in sized.definition.inputs if name.startswith(("gemm", "output"))]
    flops = 6.0 * tokens * share * local * sized["hidden_size"] * sized["intermediate_size"]
    return flops, dict.fromkeys(weights, active)


def _sampling(sized: Sized) -> Counted:
    """Choosing, renormalising and masking cost bytes only. Softmax takes five operations for each element."""
    name = sized.definition.name.lower()
    if "softmax" in name:
        return 5.0 * prod(sized.rows), {}
    chooses = any(DTYPES[spec.dtype].kind == "int" for spec in sized.definition.outputs.values())
    if not chooses and not COMPARES.search(name):
        raise LookupError  # any computation may return floats
    return 0.0, {}


FORMULAS: Final[Mapping[str, Callable[[Sized], Counted]]] = {
    "gemm": _gemm,
    "lowbit": _lowbit,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    **dict.fromkeys(("gqa_paged", "gqa_ragged", "mla_paged", "mla_ragged"), _attention),
    "dsa_paged": _dsa,
    "gdn": _gdn,
    "mamba_ssu": _mamba,
    "moe": _moe,
    "sampling": _sampling,
}
"""Op type → the function that counts its cost."""
