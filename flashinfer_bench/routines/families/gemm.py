"""The GEMM family: fp8 with block scales, grouped, batched with one scale, and 4-bit floats.

A product of m x k and k x n takes 2 m n k FLOPs. Bytes count both factors, their scales and the output, over the whole
batch or all groups: m k + n k elements, m n of the output. Scales: 4 (m k / t + n k / t²) with tiles of t, and 4 for
each offset of a group; 8 of a batch; (m k + n k) / v with blocks of v, and 4 of alpha. Factors are drawn in their
quantised form: normal numbers in fp8, any code in 4 bits. Scales are near 1.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Final

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
    floats,
    offsets,
    require,
    round_up,
    size,
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
    whole("group_size", "groups, each with weights of its own", 1),
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
"""Allowed error, as a share of the deviation of an output. Hopper sums fp8 products in 14 bits, and cuBLAS keeps that
for its speed."""
ALPHA: Final = 0.125
"""The factor that 4-bit products are multiplied by."""
E2M1_VARIANCE: Final = 8.5625
"""Mean square of the sixteen 4-bit codes."""


def _check(args: Namespace, deviation: float, ratio: float | None = None) -> Check:
    return Check(1e-2, ERROR * deviation * math.sqrt(args.k), ratio)


def make_groupwise(args: Namespace) -> Case:
    """Make a case of fp8 with a scale for `--tile_size` elements; in groups with weights of their own."""
    m, n, k, tile, is_k = args.m, args.n, args.k, args.tile_size, args.scale_major_mode == "K"
    grouped = args.routine.startswith("group")
    require(k % tile == 0 and n % tile == 0, f"--n {n} and --k {k} must be multiples of --tile_size {tile}")
    require(m % 4 == 0, f"--m {m}: the kernel wants a multiple of 4")
    first, second, out = DTYPES[args.input_dtype], DTYPES[args.mat2_dtype], args.out_dtype
    count = args.group_size if grouped else 1
    rows, tall, long = m * count, n // tile, k // tile
    groups, factors = "groups " if grouped else "", f"{tall} {long}" if is_k else f"{long} {tall}"
    inputs = {
        "a": f"{first}[rows k]",
        "b": f"{second}[{groups}n k]",
        "a_scale": f"float32[rows {long}]" if is_k else f"float32[{long} rows]",
        "b_scale": f"float32[{groups}{factors}]",
        **({"m_indptr": offsets([m] * count)} if grouped else {}),
    }
    return Case(
        op_type="gemm",
        axes={"rows": rows, **({"groups": count} if grouped else {})},
        inputs=inputs,
        outputs={"out": f"{out}[rows n]"},
        flops=2 * rows * n * k,
        unit="fp8",
        check=_check(args, 1.1),
    )


def make_bmm_fp8(args: Namespace) -> Case:
    """Make a case of a batch of fp8 products, with one scale for each matrix stack."""
    first, second, out = DTYPES[args.input_dtype], DTYPES[args.mat2_dtype], args.out_dtype
    refusals = {}
    if first == second == "float8_e5m2":
        refusals = dict.fromkeys(BMM, "e5m2 times e5m2 is not supported")
    if "float8_e5m2" in (first, second):
        refusals["cutlass"] = "e5m2 is not supported"
    scale = "float32[]"
    return Case(
        op_type="gemm",
        inputs={"a": f"{first}[batch_size m k]", "b": f"{second}[batch_size n k]"}
        | {"a_scale": scale, "b_scale": scale},
        outputs={"out": f"{out}[batch_size m n]"},
        flops=2 * args.batch_size * args.m * args.n * args.k,
        unit="fp8",
        check=_check(args, 1.0),
        refusals=refusals,
    )


def make_mm_fp4(args: Namespace) -> Case:
    """Make a case of 4-bit floats with scales in tiles: nvfp4 with blocks of 16, or mxfp4 with blocks of 32."""
    m, n, k, block = args.m, args.n, args.k, 16 if args.use_nvfp4 else 32
    require(k % (2 * block) == 0, f"--k {k}: a multiple of {2 * block}")
    out, scale = args.out_dtype, "float8_e4m3fn" if args.use_nvfp4 else "float8_e8m0fnu"
    columns = round_up(k // block, 4)
    refusals = {}
    if out == "float16":
        refusals["trtllm"] = "it writes bfloat16 only"
    elif not args.use_nvfp4:
        refusals["trtllm"] = "mxfp4 is not supported"
    elif n % 128:
        refusals["trtllm"] = f"--n {n} is not a multiple of 128, which its order of weights needs"
    return Case(
        op_type="lowbit",
        inputs={
            "a": "float4_e2m1[m k]",
            "b": "float4_e2m1[n k]",
            "a_scale": counted(f"{scale}[{round_up(m, 128)} {columns}]", m * k / block),
            "b_scale": counted(f"{scale}[{round_up(n, 128)} {columns}]", n * k / block),
            "alpha": floats([ALPHA]),
        },
        outputs={"out": f"{out}[m n]"},
        constants={"BLOCK": block},
        flops=2 * m * n * k,
        unit="fp4",
        check=_check(args, ALPHA * E2M1_VARIANCE, 1.0),
        refusals=refusals,
    )


CUTLASS: Final = {"cutlass": BLACKWELL}
BMM: Final = {"cudnn": ADA_ON, "cublas": ADA_ON, "cutlass": BLACKWELL}
FP4: Final = {"cudnn": (*BLACKWELL, "12.0"), "trtllm": BLACKWELL, "cutlass": BLACKWELL}
"""Backend to the compute capabilities that it runs on."""
ROUTINES: Final = (
    Routine("gemm", FLAGS, make_groupwise, "gemm_fp8_nt_groupwise", "fp8 GEMM with block scales", CUTLASS),
    Routine("gemm", FLAGS, make_groupwise, "group_gemm_fp8_nt_groupwise", "the same in groups", CUTLASS),
    Routine("gemm", FLAGS, make_bmm_fp8, "bmm_fp8", "batched fp8 GEMM with one scale each", BMM),
    Routine("gemm", FLAGS, make_mm_fp4, "mm_fp4", "GEMM of 4-bit floats", FP4),
)
