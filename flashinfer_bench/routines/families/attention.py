"""The attention family: paged decode, paged and ragged prefill, and MLA over a paged cache.

A sequence has q queries and kv keys, which make q kv pairs. A causal mask leaves q (2 kv - q + 1) / 2 pairs, because
only the last query sees all keys. A pair takes 2 Hq (dqk + dvo) FLOPs, with Hq query heads, and dimensions dqk of
queries and dvo of values. Bytes are page tables, and the queries, keys, values and outputs within the true lengths. In
MLA, keys have ckv + kpe elements, and values are the first ckv elements of keys.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import (
    ALL,
    AMPERE_ON,
    BLACKWELL,
    DTYPES,
    FP8,
    GEFORCE,
    HALF,
    HOPPER,
    PDL,
    Case,
    Check,
    Routine,
    counted,
    from_zero,
    generator,
    needed,
    offsets,
    require,
    size,
    split,
    stored,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.moe import E2M1_DEVIATION

IS_VARIED: Final = {"true": True, "false": False, "auto": None}
FLAGS: Final = (
    from_zero("page_size", "tokens of a page"),
    size("batch_size", "number of sequences"),
    whole("s_qo", "queries of a sequence, at most", 1),
    size("s_kv", "keys of a sequence, at most"),
    size("num_qo_heads", "query heads"),
    size("num_kv_heads", "key and value heads"),
    whole("head_dim_qk", "dimension of queries and keys"),
    whole("head_dim_vo", "dimension of values (default: head_dim_qk)"),
    whole("head_dim_ckv", "MLA: compressed dimension"),
    whole("head_dim_kpe", "MLA: rotated dimension"),
    word("q_dtype", "dtype of queries", "bfloat16", (*HALF, "fp8_e4m3")),
    word("kv_dtype", "dtype of keys and values; nvfp4 in pages with fp8 queries", "bfloat16", (*HALF, *FP8, "nvfp4")),
    word("out_dtype", "dtype of outputs (default: q_dtype)", None, (*HALF, "fp8_e4m3")),
    switch("causal", "causal mask: a query sees no later keys"),
    switch("random_actual_seq_len", "random lengths up to the given lengths"),
    word("spec_dec_mask", "accepted; no effect, for decoding takes one query", None, ("causal", "full")),
    word("mla_is_var_seq", "MLA: what the library is told about lengths; auto: the truth", None, tuple(IS_VARIED)),
    word("mla_cute_dsl_impl", "MLA: the implementation of cute-dsl", None, ("auto", "modular", "monolithic")),
    switch("autotune", "MLA: let the library tune before timing"),
    PDL,
)
MLA_NOPE_DIM: Final = 128
"""Dimension of the unrotated part of DeepSeek's heads. The scale of scores depends on this part and on the rotated
part."""
ERROR: Final = 0.035
"""Allowed error, as a share of an output's standard deviation in the longest sequence. Kernels round probabilities and
outputs to bfloat16."""
PROBABILITY_ERROR: Final = 2**-7
"""Allowed error as a share of an output's standard deviation, for the query that sees the fewest keys."""
FP8_ERROR: Final = 0.1
"""Replaces `ERROR` for an fp8 cache, because a kernel may also convert the queries."""
FP8_STEP: Final = 2**-3
"""Distance between neighbouring values of an fp8 output, as a share of the values."""
SHAPES: Final = {
    "decode": (
        "gqa_paged",
        "batch_size num_qo_heads head_dim_qk",
        "head_dim_qk",
        "2 page_size num_kv_heads head_dim_qk",
    ),
    "paged": ("gqa_paged", "queries num_qo_heads head_dim_qk", "head_dim_qk", "2 page_size num_kv_heads head_dim_qk"),
    "ragged": ("gqa_ragged", "queries num_qo_heads head_dim_qk", "head_dim_vo", ""),
    "mla": ("mla_paged", "batch_size s_qo num_qo_heads head_dim", "head_dim_ckv", "page_size head_dim"),
}
"""The name of a reference → the op type, the shape of queries, the last axis of outputs, and a page's shape."""
FP8_CACHE: Final = ("fa2", "fa2_tc", "auto")
"""Backends that take an fp8 cache with wider queries."""
FP8_QUERIES: Final = ("trtllm-gen", "trtllm-native", "trtllm-fmha-v2")
"""Backends that take fp8 queries over pages, and write outputs in another dtype."""
WRAPPERS: Final = ("fa2", "fa2_tc", "fa3", "auto")
"""Backends that can write bfloat16 for float16 queries, and the reverse."""
FA3_DIMS: Final = ((64, 64), (128, 128), (256, 256), (192, 128))
FMHA_V2_DIMS: Final = tuple((one, one) for one in (32, 40, 48, 64, 80, 96, 104, 128, 160, 192, 256))
"""The dimensions of trtllm-fmha-v2. Of these, compute capability 12.0 has 64, 128 and 256."""
TASK_DIMS: Final = ((128, 128), (256, 256))
DIMS: Final[Mapping[str, Mapping[str, Sequence[tuple[int, int]]]]] = {
    "fa3": {"paged": FA3_DIMS, "ragged": FA3_DIMS},
    "trtllm-fmha-v2": {"paged": FMHA_V2_DIMS, "ragged": FMHA_V2_DIMS},
    "trtllm-native": {"ragged": ((192, 128), (128, 128))},
    "prims-ts": {
        "decode": ((64, 64), *TASK_DIMS),
        "paged": TASK_DIMS,
        "ragged": TASK_DIMS,
        "mla": ((576, 512),),
    },
}
"""Backend → reference → dimensions of queries and of values for which there are kernels. All others have any."""
PAGE_SIZES: Final = (16, 32, 64, 128)
PAGED: Final = {"decode": ("trtllm-native", "prims-ts"), "paged": ("prims-ts",), "mla": ("cutlass", "prims-ts")}
"""Reference → backends that take only `PAGE_SIZES`."""


def _draw_lengths(args: Namespace) -> tuple[list[int], list[int]]:
    """Draw numbers of queries and keys for each sequence. No sequence has fewer keys than queries. If the flags --s_qo
    and --s_kv are equal, the numbers of keys and queries of a sequence are equal, too."""
    batch, q_max, kv_max = args.batch_size, args.s_qo, args.s_kv
    require(kv_max >= q_max, f"--s_kv {kv_max} is below --s_qo {q_max}")
    if not args.random_actual_seq_len:
        return [q_max] * batch, [kv_max] * batch
    source = generator(args)
    queries = source.integers(1, q_max + 1, size=batch).tolist()
    return queries, queries if q_max == kv_max else [int(source.integers(least, kv_max + 1)) for least in queries]


def make_check(fewest: int, most: int, kv_dtype: str, variance: float) -> Check:
    """Return a tolerance for the expected size of an output.

    Scores are normally distributed, with variance `variance`. So an output has the same standard deviation as a mean of
    kv / e^variance values. Kernels round probabilities to half precision, so the query that sees the fewest keys has
    the largest error.
    """
    largest, smallest = (math.sqrt(min(1.0, math.exp(variance) / count)) for count in (fewest, most))
    error = FP8_ERROR if size_of(kv_dtype) == 1 else ERROR
    return Check(2e-2, max(error * smallest, PROBABILITY_ERROR * largest))


def _refuse(args: Namespace, kind: str, dims: tuple[int, int]) -> dict[str, Any]:
    """Return backend → why the backend cannot run the case on any GPU."""
    is_decode, several = kind == "decode", kind == "mla" and args.s_qo > 1
    refusals: dict[str, Any] = {
        "fa2": is_decode
        and args.num_qo_heads // args.num_kv_heads not in (1, 2, 3, 4, 8)
        and "its kernels have 1, 2, 3, 4 or 8 query heads for a key head; fa2_tc takes any",
        "cudnn": is_decode
        and args.q_dtype != "bfloat16"
        and f"--q_dtype {args.q_dtype}: the library builds its graph for bfloat16",
        "cutlass": several and "one query a sequence",
    }
    if several and args.causal:
        refusals |= dict.fromkeys(("trtllm-native", "auto", "cute-dsl"), "its mask for several queries is its own")
    for backend, known in DIMS.items():
        if dims not in known.get(kind, (dims,)):
            pairs = ", ".join(f"{queries} and {values}" for queries, values in known[kind])
            refusals[backend] = f"head dimensions {dims[0]} and {dims[1]}: it has {pairs}"
    if args.page_size not in PAGE_SIZES:
        refusals |= dict.fromkeys(PAGED.get(kind, ()), "it has pages of 16, 32, 64 and 128")
    is_fp8 = args.q_dtype in FP8
    takers = FP8_QUERIES if is_fp8 and kind != "ragged" else () if is_fp8 or args.out_dtype in FP8 else WRAPPERS
    rules = (
        (args.kv_dtype in FP8 and not is_fp8, FP8_CACHE, "an fp8 cache with wider queries is not supported"),
        (args.kv_dtype == "nvfp4", ("trtllm-native",), "it takes no nvfp4 here"),
        (
            is_fp8 or args.out_dtype not in (None, args.q_dtype),
            takers,
            "it takes neither fp8 queries nor another dtype of outputs",
        ),
    )
    for holds, able, why in rules:
        refusals |= dict.fromkeys((name for name in BACKENDS[kind] if holds and name not in able), why)
    return refusals


def make_attention(args: Namespace, kind: str) -> Case:
    """Make a case of attention.

    A kernel that ignores the rotated part of MLA's queries fails, because the part has random values.

    Args:
        args: the flags.
        kind: the name of the reference. A query of `decode` sees all keys, even with --causal.
    """
    is_mla, is_ragged, batch, kv_heads = kind == "mla", kind == "ragged", args.batch_size, args.num_kv_heads
    require(args.s_qo == 1 or kind != "decode", f"--s_qo {args.s_qo}: decoding takes one query a sequence")
    alike = args.s_qo == 1 or not is_mla or not args.random_actual_seq_len
    require(alike, "--random_actual_seq_len goes with --s_qo 1 here")
    q, kv = DTYPES[args.q_dtype], DTYPES.get(args.kv_dtype, "float4_e2m1")
    is_fp4 = args.kv_dtype == "nvfp4"
    out = DTYPES[args.out_dtype or args.q_dtype]
    require(not is_mla or q == kv == out == "bfloat16", "--q_dtype and --kv_dtype: this routine takes bfloat16")
    is_low = is_fp4 if args.q_dtype in FP8 else args.kv_dtype in FP8
    alike = q == kv or (is_low and not is_ragged)
    require(alike, f"--kv_dtype {args.kv_dtype}: as --q_dtype; in a cache fp8, too, and nvfp4 with fp8 queries")
    if is_mla:
        vo = needed(args, "head_dim_ckv", " (512 in DeepSeek)")
        rotated = needed(args, "head_dim_kpe", " (64 in DeepSeek)")
        qk, scale = vo + rotated, 1 / math.sqrt(MLA_NOPE_DIM + rotated)
    else:
        qk = needed(args, "head_dim_qk")
        split(args, "num_qo_heads", kv_heads)
        vo, scale = args.head_dim_vo or qk, 1 / math.sqrt(qk)
        require(qk == vo or is_ragged, "--head_dim_vo: a paged cache holds keys and values of one dimension")
    queries, keys = _draw_lengths(args)
    op_type, rows, last, page = SHAPES[kind]
    lists = {} if kind in ("decode", "mla") else {"qo_indptr": offsets(queries)}
    if is_ragged:
        lists["kv_indptr"] = offsets(keys)
        caches = {"k": f"{kv}[keys num_kv_heads head_dim_qk]", "v": f"{kv}[keys num_kv_heads head_dim_vo]"}
    else:
        tokens = needed(args, "page_size")
        pages, used = batch * -(-args.s_kv // tokens), sum(-(-length // tokens) for length in keys)
        width = qk if is_mla else kv_heads * (qk + vo)
        caches = {"kv_cache": counted(f"{kv}[{pages} {page}]", sum(keys) * width)}
        if is_fp4:
            require(qk % 64 == tokens % 4 == 0, "nvfp4: --head_dim_qk in multiples of 64, --page_size of 4")
            blocks = f"float8_e4m3fn[{pages} {page.rpartition(' ')[0]} {qk // 16}]"
            caches["kv_scale"] = counted(blocks, sum(keys) * width / 16)
        table = stored(generator(args, 1).permutation(pages).reshape(batch, -1))
        lists |= {"block_tables": counted(table, used), "kv_lens": stored(keys)}
    lengths, average = [*zip(queries, keys, strict=True)], sum(keys) // batch
    pairs = sum(q * (2 * kv - q + 1) // 2 if args.causal else q * kv for q, kv in lengths)
    fewest = min(kv - q + 1 if args.causal else kv for q, kv in lengths)
    varied, impl = args.mla_is_var_seq, args.mla_cute_dsl_impl
    is_varied = args.random_actual_seq_len if varied == "auto" else IS_VARIED.get(varied)
    require(is_varied is not False or not args.random_actual_seq_len, "--mla_is_var_seq false: lengths are random")
    given = {"is_var_seq": is_varied, "cute_dsl_impl": impl}
    check = make_check(fewest, max(keys), q if is_fp4 else kv, qk * scale**2)
    return Case(
        op_type=op_type,
        axes={"queries": sum(queries), "keys": sum(keys), "head_dim": qk, "head_dim_vo": vo},
        inputs={"q": f"{q}[{rows}]", **caches, **lists},
        outputs={"out": f"{out}[{rows.rpartition(' ')[0]} {last}]"},
        reference=f"{kind}_nvfp4" if is_fp4 else kind,
        constants={
            "SM_SCALE": scale,
            "CAUSAL": bool(args.causal) and kind != "decode",
            "OUT_DTYPE": out,
            "FACTOR": 1 / E2M1_DEVIATION,
            "MLA_OPTIONS": {name: value for name, value in given.items() if value is not None},
        },
        flops=2 * pairs * args.num_qo_heads * (qk + vo),
        unit="fp16",
        check=replace(check, rtol=FP8_STEP) if size_of(out) == 1 else check,
        refusals=_refuse(args, kind, (qk, vo)),
        columns={"avg_actual_seq_len": average, "is_var_seq": varied, "cute_dsl_impl": impl},
        notes=(f"Average actual qo seq len: {sum(queries) // batch}", f"Average actual kv seq len: {average}"),
        shown={"actual_seq_lens_q": queries, "actual_seq_lens_kv": keys},
    )


def _routine(kind: str, name: str, summary: str, aliases: Mapping[str, str]) -> Routine:
    make = partial(make_attention, kind=kind)
    return Routine("attention", FLAGS, make, name, summary, BACKENDS[kind], {**aliases, "prims_ts": "prims-ts"})


FA2: Final = (*AMPERE_ON, "10.7", "12.1")
CUDNN: Final = (*AMPERE_ON, "12.1")
TASKS: Final = (*BLACKWELL, "10.7")
BACKENDS: Final = {
    "decode": {
        "fa2": (*ALL, "10.7", "12.1"),
        "fa2_tc": FA2,
        "auto": FA2,
        "cudnn": CUDNN,
        "trtllm-gen": BLACKWELL,
        "trtllm-native": (*HOPPER, *BLACKWELL, *GEFORCE),
        "prims-ts": TASKS,
    },
    "paged": {
        "fa2": FA2,
        "fa3": HOPPER,
        "auto": FA2,
        "cudnn": CUDNN,
        "cudnn-native": CUDNN,
        "trtllm-gen": BLACKWELL,
        "trtllm-native": BLACKWELL,
        "trtllm-fmha-v2": (*HOPPER, "12.0"),
        "prims-ts": TASKS,
    },
    "ragged": {
        "fa2": FA2,
        "fa3": HOPPER,
        "cudnn": CUDNN,
        "cudnn-native": CUDNN,
        "cutlass": BLACKWELL,
        "cute-dsl": BLACKWELL,
        "trtllm-native": BLACKWELL,
        "trtllm-fmha-v2": HOPPER,
        "prims-ts": TASKS,
    },
    "mla": {
        "fa2": FA2,
        "fa3": HOPPER,
        "auto": BLACKWELL,
        "cutlass": BLACKWELL,
        "cute-dsl": BLACKWELL,
        "trtllm-native": BLACKWELL,
        "prims-ts": TASKS,
    },
}
"""Reference → backend → compute capabilities that the backend supports."""
NATIVE: Final = {"trtllm-gen-native": "trtllm-native"}
GEN: Final = {"trtllm": "trtllm-gen", **NATIVE}
DIRECT: Final = {"trtllm": "trtllm-native", **NATIVE}
"""Old name of a backend → present name. Routines with trtllm-gen use GEN. All other routines use DIRECT."""
ROUTINES: Final = (
    _routine("decode", "BatchDecodeWithPagedKVCacheWrapper", "decode over a paged cache", GEN),
    _routine("paged", "BatchPrefillWithPagedKVCacheWrapper", "prefill over a paged cache", GEN),
    _routine("ragged", "BatchPrefillWithRaggedKVCacheWrapper", "prefill over keys and values in one piece", DIRECT),
    _routine("mla", "BatchMLAPagedAttentionWrapper", "MLA over a paged cache", DIRECT),
)
