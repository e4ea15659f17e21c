"""What a definition costs on a workload, by op type: FLOPs and bytes with true lengths, by the names of the format.

Bytes are those of all inputs and outputs, but of what is pooled (cached tokens, experts, states, angles) only the part
that the workload uses. A definition whose axes have other names, or whose lengths are not known, has no cost.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.roofline.cost import UNIT_OF, Cost, size_of

Values = Mapping[str, Sequence[int]]
"""Input name to its numbers: offsets, lengths, indices."""


PLAIN: Final = ("rmsnorm", "rope", "sampling")
"""Op types without a product of matrices."""
NO_FACTOR: Final = re.compile(r"scale|logits|^weights$|cache$")
"""Inputs that are multiplied with nothing on tensor cores, or that may hold anything."""


class Unknown(Exception):
    """An axis or a length that the formula needs is not there."""


@dataclass(frozen=True)
class Problem:
    """A definition with everything bound."""

    definition: Definition
    axes: Mapping[str, int]
    """Every axis."""
    values: Values = field(default_factory=dict)

    def size(self, *names: str) -> int:
        """Return the size of the first of these axes that there is.

        Raises:
            Unknown: none is there.
        """
        for name in names:
            if name in self.axes:
                return self.axes[name]
        raise Unknown(f"{self.definition.name} has no axis {' or '.join(names)}")

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an input or output, in elements."""
        spec = {**self.definition.inputs, **self.definition.outputs}[name]
        return tuple(self.axes[axis] if axis in self.axes else int(axis) for axis in spec.shape or ())

    def nbytes(self, name: str) -> float:
        """Return the bytes of an input or output; a single number counts none."""
        spec = {**self.definition.inputs, **self.definition.outputs}[name]
        return 0.0 if spec.shape is None else prod(self.shape(name)) * size_of(spec.dtype)

    def numbers(self, *names: str) -> Sequence[int]:
        """Return the numbers of the first of these inputs that is known.

        Raises:
            Unknown: none is.
        """
        for name in names:
            if name in self.values:
                return self.values[name]
        raise Unknown(f"{self.definition.name}: the values of {' or '.join(names)} are not known")


def find_cost(definition: Definition, axes: Mapping[str, int], values: Values | None = None) -> Cost | None:
    """Return what one call costs; None where the op type, its axes or its lengths are not known.

    Args:
        definition: what is computed.
        axes: every axis by name.
        values: the index inputs that are known.
    """
    problem = Problem(definition, axes, values or {})
    count = FORMULAS.get(definition.op_type.replace("-", "_"))
    if count is None:
        return None
    try:
        flops, used = count(problem)
    except (Unknown, KeyError):
        return None
    names = [*definition.inputs, *definition.outputs]
    total = sum(used[name] if name in used else problem.nbytes(name) for name in names)
    return Cost(flops, total, _unit(problem))


Counted = tuple[float, Mapping[str, float]]
"""FLOPs, and the bytes of inputs and outputs that are not used whole."""


def _unit(problem: Problem) -> str:
    """Return what multiplies: the wider of the first and the largest factor; plain arithmetic where nothing does."""
    definition = problem.definition
    if definition.op_type in PLAIN:
        return "fp32"
    factors = [
        name
        for name, spec in definition.inputs.items()
        if DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) >= 2 and not NO_FACTOR.search(name.lower())
    ]
    if not factors:
        return "fp32"
    chosen = (factors[0], max(factors, key=lambda name: prod(problem.shape(name))))
    return UNIT_OF.get(max((definition.inputs[name].dtype for name in chosen), key=size_of), "fp32")


def _gemm(problem: Problem) -> Counted:
    """2 m n k: every element of the output sums over the last axis of the first input."""
    first, out = next(iter(problem.definition.inputs)), next(iter(problem.definition.outputs))
    return 2.0 * prod(problem.shape(out)) * problem.shape(first)[-1], {}


def _rmsnorm(problem: Problem) -> Counted:
    """Five operations an element (square, add, two multiplications, a share of mean and root), six with a residual."""
    first = next(iter(problem.definition.inputs))
    each = 6 if "residual" in problem.definition.inputs else 5
    return float(each * prod(problem.shape(first))), {}


def _rope(problem: Problem) -> Counted:
    """Three operations a rotated element; of the angles at most one row a token is read."""
    tokens, rotary = problem.size("num_tokens", "tokens", "nnz"), problem.size("rotary_dim", "head_size", "head_dim")
    heads = problem.size("num_qo_heads") + problem.size("num_kv_heads")
    used = {}
    if "cos_sin_cache" in problem.definition.inputs:
        used["cos_sin_cache"] = problem.nbytes("cos_sin_cache") * min(1.0, tokens / problem.size("max_seq_len"))
    return 3.0 * tokens * heads * rotary, used


def count_pairs(queries: Sequence[int], keys: Sequence[int], *, causal: bool) -> int:
    """Count the pairs of a query and a key that it sees; causal: the last query sees all keys."""
    if not causal:
        return sum(q * kv for q, kv in zip(queries, keys, strict=True))
    return sum(q * (2 * kv - q + 1) // 2 for q, kv in zip(queries, keys, strict=True))


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


def _attention(problem: Problem) -> Counted:
    """2 pairs Hq (dqk + dvo); of a paged cache the tokens in use. Prefill of this format is causal."""
    queries, keys = _lengths(problem)
    qk = problem.size("head_dim", "qk_dim", "head_dim_qk")
    vo = problem.size("head_dim", "vo_dim", "head_dim_vo")
    pairs = count_pairs(queries, keys, causal="qo_indptr" in problem.definition.inputs)
    used = _used_tokens(problem, ("k_cache", "v_cache"), sum(keys))
    return 2.0 * pairs * problem.size("num_qo_heads") * (qk + vo), used


def _mla(problem: Problem) -> Counted:
    """2 pairs H (2 ckv + kpe): scores over both parts, values from the compressed one."""
    if "ckv_cache" not in problem.definition.inputs:
        return _attention(problem)
    queries, keys = _lengths(problem)
    pairs = count_pairs(queries, keys, causal="qo_indptr" in problem.definition.inputs)
    ckv, kpe = problem.size("head_dim_ckv"), problem.size("head_dim_kpe")
    used = _used_tokens(problem, ("ckv_cache", "kpe_cache"), sum(keys))
    return 2.0 * pairs * problem.size("num_qo_heads") * (2 * ckv + kpe), used


def _used_tokens(problem: Problem, caches: Sequence[str], tokens: int) -> dict[str, float]:
    used = {}
    for name in caches:
        if name in problem.definition.inputs:
            held = problem.size("num_pages") * problem.size("page_size")
            used[name] = problem.nbytes(name) * min(1.0, tokens / held) if held else 0.0
    return used


def _dsa(problem: Problem) -> Counted:
    """Attention: as MLA over the chosen tokens. Indexer: 2 heads dim for every cached token."""
    if "sparse_indices" in problem.definition.inputs:
        chosen = [index for index in problem.numbers("sparse_indices") if index >= 0]
        ckv, kpe = problem.size("head_dim_ckv"), problem.size("head_dim_kpe")
        used = _used_tokens(problem, ("ckv_cache", "kpe_cache"), len(set(chosen)))
        return 2.0 * len(chosen) * problem.size("num_qo_heads") * (2 * ckv + kpe), used
    tokens = sum(problem.numbers("seq_lens"))
    used = _used_tokens(problem, ("k_index_cache_fp8",), tokens)
    return 2.0 * tokens * problem.size("num_index_heads") * problem.size("index_head_dim"), used


def _gdn(problem: Problem) -> Counted:
    """Six d² operations for a token and value head: state times key, its update, state times query."""
    tokens = problem.axes.get("total_seq_len") or problem.size("batch_size") * problem.size("seq_len")
    used = {}
    if "pool_size" in problem.axes:
        share = min(1.0, problem.size("batch_size") / problem.size("pool_size"))
        pooled = ("initial_state", "intermediate_states_buffer", "final_state")
        known = {*problem.definition.inputs, *problem.definition.outputs}
        used = {name: problem.nbytes(name) * share for name in pooled if name in known}
    return 6.0 * tokens * problem.size("num_v_heads") * problem.size("head_size") ** 2, used


def _mamba(problem: Problem) -> Counted:
    """Five operations an element of the state; of the pool the slots in use, read and written."""
    batch = problem.size("batch_size")
    state = problem.size("nheads") * problem.size("head_dim", "dim") * problem.size("dstate")
    share = min(1.0, batch / problem.size("state_cache_size"))
    return 5.0 * batch * state, {name: problem.nbytes(name) * share for name in ("state", "new_state")}


def _moe(problem: Problem) -> Counted:
    """6 h i for a pair of a token and an expert; pairs and active experts as uniform routing has them."""
    tokens = problem.size("seq_len", "num_tokens")
    local = problem.size("num_local_experts", "local_experts", "num_experts")
    experts = problem.axes.get("num_experts", local)
    share = problem.axes.get("top_k", _top_k_of_name(problem.definition.name)) / experts
    hidden, inner = problem.size("hidden_size"), problem.size("intermediate_size")
    active = 1 - (1 - min(share, 1.0)) ** tokens
    weights = [name for name in problem.definition.inputs if name.startswith(("gemm", "output"))]
    return 6.0 * tokens * share * local * hidden * inner, {name: problem.nbytes(name) * active for name in weights}


def _top_k_of_name(name: str) -> int:
    """Read the experts of a token off a name such as moe_..._topk8_...: routed definitions have no axis for it."""
    for part in name.split("_"):
        if part.startswith("topk") and part[4:].isdigit():
            return int(part[4:])
    raise Unknown(f"{name} does not tell its top-k")


def _no_arithmetic(problem: Problem) -> Counted:
    """Comparisons, not arithmetic: bytes bound it."""
    del problem
    return 0.0, {}


FORMULAS: Final[Mapping[str, Callable[[Problem], Counted]]] = {
    "gemm": _gemm,
    "lowbit": _gemm,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "gqa_paged": _attention,
    "gqa_ragged": _attention,
    "mla_paged": _mla,
    "mla_ragged": _mla,
    "dsa_paged": _dsa,
    "gdn": _gdn,
    "mamba_ssu": _mamba,
    "moe": _moe,
    "sampling": _no_arithmetic,
}
"""Op type to what counts it."""
