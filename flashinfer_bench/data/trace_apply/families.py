"""The translations to FlashInfer's Trace Apply, one row for each family of definitions. The first matching row is used.

FlashInfer derives a name from each call: a prefix and the sizes of the const axes. Solutions are found only by this
name. FlashInfer passes only the inputs of its own template. So a row has the required interface of a definition, the
source that translates the call, and the inputs that FlashInfer omits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Final

from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.trace_apply.wrappers import ATTENTION, GEMM, PAGED, ROPE, SAMPLER

ANY: Final = "*"
WORD: Final = re.compile(r"->|\w+|\S")


@dataclass(frozen=True)
class Family:
    """How definitions of one form are written for Trace Apply."""

    pattern: str
    """Regular expression for a definition's whole name. The groups are sizes."""
    name: str
    """FlashInfer's name, with the groups of the pattern."""
    interface: str = ""
    """Inputs and outputs as "name dtype[axes]". An axis is a group of the pattern, or a size. `*` matches any word.
    `dtype` means the dtype of the first input."""
    wrapper: str = ""
    """The source of `run`, which FlashInfer calls. Empty if FlashInfer passes the definition's inputs directly."""
    writes_alike: bool = False
    """Whether the output has the shape and dtype of an input, so that FlashInfer can allocate it."""
    limits: tuple[str, ...] = ()
    """Properties of a call that FlashInfer does not pass or compare, described for people."""
    sizes: Mapping[str, str] = field(default_factory=dict)
    """Group of the pattern → the size in a definition's name."""


_NO_DTYPE: Final = "FlashInfer compares neither dtypes nor strides: calls should have those of the definition"
_EPS: Final = "eps is not passed: calls with another eps than the solution's get wrong results"
_CAUSAL: Final = "causal is not passed: calls without a causal mask match too, and get wrong results"
_RUN_ONLY: Final = "window_left, logits_soft_cap, masks and the scales of q, k, v are not passed"
_PLANNED: Final = "a captured CUDA graph keeps the indptr of the plan() before it"
_RESULTS: Final = "-> * dtype[* h d] * float32[* h]"
_CACHE: Final = "k_cache *[* 1 kv d] v_cache *[* 1 kv d]"
_PAGES: Final = "kv_indptr int32[*] kv_indices int32[*] sm_scale float32"
_RAGGED: Final = "qo_indptr int32[*] kv_indptr int32[*] sm_scale float32"
_GQA: Final = r"h(?P<h>\d+)_kv(?P<kv>\d+)_d(?P<d>\d+)"

FAMILIES: Final = (
    Family(
        r"rmsnorm_h(?P<h>\d+)",
        r"rmsnorm_h\g<h>",
        "hidden_states dtype[* h] weight dtype[h] -> output dtype[* h]",
        writes_alike=True,
        limits=(_EPS, _NO_DTYPE),
    ),
    Family(
        r"fused_add_rmsnorm_h(?P<h>\d+)",
        r"fused_add_rmsnorm_h\g<h>",
        "hidden_states dtype[* h] residual dtype[* h] weight dtype[h] -> * dtype[* h] * dtype[* h]",
        limits=(_EPS, _NO_DTYPE),
    ),
    Family(
        r"gemm_n(?P<n>\d+)_k(?P<k>\d+)",
        r"gemm_bf16_N\g<n>_K\g<k>",
        "A bfloat16[* k] B bfloat16[n k] -> * bfloat16[* n]",
        GEMM,
        limits=("bias and out_dtype are not passed: calls with a bias match too, and get wrong results",),
    ),
    Family(
        rf"gqa_ragged_prefill_causal_{_GQA}",
        r"gqa_ragged_h\g<h>_kv\g<kv>_d\g<d>",
        f"q *[* h d] k *[* kv d] v *[* kv d] {_RAGGED} {_RESULTS}",
        ATTENTION,
        limits=(_CAUSAL, _PLANNED, _RUN_ONLY),
    ),
    Family(
        r"mla_ragged_prefill_causal_h(?P<h>\d+)_qk(?P<d>\d+)_vo(?P<vo>\d+)",
        r"gqa_ragged_h\g<h>_kv\g<h>_d\g<d>",
        f"q *[* h d] k *[* h d] v *[* h vo] {_RAGGED} -> * dtype[* h vo] * float32[* h]",
        ATTENTION,
        limits=(_CAUSAL, _PLANNED, _RUN_ONLY, "the head size of v is not in the name"),
    ),
    Family(
        rf"gqa_paged_decode_{_GQA}_ps1",
        r"gqa_paged_decode_h\g<h>_kv\g<kv>_d\g<d>_ps1",
        f"q *[* h d] {_CACHE} {_PAGES} {_RESULTS}",
        PAGED,
        limits=(_RUN_ONLY,),
    ),
    Family(
        rf"gqa_paged_prefill_causal_{_GQA}_ps1",
        r"gqa_paged_prefill_h\g<h>_kv\g<kv>_d\g<d>_ps1",
        f"q *[* h d] {_CACHE} qo_indptr int32[*] {_PAGES} {_RESULTS}",
        PAGED,
        limits=(_CAUSAL, _PLANNED, _RUN_ONLY),
    ),
    Family(
        r"rope_with_cos_sin_cache_neox_style_d(?P<d>\d+)_rd(?P<rd>\d+)",
        r"rope_cos_sin_cache_d\g<d>",
        "q dtype[* * d] k dtype[* * d] cos_sin_cache float32[* rd] positions *[*] -> * dtype[* * d] * dtype[* * d]",
        ROPE,
        limits=(
            "apply_rope_with_cos_sin_cache_inplace keeps FlashInfer's kernel",
            "calls of another rotary width or of the interleaved style have the same name, and raise",
        ),
    ),
    *(
        Family(
            rf"{kind}_sampling_from_probs_v(?P<v>\d+)",
            rf"{kind}_sampling_v\g<v>",
            f"probs float32[* v] {thresholds} -> * *[*]",
            SAMPLER,
            limits=("indices, seed, generator and return_valid are not passed: draws cannot be repeated by a seed",),
        )
        for kind, thresholds in (
            ("top_k", "top_k int32[*]"),
            ("top_p", "top_p float32[*]"),
            ("top_k_top_p", "top_k int32[*] top_p float32[*]"),
        )
    ),
)
"""Rows for the bundled and the published definitions."""
REFUSED: Final = {
    r"(gqa_paged_(decode|prefill(_causal)?)|mla_paged_decode)_.*_ps(?!1$)\d+": "FlashInfer does not pass "
    "kv_last_page_len, so a last page that is not full would be read as full",
    r"mla_paged_decode_.*_ps1": "prefill calls of BatchMLAPagedAttentionWrapper have the same name, and qo_indptr is "
    "not passed",
    r"(mla_paged_prefill_causal|dsa_sparse_attention)_.*": "no API of FlashInfer makes a name of this form",
    r"gdn_(decode|mtp)_.*": "FlashInfer imports the API too late for FLASHINFER_TRACE_APPLY, two APIs with different "
    "state layouts share the name, and use_qk_l2norm is not passed",
    r"gdn_prefill_.*": "FlashInfer passes gates that are already computed; A_log and dt_bias never come",
    r"mamba_ssu_decode_.*": "FlashInfer does not pass state_batch_indices",
    r"moe_fp8_block_scale_.*": "calls of every routing method have one name there, and n_group and topk_group are not "
    "passed",
    r"trtllm_fp[48]_.*moe_.*": "FlashInfer's weights are shuffled or packed, the definition's are plain",
    r"gemm_fp8_block_scale_.*": "the layout of the scales is not passed, and calls without scales have the same name",
}
"""Pattern of a definition's name → why a definition of this form is never written."""
DUMP_TAG: Final = "fi_api:"
"""Prefix of the tag that names the API of a dumped definition."""
UNREACHED: Final = re.compile(
    r"flashinfer\.(gdn_decode|comm|concat_ops|attention\.prims_ts|cute_dsl\.attention\.wrappers)\b"
)
"""APIs that FlashInfer imports too late: Trace Apply has read the environment by then."""
NEVER_MADE: Final = re.compile(
    r"(moe_fp[48]_block_scale|trtllm_batch_decode_(block_sparse|mla_ragged|mla_sparse)|mm_bf16_fp4_cute_dsl"
    r"|sm90_mixed_gemm_humming_weight_preprocess_logical|attention_ts|prims_ts)(_.*)?"
)
"""Names that occur in dumps, but that no call gets. Trace Apply names calls by the first template of an API."""
WRITTEN_IN_PLACE: Final = re.compile(
    r"(gemma_fused_add_rmsnorm|(llama31_)?rope(_pos_ids|_cos_sin_cache)?_inplace|concat_mla_k|fused_topk_deepseek"
    r"|append_paged|xqa(_mla)?_h|nvfp4_kv_dequantize|merge_state_in_place|tinygemm|mm_M1_16)_?.*"
)
"""Names of APIs that write into their arguments. Trace Apply cannot replace these APIs, or loses a result."""


def translate(definition: Definition) -> Family:
    """Return the family of a definition, with FlashInfer's name and the sizes.

    Raises:
        ValueError: no call of FlashInfer has the definition's meaning; the text is the reason.
    """
    for family in FAMILIES:
        if found := re.fullmatch(family.pattern, definition.name):
            sizes, own = found.groupdict(), _describe(definition)
            sizes["dtype"] = next(iter(definition.inputs.values())).dtype
            wanted = [sizes.get(word, word) for word in WORD.findall(family.interface)]
            if any(one not in (ANY, two) for one, two in zip_longest(wanted, WORD.findall(own))):
                raise ValueError(f"it is {own}; FlashInfer's call is like {family.interface}")
            return replace(family, name=found.expand(family.name), sizes=sizes)
    for pattern, reason in REFUSED.items():
        if re.fullmatch(pattern, definition.name):
            raise ValueError(reason)
    return _translate_dump(definition)


def _translate_dump(definition: Definition) -> Family:
    """Return the family of a definition that FlashInfer dumped. The definition has FlashInfer's name and inputs."""
    api = next((tag.removeprefix(DUMP_TAG) for tag in definition.tags if tag.startswith(DUMP_TAG)), "")
    for is_wrong, reason in (
        (not api, "FlashInfer has no call of this form: neither its name nor a tag fi_api: is known"),
        (not all(map(str.isidentifier, (definition.name, *definition.inputs))), "its names are not FlashInfer's"),
        (UNREACHED.match(api), f"FlashInfer imports {api} too late for FLASHINFER_TRACE_APPLY"),
        (NEVER_MADE.fullmatch(definition.name), "Trace Apply gives calls of this API another name than a dump has"),
        (WRITTEN_IN_PLACE.fullmatch(definition.name), "the API writes into arguments that Trace Apply does not know"),
    ):
        if is_wrong:
            raise ValueError(reason)
    return Family(
        "",
        definition.name,
        limits=(_NO_DTYPE, "arguments that the dump does not list, such as eps, causal or bias, are not passed"),
    )


def _describe(definition: Definition) -> str:
    """Return the interface of a definition in the form of `Family.interface`."""
    sizes, sides = definition.const_axes, list[str]()
    for specs in (definition.inputs, definition.outputs):
        axes = {name: [str(sizes.get(axis, axis)) for axis in spec.shape or ()] for name, spec in specs.items()}
        shapes = {name: "" if spec.shape is None else f"[{' '.join(axes[name])}]" for name, spec in specs.items()}
        sides.append(" ".join(f"{name} {spec.dtype}{shapes[name]}" for name, spec in specs.items()))
    return " -> ".join(sides)
