"""The attention family: paged decode, paged and ragged prefill, and MLA over a paged cache.

q queries and kv keys make q kv pairs. With a causal mask they make q (2 kv - q + 1) / 2, because only the last query
sees all keys. FLOPs: 2 pairs Hq (dqk + dvo). Bytes: queries, keys, values and outputs of the true lengths, and page
tables. In MLA keys are ckv + kpe wide, and values are the first ckv of them.
"""

from __future__ import annotations

import math
from argparse import Namespace
from functools import partial
from typing import Final

from flashinfer_bench.roofline.cost import size_of
from flashinfer_bench.routines.case.spec import (
    ALL,
    AMPERE_ON,
    BLACKWELL,
    DTYPES,
    FP8,
    HALF,
    HOPPER,
    Case,
    Check,
    Routine,
    counted,
    from_zero,
    generator,
    offsets,
    require,
    size,
    stored,
    switch,
    whole,
    word,
)

FLAGS: Final = (
    from_zero("page_size", "tokens of a page"),
    size("batch_size", "number of sequences"),
    whole("s_qo", "queries of a sequence, at most", 1),
    size("s_kv", "keys of a sequence, at most"),
    size("num_qo_heads", "query heads"),
    size("num_kv_heads", "key and value heads"),
    whole("head_dim_qk", "dimension of queries and keys"),
    whole("head_dim_vo", "dimension of values; head_dim_qk where it is left out"),
    whole("head_dim_ckv", "MLA: compressed dimension"),
    whole("head_dim_kpe", "MLA: rotated dimension"),
    word("q_dtype", "dtype of queries and outputs", "bfloat16", HALF),
    word("kv_dtype", "dtype of keys and values", "bfloat16", (*HALF, *FP8)),
    switch("causal", "a query does not see what comes after it"),
    switch("random_actual_seq_len", "random lengths up to the largest ones"),
)
MLA_NOPE_DIM: Final = 128
"""Dimension of DeepSeek's heads without RoPE. With the rotated dimension it decides the scale of the scores."""
ERROR: Final = 0.035
"""Allowed error, as a share of the deviation of an output of the longest sequence. Kernels round probabilities and
outputs to bfloat16."""
PROBABILITY_ERROR: Final = 2**-7
"""Allowed error of the query that sees the fewest keys, as a share of the deviation of its output."""
FP8_ERROR: Final = 0.1
"""Takes the place of `ERROR` where the cache is fp8: a kernel may convert the queries too."""
OP_TYPES: Final = {"decode": "gqa_paged", "paged": "gqa_paged", "ragged": "gqa_ragged", "mla": "mla_paged"}
"""The name of a reference → the op type."""
NO_FP8_CACHE: Final = ("fa3", "cudnn", "cudnn-native", "trtllm-gen", "trtllm-native")
"""Backends that take no fp8 cache together with wider queries."""
FA3_DIMS: Final = ((64, 64), (128, 128), (256, 256), (192, 128))
"""Dimensions of queries and of values that fa3 has kernels for."""
PAGE_SIZES: Final = (16, 32, 64, 128)
"""Page sizes that trtllm-native takes when it decodes."""


def _draw_lengths(args: Namespace) -> tuple[list[int], list[int]]:
    """Draw the queries and the keys of each sequence: at least as many keys; equal limits give equal lengths."""
    batch, q_max, kv_max = args.batch_size, args.s_qo, args.s_kv
    require(kv_max >= q_max, f"--s_kv {kv_max} is below --s_qo {q_max}")
    if not args.random_actual_seq_len:
        return [q_max] * batch, [kv_max] * batch
    source = generator(args)
    queries = source.integers(1, q_max + 1, size=batch).tolist()
    return queries, queries if q_max == kv_max else [int(source.integers(least, kv_max + 1)) for least in queries]


def _dimensions(args: Namespace, kind: str) -> tuple[int, int]:
    """Return the dimensions of queries and of values."""
    if kind == "mla":
        require(args.head_dim_ckv is not None, "--head_dim_ckv is missing (512 in DeepSeek)")
        require(args.head_dim_kpe is not None, "--head_dim_kpe is missing (64 in DeepSeek)")
        return args.head_dim_ckv + args.head_dim_kpe, args.head_dim_ckv
    require(args.head_dim_qk is not None, "--head_dim_qk is missing")
    require(args.num_qo_heads % args.num_kv_heads == 0, "--num_qo_heads must be a multiple of --num_kv_heads")
    qk, vo = args.head_dim_qk, args.head_dim_vo or args.head_dim_qk
    require(qk == vo or kind == "ragged", "--head_dim_vo: a paged cache holds keys and values of one dimension")
    return qk, vo


def _check(fewest: int, most: int, kv_dtype: str, variance: float) -> Check:
    """Return a tolerance that follows the size of an output.

    Scores are normal with this variance. So an output deviates like a mean of kv / e^variance values. Kernels round
    probabilities to half precision, so the query that sees the fewest keys has the largest error.
    """
    largest, smallest = (math.sqrt(min(1.0, math.exp(variance) / count)) for count in (fewest, most))
    error = FP8_ERROR if size_of(kv_dtype) == 1 else ERROR
    return Check(2e-2, max(error * smallest, PROBABILITY_ERROR * largest))


def _refuse(args: Namespace, kind: str, dimensions: tuple[int, int]) -> dict[str, str]:
    """Return what backends cannot do on any GPU."""
    refusals, heads = {}, f"head dimensions {dimensions[0]} and {dimensions[1]}"
    if args.kv_dtype in FP8:
        refusals = dict.fromkeys(NO_FP8_CACHE, "an fp8 cache with wider queries is not supported")
    if kind in ("paged", "ragged") and dimensions not in FA3_DIMS:
        refusals["fa3"] = f"{heads}: it has 64, 128 and 256 for both, and 192 with 128"
    if kind == "ragged" and dimensions not in ((192, 128), (128, 128)):
        refusals["trtllm-native"] = f"{heads}: it has 192 and 128, or 128 and 128"
    if kind == "decode" and args.num_qo_heads // args.num_kv_heads not in (1, 2, 3, 4, 8):
        refusals["fa2"] = "its kernels have 1, 2, 3, 4 or 8 query heads for a key head; fa2_tc takes any"
    if kind == "decode" and args.q_dtype != "bfloat16":
        refusals["cudnn"] = f"--q_dtype {args.q_dtype}: the library builds its graph for bfloat16"
    if kind == "decode" and args.page_size not in PAGE_SIZES:
        refusals["trtllm-native"] = f"--page_size {args.page_size}: it has pages of 16, 32, 64 and 128"
    if kind == "mla" and (args.s_qo > 1 or args.page_size not in PAGE_SIZES):
        refusals["cutlass"] = "one query a sequence, pages of 16 to 128"
    if kind == "mla" and args.causal and args.s_qo > 1:
        refusals["trtllm-native"] = "its mask for several queries is its own"
    return refusals


def make_attention(args: Namespace, kind: str) -> Case:
    """Make a case of attention.

    The rotated part of MLA's queries is drawn like the rest, so that a kernel that leaves it out is wrong.

    Args:
        args: the flags.
        kind: the name of the reference. A query of `decode` sees all keys, with --causal too.
    """
    is_mla, is_paged, page, kv_heads = kind == "mla", kind == "paged", args.page_size, args.num_kv_heads
    require(page > 0 or kind == "ragged", "--page_size is missing")
    require(args.s_qo == 1 or kind != "decode", f"--s_qo {args.s_qo}: decoding takes one query a sequence")
    alike = args.s_qo == 1 or not is_mla or not args.random_actual_seq_len
    require(alike, "--random_actual_seq_len goes with --s_qo 1 here")
    q, kv = args.q_dtype, DTYPES[args.kv_dtype]
    require(not is_mla or q == kv == "bfloat16", "--q_dtype and --kv_dtype: this routine takes bfloat16")
    alike = q == kv or (size_of(kv) == 1 and kind != "ragged")
    require(alike, f"--kv_dtype {args.kv_dtype}: as --q_dtype; in a cache fp8, too")
    qk, vo = dimensions = _dimensions(args, kind)
    queries, keys = _draw_lengths(args)
    scale = 1 / math.sqrt(MLA_NOPE_DIM + args.head_dim_kpe if is_mla else qk)
    lists, axes = {"qo_indptr": offsets(queries)}, {"queries": sum(queries)}
    if kind == "ragged":
        lists, axes = {**lists, "kv_indptr": offsets(keys)}, {**axes, "keys": sum(keys), "head_dim_vo": vo}
        rows, out = "queries num_qo_heads head_dim_qk", "queries num_qo_heads head_dim_vo"
        caches = {"k": f"{kv}[keys num_kv_heads head_dim_qk]", "v": f"{kv}[keys num_kv_heads head_dim_vo]"}
    else:
        width, shape = kv_heads * (qk + vo), f"2 {page} {kv_heads} head_dim"
        rows = out = f"{'queries' if is_paged else 'batch_size'} num_qo_heads head_dim"
        axes = {**(axes if is_paged else {}), **({} if is_mla else {"head_dim": qk})}
        if is_mla:
            width, shape = qk, f"{page} {qk}"
            rows, out = (f"batch_size {args.s_qo} num_qo_heads {name}" for name in (qk, "head_dim_ckv"))
        pages = args.batch_size * -(-args.s_kv // page)
        caches = {"kv_cache": counted(f"{kv}[{pages} {shape}]", sum(keys) * width)}
        table = stored(generator(args, 1).permutation(pages).reshape(args.batch_size, -1))
        used = sum(-(-length // page) for length in keys)
        lists = {**(lists if is_paged else {}), "block_tables": counted(table, used), "kv_lens": stored(keys)}
    lengths, average = [*zip(queries, keys, strict=True)], sum(keys) // len(keys)
    pairs = sum(q * (2 * kv - q + 1) // 2 if args.causal else q * kv for q, kv in lengths)
    fewest = min(kv - q + 1 if args.causal else kv for q, kv in lengths)
    return Case(
        op_type=OP_TYPES[kind],
        axes=axes,
        inputs={"q": f"{q}[{rows}]", **caches, **lists},
        outputs={"out": f"{q}[{out}]"},
        reference=kind,
        constants={"SM_SCALE": scale, "CAUSAL": bool(args.causal) and kind != "decode"},
        flops=2 * pairs * args.num_qo_heads * (qk + vo),
        unit="fp16",
        check=_check(fewest, max(keys), kv, qk * scale**2),
        refusals=_refuse(args, kind, dimensions),
        columns={"avg_actual_seq_len": average},
        notes=(
            f"Average actual qo seq len: {sum(queries) // len(queries)}",
            f"Average actual kv seq len: {average}",
        ),
        shown={"actual_seq_lens_q": queries, "actual_seq_lens_kv": keys},
    )


_routine = partial(Routine, "attention", FLAGS)
NATIVE: Final = {"trtllm-gen-native": "trtllm-native"}
GEN: Final = {"trtllm": "trtllm-gen", **NATIVE}
DIRECT: Final = {"trtllm": "trtllm-native", **NATIVE}
"""Older spelling of a backend to its name, of the routines that have trtllm-gen and of the others."""
ROUTINES: Final = (
    _routine(
        partial(make_attention, kind="decode"),
        "BatchDecodeWithPagedKVCacheWrapper",
        "decode over a paged cache",
        {
            "fa2": ALL,
            "fa2_tc": AMPERE_ON,
            "auto": AMPERE_ON,
            "cudnn": AMPERE_ON,
            "trtllm-gen": BLACKWELL,
            "trtllm-native": (*HOPPER, *BLACKWELL, "12.0"),
        },
        GEN,
    ),
    _routine(
        partial(make_attention, kind="paged"),
        "BatchPrefillWithPagedKVCacheWrapper",
        "prefill over a paged cache",
        {
            "fa2": AMPERE_ON,
            "fa3": HOPPER,
            "auto": AMPERE_ON,
            "cudnn": AMPERE_ON,
            "cudnn-native": AMPERE_ON,
            "trtllm-gen": BLACKWELL,
            "trtllm-native": BLACKWELL,
        },
        GEN,
    ),
    _routine(
        partial(make_attention, kind="ragged"),
        "BatchPrefillWithRaggedKVCacheWrapper",
        "prefill over keys and values in one piece",
        {
            "fa2": AMPERE_ON,
            "fa3": HOPPER,
            "cudnn": AMPERE_ON,
            "cudnn-native": AMPERE_ON,
            "cutlass": BLACKWELL,
            "trtllm-native": BLACKWELL,
        },
        DIRECT,
    ),
    _routine(
        partial(make_attention, kind="mla"),
        "BatchMLAPagedAttentionWrapper",
        "MLA over a paged cache",
        {"fa2": AMPERE_ON, "fa3": HOPPER, "cutlass": BLACKWELL, "trtllm-native": BLACKWELL},
        DIRECT,
    ),
)
