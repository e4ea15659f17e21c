"""What a definition costs on a workload, by op type and by the names of axes and inputs that the format gives.

FLOPs follow the true lengths. Bytes are those of all inputs and outputs; of a pool (cached tokens, experts, states,
angles) only the part that the workload uses counts. A definition has no cost where its axes have other names, its
lengths or mask are not known, or its inputs contradict each other: no cost is better than a wrong one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.dtypes import DTYPES, Unit
from flashinfer_bench.roofline.attention import count_attention, count_dsa, count_mla
from flashinfer_bench.roofline.cost import UNIT_OF, Cost, size_of
from flashinfer_bench.roofline.sized_definition import Counted, SizedDefinition, Unknown, Values

PLAIN: Final = ("rmsnorm", "rope", "sampling")
"""Op types without a product of matrices: their unit is fp32."""
NO_FACTOR: Final = re.compile(r"scale|logits|^weights$|cache$")
"""Names of inputs that tensor cores do not multiply, or that may hold anything."""
COMPARES: Final = re.compile(r"renorm|mask")
"""Names of operations on scores that give scores."""


def find_cost(definition: Definition, axes: Mapping[str, int], values: Values | None = None) -> Cost | None:
    """Return what one call costs; None where the op type, its axes or its lengths are not known.

    Args:
        definition: what is computed.
        axes: every axis by name.
        values: the known values of index inputs.
    """
    sized = SizedDefinition(definition, axes, values or {})
    count = FORMULAS.get(definition.op_type.replace("-", "_"))
    if count is None:
        return None
    try:
        flops, used = count(sized)
        names = [*definition.inputs, *definition.outputs]
        total = sum(used[name] if name in used else sized.nbytes(name) for name in names)
        return Cost(flops, total, _unit(sized)) if min(flops, total) >= 0 else None
    except (
        Unknown,
        LookupError,
        ArithmeticError,
        ValueError,
    ):  # stored numbers may be anything
        return None


def _unit(sized: SizedDefinition) -> Unit:
    """Return the unit: that of the wider of the first and the largest factor; fp32 for plain op types.

    Raises:
        Unknown: whole numbers are multiplied; no peak is listed for them.
    """
    definition = sized.definition
    if definition.op_type in PLAIN:
        return "fp32"
    factors = [
        name
        for name, spec in definition.inputs.items()
        if DTYPES[spec.dtype].kind == "float" and len(spec.shape or ()) >= 2 and not NO_FACTOR.search(name.lower())
    ]
    if not factors:
        raise Unknown(f"{definition.name} has no factor that is a float")
    chosen = (factors[0], max(factors, key=lambda name: prod(sized.shape(name))))
    return UNIT_OF.get(max((definition.inputs[name].dtype for name in chosen), key=size_of), "fp32")


def _gemm(sized: SizedDefinition) -> Counted:
    """2 m n k: every element of the output sums over the last axis of the first input."""
    first, out = sized.first_input, sized.first_output
    rows, columns = sized.shape(first), sized.shape(out)
    if rows[:-1] != columns[:-1]:
        raise Unknown(f"{out} does not have the rows of {first}")
    return 2.0 * prod(columns) * rows[-1], {}


def _lowbit(sized: SizedDefinition) -> Counted:
    """As a GEMM where the definition is a product of two matrices. Others (quantizers, norms, RoPE) have no cost.

    In a product a second matrix, which is no scale, has the output's last axis and at least one bit for each column of
    the first input. The first input is a float: whole numbers may be packed, and then its axis is not the summed one.
    """
    definition = sized.definition
    first, out = sized.first_input, sized.first_output
    summed, kept = (definition.inputs[first].shape or [""])[-1], (definition.outputs[out].shape or [""])[-1]
    matrices = [name for name, spec in definition.inputs.items() if len(spec.shape or ()) >= 2 and name != first]
    others = [
        name for name in matrices if kept in (definition.inputs[name].shape or ()) and "scale" not in name.lower()
    ]
    wanted = sized.shape(first)[-1] * sized.shape(out)[-1]
    has_factor = any(8 * sized.nbytes(name) >= wanted for name in others)
    if summed == kept or not has_factor or DTYPES[definition.inputs[first].dtype].kind != "float":
        raise Unknown(f"{definition.name} is no product of two matrices that can be told")
    return _gemm(sized)


def _rmsnorm(sized: SizedDefinition) -> Counted:
    """Five operations for each element (square, add, two multiplications, mean and root); six with a residual."""
    each = 6 if "residual" in sized.definition.inputs else 5
    return float(each * prod(sized.shape(sized.first_input))), {}


def _rope(sized: SizedDefinition) -> Counted:
    """Three operations for each rotated element. At most one row of angles is read for each token.

    A part of a head may be rotated, so the size of a head alone is not enough.
    """
    tokens, heads = sized.size("num_tokens", "tokens", "nnz"), sized.size("num_qo_heads", "num_heads")
    heads += sized.size("num_kv_heads")
    has_cache = "cos_sin_cache" in sized.definition.inputs
    is_named = "rotary_dim" in sized.axes or not has_cache
    rotary = sized.size("rotary_dim") if is_named else sized.shape("cos_sin_cache")[-1]
    used = {}
    if has_cache:
        used["cos_sin_cache"] = sized.nbytes("cos_sin_cache") * min(1.0, tokens / sized.size("max_seq_len"))
    return 3.0 * tokens * heads * rotary, used


def _gdn(sized: SizedDefinition) -> Counted:
    """Six d² operations for a token and value head: state times key, its update, state times query."""
    tokens = sized.axes.get("total_seq_len") or sized.size("batch_size") * sized.size("seq_len")
    used = {}
    if "pool_size" in sized.axes:
        share = min(1.0, sized.size("batch_size") / sized.size("pool_size"))
        pooled = ("initial_state", "intermediate_states_buffer", "final_state")
        known = {*sized.definition.inputs, *sized.definition.outputs}
        used = {name: sized.nbytes(name) * share for name in pooled if name in known}
    return 6.0 * tokens * sized.size("num_v_heads") * sized.size("head_size") ** 2, used


def _mamba(sized: SizedDefinition) -> Counted:
    """Five operations for each element of the state. The used slots of the pool are read and written."""
    batch = sized.size("batch_size")
    state = sized.size("nheads") * sized.size("head_dim", "dim") * sized.size("dstate")
    share = min(1.0, batch / sized.size("state_cache_size"))
    return 5.0 * batch * state, {name: sized.nbytes(name) * share for name in ("state", "new_state")}


def _moe(sized: SizedDefinition) -> Counted:
    """6 h i for each pair of a token and an expert. Pairs and active experts are those of uniform routing."""
    tokens = sized.size("seq_len", "num_tokens")
    local = sized.size("num_local_experts", "local_experts", "num_experts")
    experts = sized.axes.get("num_experts", local)
    top_k = sized.axes["top_k"] if "top_k" in sized.axes else _top_k_of_name(sized.definition.name)
    share = top_k / experts
    hidden, inner = sized.size("hidden_size"), sized.size("intermediate_size")
    active = 1 - (1 - min(share, 1.0)) ** tokens
    weights = [name for name in sized.definition.inputs if name.startswith(("gemm", "output"))]
    return 6.0 * tokens * share * local * hidden * inner, {name: sized.nbytes(name) * active for name in weights}


def _top_k_of_name(name: str) -> int:
    """Read the top-k from a name such as moe_..._topk8_...: routed definitions have no axis for it."""
    for part in name.split("_"):
        if part.startswith("topk") and part[4:].isdigit():
            return int(part[4:])
    raise Unknown(f"{name} does not tell its top-k")


def _sampling(sized: SizedDefinition) -> Counted:
    """Choosing, renormalising and masking cost bytes only. Softmax takes five operations for each element."""
    definition = sized.definition
    if "softmax" in definition.name.lower():
        return 5.0 * prod(sized.shape(sized.first_input)), {}
    chooses = any(DTYPES[spec.dtype].kind == "int" for spec in definition.outputs.values())
    if not chooses and not COMPARES.search(definition.name.lower()):
        raise Unknown(f"{definition.name} may be anything that gives floats")
    return 0.0, {}


FORMULAS: Final[Mapping[str, Callable[[SizedDefinition], Counted]]] = {
    "gemm": _gemm,
    "lowbit": _lowbit,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "gqa_paged": count_attention,
    "gqa_ragged": count_attention,
    "mla_paged": count_mla,
    "mla_ragged": count_mla,
    "dsa_paged": count_dsa,
    "gdn": _gdn,
    "mamba_ssu": _mamba,
    "moe": _moe,
    "sampling": _sampling,
}
"""Op type → the function that counts its cost."""
