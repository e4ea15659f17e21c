"""The attention family: paged decode, paged and ragged prefill, and MLA over a paged cache.

q queries and kv keys make q kv pairs. With a causal mask they make q (2 kv - q + 1) / 2, because only the last query
sees all keys. FLOPs: 2 pairs Hq (dqk + dvo). Bytes: queries, keys, values and outputs of the true lengths, and page
tables. In MLA keys are ckv + kpe wide, and values are the first ckv of them.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import (
    ALL,
    AMPERE_ON,
    BLACKWELL,
    FP8,
    HALF,
    HOPPER,
    Case,
    Check,
    Code,
    Routine,
    Tensor,
    from_zero,
    read_dtype,
    require,
    size,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.case.stored import generator, int32, offsets, permutation

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
    word("q_dtype", "dtype of queries and outputs", "bfloat16"),
    word("kv_dtype", "dtype of keys and values", "bfloat16"),
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
TENSOR_CORES: Final = {"TENSOR_CORES": True}
CALLS: Final[Mapping[str, Mapping[str, Code]]] = {
    "decode": {
        "fa2_tc": Code("decode", {"BACKEND": "fa2", **TENSOR_CORES}),
        "auto": Code("decode", TENSOR_CORES),
        "cudnn": Code("decode_cudnn"),
        "trtllm-native": Code("decode_trtllm"),
    },
    "paged": {
        "cudnn": Code("paged_cudnn"),
        "cudnn-native": Code("paged_cudnn_native"),
        "trtllm-native": Code("paged_trtllm"),
    },
    "ragged": {
        "cudnn": Code("ragged_cudnn"),
        "cudnn-native": Code("ragged_cudnn_native"),
        "trtllm-native": Code("ragged_trtllm"),
    },
    "mla": {"cutlass": Code("mla_cutlass"), "trtllm-native": Code("mla_trtllm")},
}
"""Kind of attention → backend → its code, for backends that are not called by the function of the kind's name."""
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
    queries = [int(value) for value in source.integers(1, q_max + 1, size=batch)]
    return queries, queries if q_max == kv_max else [int(source.integers(least, kv_max + 1)) for least in queries]


def _dimensions(args: Namespace, *, same: bool) -> tuple[int, int]:
    require(args.head_dim_qk is not None, "--head_dim_qk is missing")
    require(args.num_qo_heads % args.num_kv_heads == 0, "--num_qo_heads must be a multiple of --num_kv_heads")
    qk, vo = int(args.head_dim_qk), int(args.head_dim_vo or args.head_dim_qk)
    require(qk == vo or not same, "--head_dim_vo: a paged cache holds keys and values of one dimension")
    return qk, vo


def _pages(args: Namespace, keys: list[int]) -> tuple[dict[str, Tensor], int, int]:
    """Return the inputs of the page table, the number of pages, and the bytes of the table that a call reads."""
    columns = -(-args.s_kv // args.page_size)
    total = args.batch_size * columns
    table = permutation(args, total, salt=1).reshape(args.batch_size, columns)
    inputs = {
        "block_tables": Tensor("int32", f"batch_size {columns}", table),
        "kv_lens": Tensor("int32", "batch_size", int32(keys)),
    }
    return inputs, total, 4 * (sum(-(-length // args.page_size) for length in keys) + args.batch_size)


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
    key_width: int,
    more_bytes: int,
    variance: float = 1.0,
    constants: Mapping[str, Any] | None = None,
    **parts: Any,
) -> Case:
    """Make a case with what all kinds have alike.

    Args:
        args: the flags.
        kind: a key of `CALLS`.
        lengths: queries and keys of each sequence.
        dimensions: of queries and of values.
        dtypes: of queries and of keys.
        scale: the factor of scores.
        key_width: elements of keys and values that a token has.
        more_bytes: bytes of lengths and page tables.
        variance: the variance of scores.
        constants: those of the kind alone.
        parts: the other parts of the case.
    """
    queries, keys = lengths
    pairs = sum(q * (2 * kv - q + 1) // 2 if args.causal else q * kv for q, kv in zip(queries, keys, strict=True))
    outer, inner = (total * size_of(dtype) for total, dtype in zip((sum(queries), sum(keys)), dtypes, strict=True))
    width = args.num_qo_heads * sum(dimensions)
    average = sum(keys) // len(keys)
    return Case(
        constants={
            "SM_SCALE": scale,
            "CAUSAL": bool(args.causal) and kind != "decode",
            "MAX_Q": args.s_qo,
            "MAX_KV": args.s_kv,  # the limit: cuDNN wants a page table as wide as its longest sequence
            "PAGE_SIZE": args.page_size,
            **(constants or {}),
        },
        reference=kind,
        calls=CALLS[kind],
        cost=Cost(2 * pairs * width, outer * width + inner * key_width + more_bytes, "fp16"),
        check=_check(args, lengths, dtypes[1], variance),
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
    require(args.page_size > 0, "--page_size is missing")
    require(kind == "paged" or args.s_qo == 1, f"--s_qo {args.s_qo}: decoding takes one query a sequence")
    qk, vo = _dimensions(args, same=True)
    q, kv = read_dtype(args, "q_dtype", HALF), read_dtype(args, "kv_dtype", (*HALF, *FP8))
    require(kv == q or size_of(kv) == 1, f"--kv_dtype {args.kv_dtype}: as --q_dtype, or fp8")
    queries, keys = lengths = _draw_lengths(args)
    table, pages, table_bytes = _pages(args, keys)
    axes = {"head_dim": qk}
    refusals, first, indptr = {}, "batch_size", {}
    if size_of(kv) == 1:
        refusals = dict.fromkeys(NO_FP8_CACHE, "an fp8 cache with wider queries is not supported")
    if kind == "paged":
        first, axes["queries"] = "queries", sum(queries)
        indptr = {"qo_indptr": Tensor("int32", str(args.batch_size + 1), offsets(queries))}
        table_bytes += 4 * (args.batch_size + 1)
        refusals |= _refuse_fa3(qk, vo)
    else:
        if (args.num_qo_heads // args.num_kv_heads) not in (1, 2, 3, 4, 8):
            refusals["fa2"] = "its kernels have 1, 2, 3, 4 or 8 query heads for a key head; fa2_tc takes any"
        if q != "bfloat16":
            refusals["cudnn"] = f"--q_dtype {args.q_dtype}: the library builds its graph for bfloat16"
        if args.page_size not in PAGE_SIZES:
            refusals["trtllm-native"] = f"--page_size {args.page_size}: it has pages of 16, 32, 64 and 128"
    rows = Tensor(q, f"{first} num_qo_heads head_dim")
    return _case(
        args,
        kind,
        lengths,
        (qk, vo),
        (q, kv),
        scale=1 / math.sqrt(qk),
        key_width=args.num_kv_heads * (qk + vo),
        more_bytes=table_bytes,
        op_type="gqa_paged",
        axes=axes,
        inputs={
            "q": rows,
            "kv_cache": Tensor(kv, f"{pages} 2 {args.page_size} {args.num_kv_heads} head_dim"),
            **indptr,
            **table,
        },
        outputs={"out": rows},
        refusals=refusals,
    )


def make_ragged(args: Namespace) -> Case:
    """Make a case of several queries for each sequence; keys and values of all sequences lie one after the other."""
    qk, vo = _dimensions(args, same=False)
    q, batch = read_dtype(args, "q_dtype", HALF), str(args.batch_size + 1)
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
        key_width=args.num_kv_heads * (qk + vo),
        more_bytes=8 * (args.batch_size + 1),
        op_type="gqa_ragged",
        axes={"queries": sum(queries), "keys": sum(keys), "head_dim_vo": vo},
        inputs={
            "q": Tensor(q, "queries num_qo_heads head_dim_qk"),
            "k": Tensor(q, "keys num_kv_heads head_dim_qk"),
            "v": Tensor(q, "keys num_kv_heads head_dim_vo"),
            "qo_indptr": Tensor("int32", batch, offsets(queries)),
            "kv_indptr": Tensor("int32", batch, offsets(keys)),
        },
        outputs={"out": Tensor(q, "queries num_qo_heads head_dim_vo")},
        refusals=refusals,
    )


def make_mla(args: Namespace) -> Case:
    """Make a case of MLA with absorbed weights.

    The rotated part of the queries is drawn like the rest, so that a kernel that leaves it out is wrong.
    """
    ckv, kpe, page = args.head_dim_ckv, args.head_dim_kpe, args.page_size
    require(page > 0, "--page_size is missing")
    require(ckv is not None, "--head_dim_ckv is missing (512 in DeepSeek)")
    require(kpe is not None, "--head_dim_kpe is missing (64 in DeepSeek)")
    dtype = read_dtype(args, "q_dtype", ("bfloat16",))
    read_dtype(args, "kv_dtype", ("bfloat16",))
    require(not (args.random_actual_seq_len and args.s_qo > 1), "--random_actual_seq_len goes with --s_qo 1 here")
    _, keys = lengths = _draw_lengths(args)
    table, pages, table_bytes = _pages(args, keys)
    scale, rows = 1 / math.sqrt(MLA_NOPE_DIM + kpe), f"batch_size {args.s_qo} num_qo_heads"
    refusals = {}
    if args.s_qo > 1 or page not in PAGE_SIZES:
        refusals["cutlass"] = "one query a sequence, pages of 16 to 128"
    if args.causal and args.s_qo > 1:
        refusals["trtllm-native"] = "its mask for several queries is its own"
    return _case(
        args,
        "mla",
        lengths,
        (ckv + kpe, ckv),
        (dtype, dtype),
        scale=scale,
        key_width=ckv + kpe,
        more_bytes=table_bytes,
        variance=(ckv + kpe) * scale**2,
        constants={"CKV_DIM": ckv, "KPE_DIM": kpe, "NOPE_DIM": MLA_NOPE_DIM},
        op_type="mla_paged",
        inputs={
            "q": Tensor(dtype, f"{rows} {ckv + kpe}"),
            "kv_cache": Tensor(dtype, f"{pages} {page} {ckv + kpe}"),
            **table,
        },
        outputs={"out": Tensor(dtype, f"{rows} head_dim_ckv")},
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
