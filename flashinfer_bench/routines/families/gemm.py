"""The GEMM family: fp8 with block scales, grouped, batched with one scale, and 4-bit floats.

A product of m x k and k x n takes 2 m n k FLOPs. Bytes count both factors (m k + n k elements), their scales and the
output (m n elements), over the whole batch or all groups. Scales take:

* 4 (m k / t + n k / t²) bytes with tiles of t.
* 8 bytes for a whole batch.
* (m k + n k) / v bytes with blocks of v, and 4 bytes for alpha.

The offset of a group takes 4 bytes. Factors are drawn in their quantised form: normal numbers in fp8, any code in 4
bits. Scales are near 1.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    ADA_ON,
    BLACKWELL,
    DTYPES,
    FP8,
    HALF,
    Case,
    Check,
    Routine,
    counted,
    direct,
    floats,
    offsets,
    round_up,
    size,
    split,
    switch,
    whole,
    word,
)

FLAGS: Final = (
    whole("batch_size", "number of products", 1),
    size("m", "rows of the first matrix, of each group"),
    size("n", "columns of the second matrix"),
    size("k", "length that is summed over"),
    whole("tile_size", "elements that share a scale, along k and n", 128),
    whole("group_size", "groups, each with its own weights", 1),
    word("scale_major_mode", "order of the scales", "MN", ("MN", "K")),
    word("input_dtype", "dtype of the first matrix", "fp8_e4m3", FP8),
    word("mat2_dtype", "dtype of the second matrix", "fp8_e4m3", FP8),
    word("out_dtype", "dtype of the output", "bfloat16", HALF),
    whole("mma_sm", "multiprocessors that work on one tile", 1, (1, 2)),
    switch("use_128x4_sf_layout", "accepted: scales are in tiles of 128 x 4 for every backend"),
    switch("use_nvfp4", "fp4: nvfp4 (blocks of 16) instead of mxfp4 (blocks of 32)"),
    switch("autotune", "let the library tune before timing (bmm_fp8, mm_fp4)"),
)
ERROR: Final = 0.05
"""Allowed error, as a share of an output's standard deviation. Hopper's tensor cores sum fp8 products in 14 bits."""
ALPHA: Final = 0.125
"""The factor of 4-bit products."""
E2M1_VARIANCE: Final = 8.5625
"""Mean square of the sixteen 4-bit codes."""


def _check(args: Namespace, deviation: float, ratio: float | None = None) -> Check:
    return Check(1e-2, ERROR * deviation * math.sqrt(args.k), ratio)


def make_groupwise(args: Namespace) -> Case:
    """Make an fp8 case with a scale per `--tile_size` elements. Each group of a `group_…` routine has its own
    weights."""
    is_k, first, second = args.scale_major_mode == "K", DTYPES[args.input_dtype], DTYPES[args.mat2_dtype]
    tall, long = split(args, "n", args.tile_size), split(args, "k", args.tile_size)
    split(args, "m", 4)
    is_grouped = args.routine.startswith("group")
    count = args.group_size if is_grouped else 1
    rows, groups = args.m * count, "groups " if is_grouped else ""
    inputs = {
        "a": f"{first}[rows k]",
        "b": f"{second}[{groups}n k]",
        "a_scale": f"float32[rows {long}]" if is_k else f"float32[{long} rows]",
        "b_scale": f"float32[{groups}{tall} {long}]" if is_k else f"float32[{groups}{long} {tall}]",
        **({"m_indptr": offsets([args.m] * count)} if is_grouped else {}),
    }
    options = {
        "scale_granularity_mnk": (1, args.tile_size, args.tile_size),
        "scale_major_mode": args.scale_major_mode,
        "mma_sm": args.mma_sm,
        **({} if is_grouped else {"backend": "cutlass"}),
    }
    return Case(
        op_type="gemm",
        axes={"rows": rows, **({"groups": count} if is_grouped else {})},
        inputs=inputs,
        call=direct(f"flashinfer.gemm.{args.routine}", *inputs, "out=out", **options),
        outputs={"out": f"{args.out_dtype}[rows n]"},
        flops=2 * rows * args.n * args.k,
        unit="fp8",
        check=_check(args, 1.1),
    )


def make_bmm_fp8(args: Namespace) -> Case:
    """Make a case of a batch of fp8 products, with one scale for each matrix stack."""
    first, second = DTYPES[args.input_dtype], DTYPES[args.mat2_dtype]
    refusals: dict[str, Any] = {"cutlass": "float8_e5m2" in (first, second) and "e5m2 is not supported"}
    if first == second == "float8_e5m2":
        refusals = dict.fromkeys(BMM, "e5m2 times e5m2 is not supported")
    return Case(
        op_type="gemm",
        inputs={
            "a": f"{first}[batch_size m k]",
            "b": f"{second}[batch_size n k]",
            "a_scale": "float32[]",
            "b_scale": "float32[]",
        },
        outputs={"out": f"{args.out_dtype}[batch_size m n]"},
        flops=2 * args.batch_size * args.m * args.n * args.k,
        unit="fp8",
        check=_check(args, 1.0),
        refusals=refusals,
    )


def make_mm_fp4(args: Namespace) -> Case:
    """Make a case of 4-bit floats with scales in tiles: nvfp4 with blocks of 16, or mxfp4 with blocks of 32."""
    block, scale = (16, "float8_e4m3fn") if args.use_nvfp4 else (32, "float8_e8m0fnu")
    columns = round_up(2 * split(args, "k", 2 * block), 4)
    refusal = "" if args.use_nvfp4 else "mxfp4 is not supported"
    if args.out_dtype == "float16":
        refusal = "it writes bfloat16 only"
    elif args.n % 128:
        refusal = refusal or f"--n {args.n} is not a multiple of 128, which its order of weights needs"
    factors = {
        f"{side}_scale": counted(f"{scale}[{round_up(rows, 128)} {columns}]", rows * args.k / block)
        for side, rows in (("a", args.m), ("b", args.n))
    }
    return Case(
        op_type="lowbit",
        inputs={"a": "float4_e2m1[m k]", "b": "float4_e2m1[n k]", **factors, "alpha": floats([ALPHA])},
        outputs={"out": f"{args.out_dtype}[m n]"},
        constants={"BLOCK": block},
        flops=2 * args.m * args.n * args.k,
        unit="fp4",
        check=_check(args, ALPHA * E2M1_VARIANCE, 1.0),
        refusals={"trtllm": refusal},
    )


CUTLASS: Final = {"cutlass": BLACKWELL}
BMM: Final = {"cudnn": ADA_ON, "cublas": ADA_ON, "cutlass": BLACKWELL}
FP4: Final = {"cudnn": (*BLACKWELL, "12.0"), "trtllm": BLACKWELL, "cutlass": BLACKWELL}
"""Backend → its compute capabilities."""
ROUTINES: Final = (
    Routine("gemm", FLAGS, make_groupwise, "gemm_fp8_nt_groupwise", "fp8 GEMM with block scales", CUTLASS),
    Routine("gemm", FLAGS, make_groupwise, "group_gemm_fp8_nt_groupwise", "the same in groups", CUTLASS),
    Routine("gemm", FLAGS, make_bmm_fp8, "bmm_fp8", "batched fp8 GEMM with one scale each", BMM),
    Routine("gemm", FLAGS, make_mm_fp4, "mm_fp4", "GEMM of 4-bit floats", FP4),
)
