"""The attention family: paged decode, paged and ragged prefill, and MLA over a paged cache.

q queries and kv keys make q kv pairs. With a causal mask they make q (2 kv - q + 1) / 2, because only the last query
sees all keys. FLOPs: 2 pairs Hq (dqk + dvo). Bytes: queries, keys, values and outputs of the true lengths, and page
tables. In MLA keys are ckv + kpe wide, and values are the first ckv of them.
"""

from __future__ import annotations

import math
from argparse import Namespace
from functools import partial
from typing import Any, Final

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


def _dimensions(args: Namespace) -> tuple[int, int]:
    require(args.head_dim_qk is not None, "--head_dim_qk is missing")
    require(args.num_qo_heads % args.num_kv_heads == 0, "--num_qo_heads must be a multiple of --num_kv_heads")
    return args.head_dim_qk, args.head_dim_vo or args.head_dim_qk


def _pages(args: Namespace, keys: list[int]) -> tuple[dict[str, Any], int]:
    """Return the inputs of the page table, and the number of pages."""
    require(args.page_size > 0, "--page_size is missing")
    columns = -(-args.s_kv // args.page_size)
    total = args.batch_size * columns
    table = generator(args, 1).permutation(total).reshape(args.batch_size, columns)
    used = sum(-(-length // args.page_size) for length in keys)
    return {"block_tables": counted(stored(table), used), "kv_lens": stored(keys)}, total


def _check(args: Namespace, lengths: tuple[list[int], list[int]], kv_dtype: str, variance: float) -> Check:
    """Return a tolerance that follows the size of an output.

    Scores are normal with this variance. So an output deviates like a mean of kv / e^variance values. Kernels round
    probabilities to half precision, so the query that sees the fewest keys has the largest error.
    """
    fewest = min(kv - q + 1 if args.causal else kv for q, kv in zip(*lengths, strict=True))
    largest, smallest = (math.sqrt(min(1.0, math.exp(variance) / count)) for count in (fewest, max(lengths[1])))
    error = FP8_ERROR if size_of(kv_dtype) == 1 else ERROR
    return Check(2e-2, max(error * smallest, PROBABILITY_ERROR * largest))


def _case(
    args: Namespace,
    kind: str,
    lengths: tuple[list[int], list[int]],
    dimensions: tuple[int, int],
    dtypes: tuple[str, str],
    *,
    scale: float,
    **parts: Any,
) -> Case:
    """Make a case with what all kinds have alike.

    Args:
        args: the flags.
        kind: the name of the reference.
        lengths: queries and keys of each sequence.
        dimensions: of queries and of values.
        dtypes: of queries and of keys.
        scale: the factor of scores.
        parts: the other parts of the case.
    """
    queries, keys = lengths
    pairs = sum(q * (2 * kv - q + 1) // 2 if args.causal else q * kv for q, kv in zip(queries, keys, strict=True))
    average = sum(keys) // len(keys)
    return Case(
        constants={
            "SM_SCALE": scale,
            "CAUSAL": bool(args.causal) and kind != "decode",
            "NOPE_DIM": MLA_NOPE_DIM,
        },
        reference=kind,
        flops=2 * pairs * args.num_qo_heads * sum(dimensions),
        unit="fp16",
        check=_check(args, lengths, dtypes[1], dimensions[0] * scale**2),
        columns={"avg_actual_seq_len": average},
        notes=(
            f"Average actual qo seq len: {sum(queries) // len(queries)}",
            f"Average actual kv seq len: {average}",
        ),
        shown={"actual_seq_lens_q": queries, "actual_seq_lens_kv": keys},
        **parts,
    )


def _refuse_fa3(qk: int, vo: int) -> dict[str, str]:
    if (qk, vo) in FA3_DIMS:
        return {}
    return {"fa3": f"head dimensions {qk} and {vo}: it has 64, 128 and 256 for both, and 192 with 128"}


def make_paged(args: Namespace) -> Case:
    """Make a case of one query (decode) or several for each sequence, over a paged cache.

    A query of decoding sees all keys, with --causal too.
    """
    kind = "decode" if "Decode" in args.routine else "paged"
    require(kind == "paged" or args.s_qo == 1, f"--s_qo {args.s_qo}: decoding takes one query a sequence")
    qk, vo = _dimensions(args)
    require(qk == vo, "--head_dim_vo: a paged cache holds keys and values of one dimension")
    q, kv = args.q_dtype, DTYPES[args.kv_dtype]
    require(kv == q or size_of(kv) == 1, f"--kv_dtype {args.kv_dtype}: as --q_dtype, or fp8")
    queries, keys = lengths = _draw_lengths(args)
    table, pages = _pages(args, keys)
    axes, refusals, indptr = {"head_dim": qk}, {}, {}
    if size_of(kv) == 1:
        refusals = dict.fromkeys(NO_FP8_CACHE, "an fp8 cache with wider queries is not supported")
    if kind == "paged":
        axes["queries"], indptr = sum(queries), {"qo_indptr": offsets(queries)}
        refusals |= _refuse_fa3(qk, vo)
    else:
        if (args.num_qo_heads // args.num_kv_heads) not in (1, 2, 3, 4, 8):
            refusals["fa2"] = "its kernels have 1, 2, 3, 4 or 8 query heads for a key head; fa2_tc takes any"
        if q != "bfloat16":
            refusals["cudnn"] = f"--q_dtype {args.q_dtype}: the library builds its graph for bfloat16"
        if args.page_size not in PAGE_SIZES:
            refusals["trtllm-native"] = f"--page_size {args.page_size}: it has pages of 16, 32, 64 and 128"
    rows = f"{q}[{'queries' if indptr else 'batch_size'} num_qo_heads head_dim]"
    shape, width = f"{pages} 2 {args.page_size} {args.num_kv_heads} head_dim", args.num_kv_heads * (qk + vo)
    cache = counted(f"{kv}[{shape}]", sum(keys) * width)
    return _case(
        args,
        kind,
        lengths,
        (qk, vo),
        (q, kv),
        scale=1 / math.sqrt(qk),
        op_type="gqa_paged",
        axes=axes,
        inputs={"q": rows, "kv_cache": cache, **indptr, **table},
        outputs={"out": rows},
        refusals=refusals,
    )


def make_ragged(args: Namespace) -> Case:
    """Make a case of several queries for each sequence; keys and values of all sequences lie one after the other."""
    qk, vo = _dimensions(args)
    q = args.q_dtype
    require(
        args.kv_dtype == args.q_dtype, f"--kv_dtype {args.kv_dtype}: as --q_dtype, for there is no cache to keep small"
    )
    queries, keys = lengths = _draw_lengths(args)
    refusals = _refuse_fa3(qk, vo)
    if (qk, vo) not in ((192, 128), (128, 128)):
        refusals["trtllm-native"] = f"head dimensions {qk} and {vo}: it has 192 and 128, or 128 and 128"
    return _case(
        args,
        "ragged",
        lengths,
        (qk, vo),
        (q, q),
        scale=1 / math.sqrt(qk),
        op_type="gqa_ragged",
        axes={"queries": sum(queries), "keys": sum(keys), "head_dim_vo": vo},
        inputs={
            "q": f"{q}[queries num_qo_heads head_dim_qk]",
            "k": f"{q}[keys num_kv_heads head_dim_qk]",
            "v": f"{q}[keys num_kv_heads head_dim_vo]",
            "qo_indptr": offsets(queries),
            "kv_indptr": offsets(keys),
        },
        outputs={"out": f"{q}[queries num_qo_heads head_dim_vo]"},
        refusals=refusals,
    )


def make_mla(args: Namespace) -> Case:
    """Make a case of MLA with absorbed weights.

    The rotated part of the queries is drawn like the rest, so that a kernel that leaves it out is wrong.
    """
    ckv, kpe, page = args.head_dim_ckv, args.head_dim_kpe, args.page_size
    require(ckv is not None, "--head_dim_ckv is missing (512 in DeepSeek)")
    require(kpe is not None, "--head_dim_kpe is missing (64 in DeepSeek)")
    dtype = args.q_dtype
    require(dtype == args.kv_dtype == "bfloat16", "--q_dtype and --kv_dtype: this routine takes bfloat16")
    require(not (args.random_actual_seq_len and args.s_qo > 1), "--random_actual_seq_len goes with --s_qo 1 here")
    lengths = _draw_lengths(args)
    table, pages = _pages(args, lengths[1])
    rows, refusals = f"batch_size {args.s_qo} num_qo_heads", {}
    if args.s_qo > 1 or page not in PAGE_SIZES:
        refusals["cutlass"] = "one query a sequence, pages of 16 to 128"
    if args.causal and args.s_qo > 1:
        refusals["trtllm-native"] = "its mask for several queries is its own"
    q, width = f"{dtype}[{rows} {ckv + kpe}]", ckv + kpe
    cache = counted(f"{dtype}[{pages} {page} {width}]", sum(lengths[1]) * width)
    return _case(
        args,
        "mla",
        lengths,
        (ckv + kpe, ckv),
        (dtype, dtype),
        scale=1 / math.sqrt(MLA_NOPE_DIM + kpe),
        op_type="mla_paged",
        inputs={"q": q, "kv_cache": cache, **table},
        outputs={"out": f"{dtype}[{rows} head_dim_ckv]"},
        refusals=refusals,
    )


_routine = partial(Routine, "attention", FLAGS)
NATIVE: Final = {"trtllm-gen-native": "trtllm-native"}
GEN: Final = {"trtllm": "trtllm-gen", **NATIVE}
DIRECT: Final = {"trtllm": "trtllm-native", **NATIVE}
"""Older spelling of a backend to its name, of the routines that have trtllm-gen and of the others."""
ROUTINES: Final = (
    _routine(
        make_paged,
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
        make_paged,
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
        make_ragged,
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
        make_mla,
        "BatchMLAPagedAttentionWrapper",
        "MLA over a paged cache",
        {"fa2": AMPERE_ON, "fa3": HOPPER, "cutlass": BLACKWELL, "trtllm-native": BLACKWELL},
        DIRECT,
    ),
)
