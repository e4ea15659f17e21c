"""The cost of a definition on a workload, counted by op type from the names of axes and inputs that the format gives.

FLOPs follow the true lengths. Bytes are those of all inputs and outputs; of a pool (cached tokens, experts, states,
angles) only the part that the workload uses counts. A definition has no cost if its axes have other names, its
lengths or mask are not known, or its inputs contradict each other: no cost is better than a wrong one. A formula then
raises LookupError, ValueError or ArithmeticError.
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
"""Names of inputs that tensor cores do not multiply, or that may hold anything."""
COMPARES: Final = re.compile(r"renorm|mask")
"""Names of operations on scores that give scores."""
CAUSAL: Final = re.compile(r"\b(no |non[- ]?|not[- ]?)?causal\b(\W*(?:false|no|0|off)\b)?", re.IGNORECASE)
"""The word "causal"; the groups match a word before or after it that negates it."""
TOP_K: Final = re.compile(r"(?:^|_)topk(\d+)(?:_|$)")
"""Names a top-k: routed definitions, such as moe_..._topk8_..., have no axis for it."""

Values = Mapping[str, Sequence[int]]
"""Name of an input → its numbers: offsets, lengths, indices."""
Counted = tuple[float, Mapping[str, float]]
"""FLOPs; and for inputs and outputs that are used in part: name → bytes of that part."""


@dataclass(frozen=True)
class Sized:
    """A definition with the sizes of its axes, and the known values of its index inputs.

    A name that is missing raises LookupError or ValueError.
    """

    definition: Definition
    axes: Mapping[str, int]
    """Every axis → its size."""
    values: Values

    @property
    def first_input(self) -> str:
        """The name of the first input, empty if there is none."""
        return next(iter(self.definition.inputs), "")

    @property
    def first_output(self) -> str:
        """The name of the first output, empty if there is none."""
        return next(iter(self.definition.outputs), "")

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        """All inputs and outputs by name."""
        return {**self.definition.inputs, **self.definition.outputs}

    def has(self, name: str) -> bool:
        """Tell whether there is an input of this name."""
        return name in self.definition.inputs

    def size(self, *names: str) -> int:
        """Return the size of the first of these axes that the definition has."""
        size, *_ = [self.axes[name] for name in names if name in self.axes]
        return size

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input or output, in elements."""
        return tuple(self.axes[axis] if axis in self.axes else int(axis) for axis in self.specs[name].shape or ())

    def nbytes(self, name: str) -> float:
        """Return the bytes of an input or output; 0 for a single number."""
        spec = self.specs[name]
        return 0.0 if spec.shape is None else prod(self.shape(name)) * size_of(spec.dtype)

    def part(self, share: float, *names: str) -> dict[str, float]:
        """Return the bytes of a share of those inputs and outputs that there are."""
        return {name: self.nbytes(name) * share for name in names if name in self.specs}


def find_cost(definition: Definition, axes: Mapping[str, int], values: Values | None = None) -> Cost | None:
    """Return the cost of one call; None if the op type, its axes or its lengths are not known.

    Args:
        definition: what is computed.
        axes: every axis by name.
        values: the known values of index inputs.
    """
    sized = Sized(definition, axes, values or {})
    try:
        flops, used = FORMULAS[definition.op_type.replace("-", "_")](sized)
        total = sum(used[name] if name in used else sized.nbytes(name) for name in sized.specs)
        return Cost(flops, total, _unit(sized)) if min(flops, total) >= 0 else None
    except (LookupError, ArithmeticError, ValueError):  # stored numbers may be anything
        return None


def _unit(sized: Sized) -> Unit:
    """Return the unit: that of the wider of the first and the largest factor; fp32 for plain op types."""
    if sized.definition.op_type in PLAIN:
        return "fp32"
    factors = [
        (prod(sized.shape(name)), spec.dtype)
        for name, spec in sized.definition.inputs.items()
        if DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) >= 2 and not NO_FACTOR.search(name.lower())
    ]
    (_, first), *_ = factors  # raises where whole numbers are multiplied: no peak is listed for them
    _, largest = max(factors, key=lambda factor: factor[0])
    return UNIT_OF.get(max(first, largest, key=size_of), "fp32")


def _gemm(sized: Sized) -> Counted:
    """2 m n k: every element of the output sums over the last axis of the first input."""
    rows, columns = sized.shape(sized.first_input), sized.shape(sized.first_output)
    if rows[:-1] != columns[:-1]:
        raise LookupError
    return 2.0 * prod(columns) * rows[-1], {}


def _lowbit(sized: Sized) -> Counted:
    """As a GEMM, if the definition is a product of two matrices. Others (quantizers, norms, RoPE) have no cost.

    In a product a second matrix, which is no scale, has the output's last axis and at least one bit for each column of
    the first input. The first input is a float: whole numbers may be packed, and then its axis is not the summed one.
    """
    inputs, first, out = sized.definition.inputs, sized.first_input, sized.first_output
    summed, kept = (inputs[first].shape or [""])[-1], (sized.definition.outputs[out].shape or [""])[-1]
    wanted = sized.shape(first)[-1] * sized.shape(out)[-1]
    has_factor = any(
        8 * sized.nbytes(name) >= wanted
        for name, spec in inputs.items()
        if name != first and len(spec.shape or ()) >= 2 and kept in (spec.shape or ()) and "scale" not in name.lower()
    )
    if summed == kept or not has_factor or DTYPES[inputs[first].dtype].kind != "float":
        raise LookupError
    return _gemm(sized)


def _rmsnorm(sized: Sized) -> Counted:
    """Five operations for each element (square, add, two multiplications, mean and root); six with a residual."""
    return float((5 + sized.has("residual")) * prod(sized.shape(sized.first_input))), {}


def _rope(sized: Sized) -> Counted:
    """Three operations for each rotated element. At most one row of angles is read for each token.

    A part of a head may be rotated, so the size of a head alone is not enough.
    """
    tokens = sized.size("num_tokens", "tokens", "nnz")
    heads = sized.size("num_qo_heads", "num_heads") + sized.size("num_kv_heads")
    if not sized.has("cos_sin_cache"):
        return 3.0 * tokens * heads * sized.size("rotary_dim"), {}
    rotary = sized.axes.get("rotary_dim", sized.shape("cos_sin_cache")[-1])
    share = min(1.0, tokens / sized.size("max_seq_len"))
    return 3.0 * tokens * heads * rotary, sized.part(share, "cos_sin_cache")


def _attention(sized: Sized) -> Counted:
    """2 pairs Hq (dqk + dvo). Only the used tokens of a paged cache are read.

    MLA over a compressed cache has scores over both parts, and values from the compressed one: 2 ckv + kpe.
    """
    queries, keys = _lengths(sized)
    pairs, heads = _pairs(sized, queries, keys), sized.size("num_qo_heads")
    if sized.has("ckv_cache"):
        return 2.0 * pairs * heads * _mla_dims(sized), _used_tokens(sized, sum(keys), "ckv_cache", "kpe_cache")
    dims = sized.size("head_dim", "qk_dim", "head_dim_qk") + sized.size("head_dim", "vo_dim", "head_dim_vo")
    return 2.0 * pairs * heads * dims, _used_tokens(sized, sum(keys), "k_cache", "v_cache")


def _dsa(sized: Sized) -> Counted:
    """Attention costs as MLA over the chosen tokens. The indexer costs 2 heads dim for every cached token."""
    if sized.has("sparse_indices"):
        chosen = [index for index in sized.values["sparse_indices"] if index >= 0]
        used = _used_tokens(sized, len(set(chosen)), "ckv_cache", "kpe_cache")
        return 2.0 * len(chosen) * sized.size("num_qo_heads") * _mla_dims(sized), used
    tokens = sum(sized.values["seq_lens"])
    flops = 2.0 * tokens * sized.size("num_index_heads") * sized.size("index_head_dim")
    return flops, _used_tokens(sized, tokens, "k_index_cache_fp8")


def _mla_dims(sized: Sized) -> int:
    return 2 * sized.size("head_dim_ckv") + sized.size("head_dim_kpe")


def find_causal(definition: Definition) -> bool | None:
    """Tell whether a definition is causal, by its name, else by its tags; None if neither has the word.

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


def _pairs(sized: Sized, queries: Sequence[int], keys: Sequence[int]) -> int:
    """Count the pairs under the definition's mask."""
    rows = prod(sized.shape(sized.first_input)[:-1])
    if min([*queries, *keys], default=0) < 0 or rows != sum(queries) * sized.size("num_qo_heads"):
        raise LookupError
    causal = find_causal(sized.definition) if sized.has("qo_indptr") else False
    masked, every = count_pairs(queries, keys, causal=True), count_pairs(queries, keys, causal=False)
    if causal is None and masked != every:
        raise LookupError  # the mask matters, and the definition does not name it
    return every if causal is False else masked


def _lengths(sized: Sized) -> tuple[list[int], list[int]]:
    """Return the queries and keys of each sequence."""
    keys = [end - start for start, end in pairwise(sized.values["kv_indptr"])]
    if sized.has("kv_indices"):
        page = sized.size("page_size")
        last = sized.values.get("kv_last_page_len") or [page] * len(keys)
        keys = [(pages - 1) * page + last[row] if pages else 0 for row, pages in enumerate(keys)]
    if sized.has("qo_indptr"):
        return [end - start for start, end in pairwise(sized.values["qo_indptr"])], keys
    return [1] * len(keys), keys


def _used_tokens(sized: Sized, tokens: int, *caches: str) -> dict[str, float]:
    if not any(map(sized.has, caches)):
        return {}
    held = sized.size("num_pages") * sized.size("page_size")
    return sized.part(min(1.0, tokens / held) if held else 0.0, *caches)


def _gdn(sized: Sized) -> Counted:
    """Six d² operations for a token and value head: state times key, its update, state times query."""
    tokens = sized.axes.get("total_seq_len") or sized.size("batch_size") * sized.size("seq_len")
    used = {}
    if "pool_size" in sized.axes:
        share = min(1.0, sized.size("batch_size") / sized.size("pool_size"))
        used = sized.part(share, "initial_state", "intermediate_states_buffer", "final_state")
    return 6.0 * tokens * sized.size("num_v_heads") * sized.size("head_size") ** 2, used


def _mamba(sized: Sized) -> Counted:
    """Five operations for each element of the state. The used slots of the pool are read and written."""
    batch = sized.size("batch_size")
    state = sized.size("nheads") * sized.size("head_dim", "dim") * sized.size("dstate")
    share = min(1.0, batch / sized.size("state_cache_size"))
    return 5.0 * batch * state, sized.part(share, "state", "new_state")


def _moe(sized: Sized) -> Counted:
    """6 h i for each pair of a token and an expert. Pairs and active experts are those of uniform routing."""
    tokens = sized.size("seq_len", "num_tokens")
    local = sized.size("num_local_experts", "local_experts", "num_experts")
    experts = sized.axes.get("num_experts", local)
    share = (sized.axes.get("top_k") or int(TOP_K.findall(sized.definition.name)[0])) / experts
    hidden, inner = sized.size("hidden_size"), sized.size("intermediate_size")
    active = 1 - (1 - min(share, 1.0)) ** tokens
    weights = [name for name in sized.definition.inputs if name.startswith(("gemm", "output"))]
    return 6.0 * tokens * share * local * hidden * inner, sized.part(active, *weights)


def _sampling(sized: Sized) -> Counted:
    """Choosing, renormalising and masking cost bytes only. Softmax takes five operations for each element."""
    name = sized.definition.name.lower()
    if "softmax" in name:
        return 5.0 * prod(sized.shape(sized.first_input)), {}
    chooses = any(DTYPES[spec.dtype].kind == "int" for spec in sized.definition.outputs.values())
    if not chooses and not COMPARES.search(name):
        raise LookupError  # anything may give floats
    return 0.0, {}


FORMULAS: Final[Mapping[str, Callable[[Sized], Counted]]] = {
    "gemm": _gemm,
    "lowbit": _lowbit,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "gqa_paged": _attention,
    "gqa_ragged": _attention,
    "mla_paged": _attention,
    "mla_ragged": _attention,
    "dsa_paged": _dsa,
    "gdn": _gdn,
    "mamba_ssu": _mamba,
    "moe": _moe,
    "sampling": _sampling,
}
"""Op type → the function that counts its cost."""
