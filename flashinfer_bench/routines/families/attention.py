"""The attention family: paged decode, paged and ragged prefill, and MLA over a paged cache.

q queries and kv keys make q kv pairs. With a causal mask they make q (2 kv - q + 1) / 2, because only the last query
sees all keys. FLOPs: 2 pairs Hq (dqk + dvo). Bytes: queries, keys, values and outputs of the true lengths, and page
tables.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import (
    ALL,
    AMPERE_ON,
    BLACKWELL,
    HOPPER,
    Case,
    Check,
    Code,
    Flag,
    Routine,
    Tensor,
)
from flashinfer_bench.routines.case.stored import generator, int32, offsets, permutation
from flashinfer_bench.routines.case.words import read_dtype, require

FAMILY: Final = "attention"
HALF: Final = ("bfloat16", "float16")
CACHE: Final = (*HALF, "fp8_e4m3", "fp8_e5m2")
FLAGS: Final = (
    Flag("page_size", "int", "tokens of a page", 0),
    Flag("batch_size", "int", "number of sequences", required=True),
    Flag("s_qo", "int", "queries of a sequence, at most", 1),
    Flag("s_kv", "int", "keys of a sequence, at most", required=True),
    Flag("num_qo_heads", "int", "query heads", required=True),
    Flag("num_kv_heads", "int", "key and value heads", required=True),
    Flag("head_dim_qk", "int", "dimension of queries and keys"),
    Flag("head_dim_vo", "int", "dimension of values; head_dim_qk where it is left out"),
    Flag("head_dim_ckv", "int", "MLA: compressed dimension"),
    Flag("head_dim_kpe", "int", "MLA: rotated dimension"),
    Flag("q_dtype", "text", "dtype of queries and outputs", "bfloat16"),
    Flag("kv_dtype", "text", "dtype of keys and values", "bfloat16"),
    Flag("causal", "switch", "a query does not see what comes after it", False),
    Flag("random_actual_seq_len", "switch", "random lengths up to the largest ones", False),
)
MLA_NOPE_DIM: Final = 128
"""Dimension of DeepSeek's heads without RoPE. With the rotated dimension it decides the scale of the scores."""
ERROR: Final = 0.035
"""Allowed error, as a share of the deviation of an output of the longest sequence. Kernels round probabilities and
outputs to bfloat16."""
PROBABILITY_ERROR: Final = 2**-7
"""Allowed error of the query that sees the fewest keys, as a share of the deviation of its output. On an H200 the
largest error in 10^8 outputs was half of it."""
FP8_ERROR: Final = 0.1
"""Takes the place of `ERROR` where the cache is fp8: a kernel may convert the queries too."""


@dataclass(frozen=True)
class Lengths:
    """The true lengths of all sequences."""

    q: Sequence[int]
    kv: Sequence[int]

    @property
    def notes(self) -> tuple[str, ...]:
        """The lines about them that -v shows."""
        return (
            f"Average actual qo seq len: {sum(self.q) // len(self.q)}",
            f"Average actual kv seq len: {sum(self.kv) // len(self.kv)}",
        )

    @property
    def shown(self) -> dict[str, Sequence[int]]:
        """The numbers of them that -vv shows."""
        return {"actual_seq_lens_q": self.q, "actual_seq_lens_kv": self.kv}

    def pairs(self, *, causal: bool) -> int:
        """Count the pairs of a query and a key that this query sees."""
        if causal:
            return sum(q * (2 * kv - q + 1) // 2 for q, kv in zip(self.q, self.kv, strict=True))
        return sum(q * kv for q, kv in zip(self.q, self.kv, strict=True))


def draw_lengths(args: Namespace) -> Lengths:
    """Draw the lengths of a case. A sequence has at least as many keys as queries; equal limits give equal lengths."""
    batch, q_max, kv_max = args.batch_size, args.s_qo, args.s_kv
    require(kv_max >= q_max, f"--s_kv {kv_max} is below --s_qo {q_max}")
    if not args.random_actual_seq_len:
        return Lengths([q_max] * batch, [kv_max] * batch)
    source = generator(args)
    q = [int(value) for value in source.integers(1, q_max + 1, size=batch)]
    if q_max == kv_max:
        return Lengths(q, q)
    least = [max(length, min(q_max, kv_max)) if q_max == 1 else length for length in q]
    return Lengths(q, [int(source.integers(low, kv_max + 1)) for low in least])


def _require_paged(args: Namespace) -> None:
    require(args.page_size > 0, "--page_size is missing")


def _dims(args: Namespace) -> tuple[int, int]:
    require(args.head_dim_qk is not None, "--head_dim_qk is missing")
    require(args.num_qo_heads % args.num_kv_heads == 0, "--num_qo_heads must be a multiple of --num_kv_heads")
    return int(args.head_dim_qk), int(args.head_dim_vo or args.head_dim_qk)


def _dtypes(args: Namespace) -> tuple[str, str]:
    q = read_dtype(args.q_dtype, "q_dtype", HALF)
    kv = read_dtype(args.kv_dtype, "kv_dtype", CACHE)
    require(kv == q or size_of(kv) == 1, f"--kv_dtype {args.kv_dtype}: as --q_dtype, or fp8")
    return q, kv


def _check(lengths: Lengths, kv_dtype: str, variance: float = 1.0, *, causal: bool = False) -> Check:
    """Return a tolerance that follows the size of an output.

    Scores are normal with this variance. So an output deviates like a mean of kv / e^variance values. Kernels round
    probabilities to half precision, so the query that sees the fewest keys has the largest error.
    """
    most = max(lengths.kv)
    fewest = min(kv - q + 1 if causal else kv for q, kv in zip(lengths.q, lengths.kv, strict=True))
    largest, smallest = (math.sqrt(min(1.0, math.exp(variance) / count)) for count in (fewest, most))
    error = FP8_ERROR if size_of(kv_dtype) == 1 else ERROR
    return Check(2e-2, max(error * smallest, PROBABILITY_ERROR * largest))


def _table(args: Namespace, lengths: Lengths) -> tuple[dict[str, Tensor], int, int]:
    """Return the inputs of the page table, the number of pages, and the bytes of the table that a call reads."""
    columns = -(-args.s_kv // args.page_size)
    total = args.batch_size * columns
    table = permutation(args, total, salt=1).reshape(args.batch_size, columns)
    inputs = {
        "block_tables": Tensor("int32", f"batch_size {columns}", table),
        "kv_lens": Tensor("int32", "batch_size", int32(lengths.kv)),
    }
    used = sum(-(-length // args.page_size) for length in lengths.kv)
    return inputs, total, 4 * (used + args.batch_size)


def _cost(args: Namespace, lengths: Lengths, dims: tuple[int, int], dtypes: tuple[str, str], extra: int) -> Cost:
    (qk, vo), (q, kv), rows, keys = dims, dtypes, sum(lengths.q), sum(lengths.kv)
    flops = 2 * lengths.pairs(causal=bool(args.causal)) * args.num_qo_heads * (qk + vo)
    outer = rows * args.num_qo_heads * (qk + vo) * size_of(q)
    return Cost(flops, outer + keys * args.num_kv_heads * (qk + vo) * size_of(kv) + extra, "fp16")


def _label(args: Namespace, *more: Any) -> str:
    lens = f"b{args.batch_size}_q{args.s_qo}_kv{args.s_kv}"
    heads = f"h{args.num_qo_heads}_{args.num_kv_heads}"
    marks = [*(["causal"] if args.causal else []), *(["random"] if args.random_actual_seq_len else [])]
    return "_".join([lens, heads, *map(str, more), *marks])


def _columns(lengths: Lengths) -> dict[str, Any]:
    return {"avg_actual_seq_len": sum(lengths.kv) // len(lengths.kv)}


def _constants(args: Namespace, scale: float) -> dict[str, Any]:
    # MAX_KV is the limit and not the longest length: cuDNN wants a page table as wide as its longest sequence.
    return {"SM_SCALE": scale, "CAUSAL": bool(args.causal), "MAX_Q": args.s_qo, "MAX_KV": args.s_kv}


def _sources(functions: Mapping[str, tuple[str, Mapping[str, Any]]], constants: Mapping[str, Any]) -> dict[str, Code]:
    return {
        backend: Code("attention_flashinfer", function, {**constants, **own})
        for backend, (function, own) in functions.items()
    }


DECODE: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fa2": ("decode", {}),
    "fa2_tc": ("decode", {"TENSOR_CORES": True}),
    "auto": ("decode", {"BACKEND": "auto", "TENSOR_CORES": True}),
    "cudnn": ("decode_cudnn", {}),
    "trtllm-gen": ("decode", {"BACKEND": "trtllm-gen"}),
    "trtllm-native": ("decode_trtllm", {}),
}
PAGED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fa2": ("paged", {}),
    "fa3": ("paged", {"BACKEND": "fa3"}),
    "auto": ("paged", {"BACKEND": "auto"}),
    "cudnn": ("paged_cudnn", {}),
    "cudnn-native": ("paged_cudnn_native", {}),
    "trtllm-gen": ("paged", {"BACKEND": "trtllm-gen"}),
    "trtllm-native": ("paged_trtllm", {}),
}
RAGGED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fa2": ("ragged", {}),
    "fa3": ("ragged", {"BACKEND": "fa3"}),
    "cudnn": ("ragged_cudnn", {}),
    "cudnn-native": ("ragged_cudnn_native", {}),
    "cutlass": ("ragged", {"BACKEND": "cutlass"}),
    "trtllm-native": ("ragged_trtllm", {}),
}
MLA: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "fa2": ("mla", {}),
    "fa3": ("mla", {"BACKEND": "fa3"}),
    "cutlass": ("mla_cutlass", {}),
    "trtllm-native": ("mla_trtllm", {}),
}
"""Backend → the function that calls it, and its constants."""
FP8_CACHE: Final = ("fa2", "fa2_tc", "auto")
"""Backends that take an fp8 cache together with wider queries."""
FA3_DIMS: Final = ((64, 64), (128, 128), (256, 256), (192, 128))
"""Dimensions of queries and of values that fa3 has kernels for."""
PAGE_SIZES: Final = (16, 32, 64, 128)
"""Page sizes that trtllm-native takes when it decodes."""


def _refuse_fp8(backends: Sequence[str], kv: str) -> dict[str, str]:
    if size_of(kv) > 1:
        return {}
    return {name: "an fp8 cache with wider queries is not supported" for name in backends if name not in FP8_CACHE}


def _refuse_fa3(qk: int, vo: int) -> dict[str, str]:
    if (qk, vo) in FA3_DIMS:
        return {}
    return {"fa3": f"head dimensions {qk} and {vo}: it has 64, 128 and 256 for both, and 192 with 128"}


def make_decode(args: Namespace) -> Case:
    """One query for each sequence. It sees all keys, with --causal too: pairs = Σ kv."""
    _require_paged(args)
    require(args.s_qo == 1, f"--s_qo {args.s_qo}: decoding takes one query a sequence")
    (qk, vo), (q, kv), lengths = _dims(args), _dtypes(args), draw_lengths(args)
    require(qk == vo, "--head_dim_vo: a paged cache holds keys and values of one dimension")
    table, pages, table_bytes = _table(args, lengths)
    constants = _constants(args, 1 / math.sqrt(qk))
    sources = _sources(DECODE, {**constants, "CAUSAL": False, "PAGE_SIZE": args.page_size})
    refusals = _refuse_fp8(list(DECODE), kv)
    if (args.num_qo_heads // args.num_kv_heads) not in (1, 2, 3, 4, 8):
        refusals["fa2"] = "its kernels have 1, 2, 3, 4 or 8 query heads for a key head; fa2_tc takes any"
    if q != "bfloat16":
        refusals["cudnn"] = f"--q_dtype {args.q_dtype}: the library builds its graph for bfloat16"
    if args.page_size not in PAGE_SIZES:
        refusals["trtllm-native"] = f"--page_size {args.page_size}: it has pages of 16, 32, 64 and 128"
    return Case(
        label=_label(args, f"d{qk}", f"p{args.page_size}", q, kv),
        op_type="gqa_paged",
        axes={"batch_size": args.batch_size, "num_qo_heads": args.num_qo_heads, "head_dim": qk},
        inputs={
            "q": Tensor(q, "batch_size num_qo_heads head_dim"),
            "kv_cache": Tensor(kv, f"{pages} 2 {args.page_size} {args.num_kv_heads} head_dim"),
            **table,
        },
        outputs={"out": Tensor(q, "batch_size num_qo_heads head_dim")},
        reference=Code("attention_torch", "paged_decode", {"SM_SCALE": 1 / math.sqrt(qk)}),
        solutions=sources,
        cost=_cost(args, lengths, (qk, vo), (q, kv), table_bytes),
        check=_check(lengths, kv),
        refusals=refusals,
        columns=_columns(lengths),
        notes=lengths.notes,
        shown=lengths.shown,
        dps=frozenset(DECODE),
    )


def make_paged_prefill(args: Namespace) -> Case:
    """Several queries for each sequence, over a paged cache."""
    _require_paged(args)
    (qk, vo), (q, kv), lengths = _dims(args), _dtypes(args), draw_lengths(args)
    require(qk == vo, "--head_dim_vo: a paged cache holds keys and values of one dimension")
    table, pages, table_bytes = _table(args, lengths)
    constants = _constants(args, 1 / math.sqrt(qk))
    indptr = {"qo_indptr": Tensor("int32", str(args.batch_size + 1), offsets(lengths.q))}
    return Case(
        label=_label(args, f"d{qk}", f"p{args.page_size}", q, kv),
        op_type="gqa_paged",
        axes={
            "batch_size": args.batch_size,
            "queries": sum(lengths.q),
            "num_qo_heads": args.num_qo_heads,
            "head_dim": qk,
        },
        inputs={
            "q": Tensor(q, "queries num_qo_heads head_dim"),
            "kv_cache": Tensor(kv, f"{pages} 2 {args.page_size} {args.num_kv_heads} head_dim"),
            **indptr,
            **table,
        },
        outputs={"out": Tensor(q, "queries num_qo_heads head_dim")},
        reference=Code("attention_torch", "paged_prefill", {name: constants[name] for name in ("SM_SCALE", "CAUSAL")}),
        solutions=_sources(PAGED, {**constants, "PAGE_SIZE": args.page_size}),
        cost=_cost(args, lengths, (qk, vo), (q, kv), table_bytes + 4 * (args.batch_size + 1)),
        check=_check(lengths, kv, causal=args.causal),
        refusals={**_refuse_fp8(list(PAGED), kv), **_refuse_fa3(qk, vo)},
        columns=_columns(lengths),
        notes=lengths.notes,
        shown=lengths.shown,
        dps=frozenset(PAGED),
    )


def make_ragged_prefill(args: Namespace) -> Case:
    """Several queries for each sequence; keys and values of all sequences lie one after the other."""
    (qk, vo), (q, kv), lengths = _dims(args), _dtypes(args), draw_lengths(args)
    require(kv == q, f"--kv_dtype {args.kv_dtype}: as --q_dtype, without a cache there is nothing to keep small")
    constants = _constants(args, 1 / math.sqrt(qk))
    batch = str(args.batch_size + 1)
    refusals = _refuse_fa3(qk, vo)
    if (qk, vo) not in ((192, 128), (128, 128)):
        refusals["trtllm-native"] = f"head dimensions {qk} and {vo}: it has 192 and 128, or 128 and 128"
    return Case(
        label=_label(args, f"d{qk}_{vo}", q),
        op_type="gqa_ragged",
        axes={
            "queries": sum(lengths.q),
            "keys": sum(lengths.kv),
            "num_qo_heads": args.num_qo_heads,
            "num_kv_heads": args.num_kv_heads,
            "head_dim_qk": qk,
            "head_dim_vo": vo,
        },
        inputs={
            "q": Tensor(q, "queries num_qo_heads head_dim_qk"),
            "k": Tensor(kv, "keys num_kv_heads head_dim_qk"),
            "v": Tensor(kv, "keys num_kv_heads head_dim_vo"),
            "qo_indptr": Tensor("int32", batch, offsets(lengths.q)),
            "kv_indptr": Tensor("int32", batch, offsets(lengths.kv)),
        },
        outputs={"out": Tensor(q, "queries num_qo_heads head_dim_vo")},
        reference=Code("attention_torch", "ragged_prefill", {name: constants[name] for name in ("SM_SCALE", "CAUSAL")}),
        solutions=_sources(RAGGED, constants),
        cost=_cost(args, lengths, (qk, vo), (q, kv), 8 * (args.batch_size + 1)),
        check=_check(lengths, kv, causal=args.causal),
        refusals=refusals,
        columns=_columns(lengths),
        notes=lengths.notes,
        shown=lengths.shown,
        dps=frozenset(RAGGED),
    )


def make_mla(args: Namespace) -> Case:
    """MLA with absorbed weights. 2 pairs Hq (2 ckv + kpe) FLOPs; keys and values are the same (ckv + kpe) elements.

    The rotated part of the queries is drawn like the rest, so that a kernel that leaves it out is wrong.
    """
    _require_paged(args)
    require(args.head_dim_ckv is not None, "--head_dim_ckv is missing (512 in DeepSeek)")
    require(args.head_dim_kpe is not None, "--head_dim_kpe is missing (64 in DeepSeek)")
    require(read_dtype(args.q_dtype, "q_dtype", ("bfloat16",)), "")
    require(read_dtype(args.kv_dtype, "kv_dtype", ("bfloat16",)), "")
    require(not (args.random_actual_seq_len and args.s_qo > 1), "--random_actual_seq_len goes with --s_qo 1 here")
    ckv, kpe, lengths = args.head_dim_ckv, args.head_dim_kpe, draw_lengths(args)
    table, pages, table_bytes = _table(args, lengths)
    scale = 1 / math.sqrt(MLA_NOPE_DIM + kpe)
    constants = {
        **_constants(args, scale),
        "PAGE_SIZE": args.page_size,
        "CKV_DIM": ckv,
        "KPE_DIM": kpe,
        "NOPE_DIM": MLA_NOPE_DIM,
    }
    rows, keys, heads = sum(lengths.q), sum(lengths.kv), args.num_qo_heads
    refusals = {}
    if args.s_qo > 1 or args.page_size not in (16, 32, 64, 128):
        refusals["cutlass"] = "one query a sequence, pages of 16 to 128"
    if args.causal and args.s_qo > 1:
        refusals["trtllm-native"] = "its mask for several queries is its own"
    queries = args.s_qo
    shape = f"batch_size {queries} num_qo_heads"
    return Case(
        label=_label(args, f"ckv{ckv}", f"kpe{kpe}", f"p{args.page_size}"),
        op_type="mla_paged",
        axes={"batch_size": args.batch_size, "num_qo_heads": heads, "head_dim_ckv": ckv, "head_dim_kpe": kpe},
        inputs={
            "q": Tensor("bfloat16", f"{shape} {ckv + kpe}"),
            "kv_cache": Tensor("bfloat16", f"{pages} {args.page_size} {ckv + kpe}"),
            **table,
        },
        outputs={"out": Tensor("bfloat16", f"{shape} head_dim_ckv")},
        reference=Code("attention_torch", "mla", {"SM_SCALE": scale, "CAUSAL": bool(args.causal), "CKV_DIM": ckv}),
        solutions=_sources(MLA, constants),
        cost=Cost(
            2 * lengths.pairs(causal=bool(args.causal)) * heads * (2 * ckv + kpe),
            2 * (rows * heads * (2 * ckv + kpe) + keys * (ckv + kpe)) + table_bytes,
            "fp16",
        ),
        check=_check(lengths, "bfloat16", (ckv + kpe) * scale**2, causal=args.causal),
        refusals=refusals,
        columns=_columns(lengths),
        notes=lengths.notes,
        shown=lengths.shown,
        dps=frozenset(MLA),
    )


ROUTINES: Final = (
    Routine(
        "BatchDecodeWithPagedKVCacheWrapper",
        FAMILY,
        "decode over a paged cache",
        FLAGS,
        {
            "fa2": ALL,
            "fa2_tc": AMPERE_ON,
            "auto": AMPERE_ON,
            "cudnn": AMPERE_ON,
            "trtllm-gen": BLACKWELL,
            "trtllm-native": (*HOPPER, *BLACKWELL, "12.0"),
        },
        make_decode,
        aliases={"trtllm": "trtllm-gen", "trtllm-gen-native": "trtllm-native"},
    ),
    Routine(
        "BatchPrefillWithPagedKVCacheWrapper",
        FAMILY,
        "prefill over a paged cache",
        FLAGS,
        {
            "fa2": AMPERE_ON,
            "fa3": HOPPER,
            "auto": AMPERE_ON,
            "cudnn": AMPERE_ON,
            "cudnn-native": AMPERE_ON,
            "trtllm-gen": BLACKWELL,
            "trtllm-native": BLACKWELL,
        },
        make_paged_prefill,
        aliases={"trtllm": "trtllm-gen", "trtllm-gen-native": "trtllm-native"},
    ),
    Routine(
        "BatchPrefillWithRaggedKVCacheWrapper",
        FAMILY,
        "prefill over keys and values in one piece",
        FLAGS,
        {
            "fa2": AMPERE_ON,
            "fa3": HOPPER,
            "cudnn": AMPERE_ON,
            "cudnn-native": AMPERE_ON,
            "cutlass": BLACKWELL,
            "trtllm-native": BLACKWELL,
        },
        make_ragged_prefill,
        aliases={"trtllm": "trtllm-native", "trtllm-gen-native": "trtllm-native"},
    ),
    Routine(
        "BatchMLAPagedAttentionWrapper",
        FAMILY,
        "MLA over a paged cache",
        FLAGS,
        {"fa2": AMPERE_ON, "fa3": HOPPER, "cutlass": BLACKWELL, "trtllm-native": BLACKWELL},
        make_mla,
        aliases={"trtllm": "trtllm-native", "trtllm-gen-native": "trtllm-native"},
    ),
)
