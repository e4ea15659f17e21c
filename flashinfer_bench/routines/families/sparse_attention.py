"""Sparse attention of MiniMax (MSA): block scores, attention over chosen blocks of 128 keys, and a pipeline of both.

Every sequence has q queries and kv keys. A query sees v keys: all keys, or with a causal mask the keys up to the
query's position. A query attends to a = min(v, top-k blocks) keys. The last block of a query is always chosen. H query
heads share the blocks of one key head.

FLOPs are 256 H for each seen key of a score, and 512 H for each attended key. Scores read all keys. Attention reads the
share min(1, q topk / blocks) of keys and values. Queries, outputs, scores, chosen blocks, page tables and scales of
4-bit floats (1/16 byte an element) are counted, too.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    DTYPES,
    GEFORCE,
    HALF,
    Case,
    Check,
    Routine,
    counted,
    generator,
    require,
    round_up,
    split,
    stored,
    switch,
    whole,
    word,
)
from flashinfer_bench.routines.families.attention import make_check

BLOCK: Final = 128
"""Number of keys of a block and of a page, and dimension of a head. The library's kernels support only this number."""
SELECTED: Final = 16
"""The only number of blocks that the library selects."""
QUERIES: Final = {
    "proxy": (*HALF, "fp8_e4m3", "nvfp4"),
    "attend": HALF,
    "decode": (*HALF, "fp8_e4m3"),
    "pipeline": HALF,
}
"""Reference → the dtypes of queries that the kernel takes."""
FLAGS: Final = (
    whole("batch_size", "number of sequences", 1),
    whole("s_qo", "queries of a sequence", 4096),
    whole("s_kv", "keys of a sequence", 4096),
    whole("num_qo_heads", "query heads", 64),
    whole("num_kv_heads", "key and value heads; MSAPipeline has a score for each", 4),
    whole("head_dim", "dimension of a head: 128", BLOCK),
    whole("topk", "blocks of a query; 16 for MSAPipeline", SELECTED),
    whole("max_k_tiles", "blocks with a score (default: all of s_kv)"),
    switch("causal", "causal mask: a query sees no later keys", default=True),
    word("q_dtype", "dtype of queries; nvfp4 for queries and keys of MSAProxyScore", "bfloat16", QUERIES["proxy"]),
    word("kv_dtype", "dtype of keys and values", "bfloat16", QUERIES["decode"]),
    word("kv_layout", "keys in one piece, in pages, or in pages with the values", "flat", ("flat", "paged", "packed")),
)
MATCH: Final = 0.99
"""Share of the pipeline's elements that must match. A kernel may choose another block if two scores are nearly
equal."""


def _draw_blocks(args: Namespace, seen: Sequence[int]) -> Any:
    """Draw the chosen blocks of each key head and query, in ascending order. Missing blocks at the end are -1.

    `seen` has the number of blocks that each query of a sequence sees.
    """
    import numpy as np  # not for --help

    limits, columns = np.tile(seen, args.batch_size)[:, None], np.arange(max(seen[-1], args.topk))
    ranks = generator(args).random((args.num_kv_heads, len(limits), len(columns)))
    ranks = np.where(columns == limits - 1, -1, np.where(columns < limits, ranks, 2))
    chosen = ranks.argsort(axis=-1)[..., : args.topk]
    chosen = np.sort(np.where(chosen < limits, chosen, len(columns)))
    return stored(np.where(chosen < len(columns), chosen, -1))


def make_msa(args: Namespace, kind: str) -> Case:
    """Make a case of MSA; `kind` is the name of the reference. All sequences have equal lengths."""
    batch, queries, keys, heads, blocks = args.batch_size, args.s_qo, args.s_kv, args.num_kv_heads, args.topk
    is_proxy, is_fp4, q = kind == "proxy", args.q_dtype == "nvfp4", args.q_dtype
    require(args.head_dim == BLOCK, f"MSA requires head_dim {BLOCK}, got {args.head_dim}")
    require(keys >= queries, f"--s_kv {keys} is below --s_qo {queries}")
    require(kind != "pipeline" or blocks == SELECTED, f"--topk {blocks}: the library selects {SELECTED}")
    require(q in QUERIES[kind], f"--q_dtype {q}: {args.routine} takes {', '.join(QUERIES[kind])}")
    require(args.kv_dtype in (q, "fp8_e4m3") or is_fp4, f"--kv_dtype {args.kv_dtype}: as --q_dtype, or fp8_e4m3")
    group, tiles = split(args, "num_qo_heads", heads), -(-keys // BLOCK)
    columns = args.max_k_tiles or tiles
    require(columns >= tiles, f"--max_k_tiles {columns} is below the {tiles} blocks of --s_kv")
    seen = [keys - queries + 1 + at if args.causal else keys for at in range(queries)]
    attended = sum(one if one <= blocks * BLOCK else blocks * BLOCK - -one % BLOCK for one in seen)
    of_q, of_kv = ("float4_e2m1",) * 2 if is_fp4 else (DTYPES[q], DTYPES[args.kv_dtype])
    is_flat = args.kv_layout == "flat"
    dims = "keys num_kv_heads" if is_flat else f"{batch * tiles} num_kv_heads {BLOCK}"

    def cache(width: int = BLOCK, share: float = 1.0) -> Any:
        return counted(f"{of_kv}[{dims} {width}]", share * batch * keys * heads * width)

    def scales(rows: int) -> Any:
        return counted(f"float8_e4m3fn[{round_up(rows, BLOCK)} 8]", rows * 8)

    inputs: dict[str, Any] = {"index_q": f"{of_q}[queries num_kv_heads {BLOCK}]", "index_k": cache()}
    inputs = inputs if kind == "pipeline" else {}
    inputs["q"] = f"{of_q}[queries num_qo_heads {BLOCK}]"
    read = min(1.0, queries * blocks / tiles)
    if is_proxy:
        inputs["k"] = cache()
    if is_fp4:
        inputs["q_scale"] = scales(batch * queries * args.num_qo_heads)
        inputs["k_scale"] = scales(batch * heads * (keys if is_flat else tiles * BLOCK))
    if kind in ("attend", "decode"):
        inputs["blocks"] = _draw_blocks(args, [-(-one // BLOCK) for one in seen])
    if not is_proxy:
        is_packed = args.kv_layout == "packed"
        inputs |= {"kv_cache": cache(2 * BLOCK, read)} if is_packed else dict.fromkeys("kv", cache(BLOCK, read))
    if not is_flat:
        inputs["block_tables"] = stored(generator(args, 1).permutation(batch * tiles).reshape(batch, tiles))
    scored = {"proxy": args.num_qo_heads, "pipeline": heads}.get(kind, 0) * sum(seen)
    out = q if q in HALF else HALF[0]
    check = make_check(seen[0], min(keys, blocks * BLOCK), of_kv, 1.0)
    return Case(
        axes={"queries": batch * queries, "keys": batch * keys},
        inputs=inputs,
        outputs={"scores": f"float32[num_qo_heads {columns} queries]"}
        if is_proxy
        else {"out": f"{out}[queries num_qo_heads {BLOCK}]"},
        reference="proxy_fp4" if is_fp4 else kind,
        constants={"COLUMNS": columns, "OUT_DTYPE": out, "SM_SCALE": BLOCK**-0.5},
        flops=2 * BLOCK * batch * (scored + (not is_proxy) * 2 * args.num_qo_heads * attended),
        unit="fp4" if is_fp4 else "fp16",
        check=Check() if is_proxy else replace(check, required_matched_ratio=MATCH if kind == "pipeline" else None),
        refusals={
            "cudsl": (kind == "decode" and group > 16 and "it has at most 16 query heads for a key head")
            or (not is_proxy and 128 % group and f"{group} query heads for a key head: 128 is no multiple of it")
        },
        columns={"total_q": batch * queries, "total_kv": batch * keys},
    )


def _routine(kind: str, name: str, summary: str) -> Routine:
    return Routine("sparse_attention", FLAGS, partial(make_msa, kind=kind), name, summary, {"cudsl": GEFORCE})


ROUTINES: Final = (
    _routine("proxy", "MSAProxyScore", "largest logit of each query and block of keys"),
    _routine("attend", "MSASparseAttention", "attention to chosen blocks of keys"),
    _routine("decode", "MSASparseDecode", "the same for few queries"),
    _routine("pipeline", "MSAPipeline", "score, choose and attend"),
)
