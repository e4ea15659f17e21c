"""The GEMM family: fp8 with block scales, grouped, batched with one scale, and 4-bit floats.

A product of m x k and k x n takes 2 m n k FLOPs. Bytes count both factors, their scales and the output, over the whole
batch. Factors are drawn in their quantised form: normal numbers in fp8, any code in 4 bits. Scales are near 1.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import ADA_ON, BLACKWELL, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import floats, offsets
from flashinfer_bench.routines.case.words import read_dtype, require, round_up

FAMILY: Final = "gemm"
FP8: Final = ("fp8_e4m3", "fp8_e5m2")
HALF: Final = ("bfloat16", "float16")
FLAGS: Final = (
    Flag("batch_size", "int", "number of products", 1),
    Flag("m", "int", "rows of the first matrix, of each group", required=True),
    Flag("n", "int", "columns of the second matrix", required=True),
    Flag("k", "int", "length that is summed over", required=True),
    Flag("tile_size", "int", "elements that share a scale, along k and n", 128),
    Flag("group_size", "int", "groups, each with weights of its own", 1),
    Flag("scale_major_mode", "text", "order of the scales", "MN", ("MN", "K")),
    Flag("input_dtype", "text", "dtype of the first matrix", "fp8_e4m3"),
    Flag("mat2_dtype", "text", "dtype of the second matrix", "fp8_e4m3"),
    Flag("out_dtype", "text", "dtype of the output", "bfloat16"),
    Flag("mma_sm", "int", "multiprocessors that work on one tile", 1, (1, 2)),
    Flag("use_128x4_sf_layout", "switch", "accepted: scales are in tiles of 128 x 4 for every backend", False),
    Flag("use_nvfp4", "switch", "fp4: nvfp4 (blocks of 16) instead of mxfp4 (blocks of 32)", False),
    Flag("autotune", "switch", "let the library tune before timing (bmm_fp8, mm_fp4)", False),
)
ERROR: Final = 0.05
"""Allowed error, as a share of the deviation of an output. Hopper sums fp8 products in 14 bits, and cuBLAS keeps that
for its speed. On an H200 the largest error was 0.024 at k = 7168."""
ALPHA: Final = 0.125
"""The factor that 4-bit products are multiplied by."""
E2M1_VARIANCE: Final = 8.5625
"""Mean square of the sixteen 4-bit codes."""


def _label(args: Namespace, *more: Any) -> str:
    return "_".join([f"m{args.m}_n{args.n}_k{args.k}", *map(str, more)])


def _check(args: Namespace, deviation: float) -> Check:
    return Check(1e-2, ERROR * deviation * math.sqrt(args.k))


def _make_groupwise(args: Namespace, *, groups: int | None) -> Case:
    m, n, k, tile = args.m, args.n, args.k, args.tile_size
    require(k % tile == 0 and n % tile == 0, f"--n {n} and --k {k} must be multiples of --tile_size {tile}")
    require(m % 4 == 0, f"--m {m}: the kernel wants a multiple of 4")
    first, second = read_dtype(args.input_dtype, "input_dtype", FP8), read_dtype(args.mat2_dtype, "mat2_dtype", FP8)
    out = read_dtype(args.out_dtype, "out_dtype", HALF)
    count, is_k = groups or 1, args.scale_major_mode == "K"
    rows, tall, long = m * count, n // tile, k // tile
    weights = "n k" if groups is None else "groups n k"
    factors = f"{tall} {long}" if is_k else f"{long} {tall}"
    function = "gemm_fp8_nt_groupwise" if groups is None else "group_gemm_fp8_nt_groupwise"
    indptr = {} if groups is None else {"m_indptr": Tensor("int32", str(count + 1), offsets([m] * count))}
    constants = {"TILE": tile, "K_MAJOR": is_k}
    own = {"MMA_SM": args.mma_sm, **({"BACKEND": "cutlass"} if groups is None else {})}
    return Case(
        label=_label(args, *([f"g{count}"] if groups else []), args.scale_major_mode, out),
        op_type="gemm",
        axes={"rows": rows, "n": n, "k": k, **({"groups": count} if groups is not None else {})},
        inputs={
            "a": Tensor(first, "rows k"),
            "b": Tensor(second, weights),
            "a_scale": Tensor("float32", f"rows {long}" if is_k else f"{long} rows"),
            "b_scale": Tensor("float32", factors if groups is None else f"groups {factors}"),
            **indptr,
        },
        outputs={"out": Tensor(out, "rows n")},
        reference=Code("gemm_torch", function, {**constants, "OUT_DTYPE": out}),
        solutions={"cutlass": Code("gemm_flashinfer", function, {**constants, **own})},
        cost=Cost(
            2 * rows * n * k,
            rows * k
            + count * n * k
            + 4 * (rows * long + count * tall * long)
            + rows * n * size_of(out)
            + (4 * (count + 1) if groups is not None else 0),
            "fp8",
        ),
        check=_check(args, 1.1),
        dps=frozenset({"cutlass"}),
    )


def make_gemm_fp8_nt_groupwise(args: Namespace) -> Case:
    """fp8 with a scale for TILE elements. 2 m n k FLOPs; m k + n k, 4 (m k/t + n k/t²) of scales, m n S(out)."""
    return _make_groupwise(args, groups=None)


def make_group_gemm_fp8_nt_groupwise(args: Namespace) -> Case:
    """The same for g groups of m rows: all numbers times g, and 4 (g + 1) bytes of offsets."""
    return _make_groupwise(args, groups=args.group_size)


def make_bmm_fp8(args: Namespace) -> Case:
    """Batched, one scale for each matrix stack. FLOPs: 2 B m n k. Bytes: B (m k + n k + m n S(out)) + 8."""
    batch, m, n, k = args.batch_size, args.m, args.n, args.k
    first, second = read_dtype(args.input_dtype, "input_dtype", FP8), read_dtype(args.mat2_dtype, "mat2_dtype", FP8)
    out = read_dtype(args.out_dtype, "out_dtype", HALF)
    backends = ("cudnn", "cublas", "cutlass")
    both_wide = first == second == "float8_e5m2"
    refusals = dict.fromkeys(backends, "e5m2 times e5m2 is not supported") if both_wide else {}
    if "float8_e5m2" in (first, second):
        refusals["cutlass"] = "e5m2 is not supported"
    return Case(
        label=f"b{batch}_{_label(args, first, second, out)}",
        op_type="gemm",
        axes={"batch_size": batch, "m": m, "n": n, "k": k},
        inputs={
            "a": Tensor(first, "batch_size m k"),
            "b": Tensor(second, "batch_size n k"),
            "a_scale": Tensor("float32", ""),
            "b_scale": Tensor("float32", ""),
        },
        outputs={"out": Tensor(out, "batch_size m n")},
        reference=Code("gemm_torch", "bmm_fp8", {"OUT_DTYPE": out}),
        solutions={
            backend: Code("gemm_flashinfer", "bmm_fp8", {"BACKEND": backend, "AUTOTUNE": args.autotune})
            for backend in backends
        },
        cost=Cost(2 * batch * m * n * k, batch * (m * k + n * k + m * n * size_of(out)) + 8, "fp8"),
        check=_check(args, 1.0),
        refusals=refusals,
        dps=frozenset(backends),
    )


def make_mm_fp4(args: Namespace) -> Case:
    """4-bit floats, blocks of v. 2 m n k FLOPs; (m k + n k) / 2, (m k + n k) / v of scales, m n S(out), 4 of alpha."""
    m, n, k, block = args.m, args.n, args.k, 16 if args.use_nvfp4 else 32
    require(k % (2 * block) == 0, f"--k {k}: a multiple of {2 * block}")
    out = read_dtype(args.out_dtype, "out_dtype", HALF)
    scale = "float8_e4m3fn" if args.use_nvfp4 else "float8_e8m0fnu"
    columns = round_up(k // block, 4)
    constants = {"BLOCK": block}
    backends = ("cudnn", "trtllm", "cutlass")
    refusals = {}
    if not args.use_nvfp4:
        refusals["trtllm"] = "mxfp4 is not supported"
    elif n % 128:
        refusals["trtllm"] = f"--n {n} is not a multiple of 128, which its order of weights needs"
    if out == "float16":
        refusals["trtllm"] = "it writes bfloat16 only"
    return Case(
        label=_label(args, "nvfp4" if args.use_nvfp4 else "mxfp4", out),
        op_type="lowbit",
        axes={"m": m, "n": n, "k": k},
        inputs={
            "a": Tensor("float4_e2m1", "m k"),
            "b": Tensor("float4_e2m1", "n k"),
            "a_scale": Tensor(scale, f"{round_up(m, 128)} {columns}"),
            "b_scale": Tensor(scale, f"{round_up(n, 128)} {columns}"),
            "alpha": Tensor("float32", "1", floats([ALPHA])),
        },
        outputs={"out": Tensor(out, "m n")},
        reference=Code("gemm_torch", "mm_fp4", {**constants, "OUT_DTYPE": out}),
        solutions={
            backend: Code(
                "gemm_flashinfer",
                "mm_fp4_shuffled" if backend == "trtllm" else "mm_fp4",
                {**constants, "BACKEND": backend, "AUTOTUNE": args.autotune, "NVFP4": bool(args.use_nvfp4)},
            )
            for backend in backends
        },
        cost=Cost(
            2 * m * n * k,
            (m + n) * k / 2 + (m + n) * k / block + m * n * size_of(out) + 4,
            "fp4",
        ),
        check=Check(1e-2, ERROR * ALPHA * E2M1_VARIANCE * math.sqrt(k), 1.0),
        refusals=refusals,
        dps=frozenset(backends),
    )


CUTLASS: Final = {"cutlass": BLACKWELL}
BMM: Final = {"cudnn": ADA_ON, "cublas": ADA_ON, "cutlass": BLACKWELL}
FP4: Final = {"cudnn": (*BLACKWELL, "12.0"), "trtllm": BLACKWELL, "cutlass": BLACKWELL}
"""Backend to the compute capabilities that it runs on."""


ROUTINES: Final = (
    Routine("gemm_fp8_nt_groupwise", FAMILY, "fp8 GEMM with block scales", FLAGS, CUTLASS, make_gemm_fp8_nt_groupwise),
    Routine(
        "group_gemm_fp8_nt_groupwise", FAMILY, "the same in groups", FLAGS, CUTLASS, make_group_gemm_fp8_nt_groupwise
    ),
    Routine("bmm_fp8", FAMILY, "batched fp8 GEMM with one scale each", FLAGS, BMM, make_bmm_fp8),
    Routine("mm_fp4", FAMILY, "GEMM of 4-bit floats", FLAGS, FP4, make_mm_fp4),
)
