"""The GEMM family: bfloat16, fp8 with block scales, grouped, batched with one scale, and 4-bit floats.

A product of m x k and k x n takes 2 m n k FLOPs. Bytes count both factors (m k + n k elements), the scales of the
factors, and the output (m n elements), over the whole batch or all groups. Scales take:

* 4 (m k / t + n k / t²) bytes with tiles of t.
* 8 bytes for a whole batch in bmm_fp8.
* One byte for each block of v elements, and 4 bytes for alpha, with block scales.

The offset of a group takes 4 bytes. A bias adds m n FLOPs and 2 n bytes. Factors are drawn in their quantised form:
normal numbers in bfloat16 and fp8, any code in 4 bits. Scales are near 1.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    CAPABILITIES,
    DTYPES,
    FP8,
    GEFORCE,
    HALF,
    HOPPER,
    PDL,
    Case,
    Check,
    Flag,
    Routine,
    counted,
    direct,
    floats,
    offsets,
    require,
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
    word("input_dtype", "dtype of the first matrix; no effect where the routine's name has it", "fp8_e4m3", FP8),
    word("mat2_dtype", "dtype of the second matrix; no effect where the routine's name has it", "fp8_e4m3", FP8),
    word("out_dtype", "dtype of the output", "bfloat16", HALF),
    whole("mma_sm", "multiprocessors that work on one tile", 1, (1, 2)),
    switch("use_128x4_sf_layout", "accepted: scales are in tiles of 128 x 4 for every backend"),
    switch("use_nvfp4", "fp4: nvfp4 (blocks of 16) instead of mxfp4 (blocks of 32)"),
    switch("autotune", "let the library tune before timing (mm and bmm routines)"),
    switch("bias", "add a number to each column (mm_bf16, tinygemm_bf16); no effect on other routines"),
    PDL,
)
ERROR: Final = 0.05
"""Allowed error, as a share of an output's standard deviation. Hopper's tensor cores sum fp8 products in 14 bits."""
BF16_ERROR: Final = 0.02
"""`ERROR` for products with bfloat16 factors. Kernels may round partial sums to bfloat16."""
ALPHA: Final = 0.125
"""The factor alpha of products with 4-bit floats."""
E2M1_VARIANCE: Final = 8.5625
"""Mean square of the sixteen 4-bit codes."""
BFLOAT16: Final = ("bfloat16",)
ONLY_BF16: Final = "it writes bfloat16 only"


def _bf16_flags(factors: Sequence[str], out: Sequence[str]) -> tuple[Flag, ...]:
    """Return the family's flags, with bfloat16 as default dtype, and with the given choices of dtypes."""
    choices = {"input_dtype": factors, "mat2_dtype": factors, "out_dtype": out}
    return tuple(
        replace(flag, default="bfloat16", choices=choices[flag.name]) if flag.name in choices else flag
        for flag in FLAGS
    )


def _check(args: Namespace, deviation: float, ratio: float | None = None, error: float = ERROR) -> Check:
    return Check(1e-2, error * deviation * math.sqrt(args.k), ratio)


def _not_multiple(args: Namespace, **steps: int) -> str:
    """Return a text about a size that is not a multiple of its step; empty if all sizes are multiples."""
    wrong = (f"--{name} is not a multiple of {step}" for name, step in steps.items() if getattr(args, name) % step)
    return next(wrong, "")


def _tiles(args: Namespace, dtype: str, block: int, batch: int = 1) -> dict[str, Any]:
    """Return the scales of both factors, one for each block of a row, in tiles of 128 rows by 4 columns."""
    columns = round_up(args.k // block, 4)
    return {
        f"{side}_scale": counted(f"{dtype}[{round_up(batch * rows, 128)} {columns}]", batch * rows * args.k / block)
        for side, rows in (("a", args.m), ("b", args.n))
    }


def _multiply(args: Namespace, a: str, b: str, inputs: Mapping[str, Any], **more: Any) -> Case:
    """Return the case of a [m, k] times the transpose of b [n, k], or of a batch of such products in a `bmm_…` routine.

    Args:
        args: the flags.
        a: dtype of the first factor.
        b: dtype of the second factor.
        inputs: the inputs after the factors.
        more: further fields of the case.
    """
    batch, count = ("batch_size ", args.batch_size) if args.routine.startswith("bmm") else ("", 1)
    return Case(
        inputs={"a": f"{a}[{batch}m k]", "b": f"{b}[{batch}n k]", **inputs},
        outputs={"out": f"{args.out_dtype}[{batch}m n]"},
        flops=count * args.m * args.n * (2 * args.k + ("bias" in inputs)),
        **more,
    )


def make_bf16(args: Namespace) -> Case:
    """Make a case of bfloat16 products, batched or with a bias for each column."""
    is_batched, is_tiny = args.routine.startswith("bmm"), args.routine.startswith("tiny")
    bias = {"bias": "bfloat16[n]"} if args.bias and not is_batched else {}
    narrow = args.out_dtype != "bfloat16" and ONLY_BF16
    plain = (bias or args.enable_pdl) and not is_batched and "it takes neither --bias nor --enable_pdl"
    arguments = ("a", "b", "out", *bias)
    return _multiply(
        *(args, "bfloat16", "bfloat16", bias),
        reference="mm_bf16" if is_tiny else "",
        call=direct("flashinfer.gemm.tinygemm_bf16", *arguments, use_pdl=args.enable_pdl) if is_tiny else "",
        unit="fp16",
        check=_check(args, 1.0, error=BF16_ERROR),
        refusals={
            **dict.fromkeys(("cublaslt", "cutlass", "cutile"), plain),
            "tgv": narrow,
            "tinygemm": narrow or _not_multiple(args, n=16, k=64),
            "cute-dsl": narrow or (args.m > 32 and f"--m {args.m} is more than 32") or _not_multiple(args, k=128),
        },
    )


def make_mm_fp8(args: Namespace) -> Case:
    """Make a case of fp8 products, with one factor for the output."""
    require(args.batch_size == 1, f"--batch_size {args.batch_size}: mm_fp8 has one product")
    kinds = (args.input_dtype, args.mat2_dtype, args.out_dtype)
    fits = kinds == ("fp8_e4m3", "fp8_e4m3", "bfloat16")
    return _multiply(
        *(args, DTYPES[kinds[0]], DTYPES[kinds[1]], {"alpha": floats([ALPHA])}),
        unit="fp8",
        check=_check(args, ALPHA),
        refusals=dict.fromkeys(LOW_LATENCY, _not_multiple(args, n=32, k=128) if fits else "it maps e4m3 to bfloat16"),
    )


def make_mxfp8(args: Namespace) -> Case:
    """Make a case of fp8 products, batched or not. The scale of each block of 32 is a power of two."""
    split(args, "k", 32)
    count = args.batch_size if args.routine.startswith("bmm") else 1
    small = min(args.n, args.k) < 128 and "--n and --k must be at least 128"
    narrow = args.out_dtype != "bfloat16" and ONLY_BF16
    return _multiply(
        *(args, "float8_e4m3fn", "float8_e4m3fn", _tiles(args, "float8_e8m0fnu", 32, count)),
        op_type="lowbit",
        unit="fp8",
        check=_check(args, 1.0),
        refusals={
            **dict.fromkeys(MXFP8, small),
            "cudnn": small or (count > 1 and _not_multiple(args, m=128, n=128)),
            "trtllm": small or narrow or _not_multiple(args, n=128, k=256),
        },
    )


def make_mm_bf16_fp4(args: Namespace) -> Case:
    """Make a case of bfloat16 times 4-bit floats with blocks of 16."""
    split(args, "k", 16)
    refusal, scale = _not_multiple(args, n=64), _tiles(args, "float8_e4m3fn", 16)["b_scale"]
    return _multiply(
        *(args, "bfloat16", "float4_e2m1", {"b_scale": scale, "alpha": floats([ALPHA])}),
        op_type="lowbit",
        unit="fp16",
        check=_check(args, ALPHA * math.sqrt(E2M1_VARIANCE), error=BF16_ERROR),
        refusals={"cudnn": refusal, "cute-dsl": refusal or (args.out_dtype != "bfloat16" and ONLY_BF16)},
    )


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
        axes={"rows": rows, **({"groups": count} if is_grouped else {})},
        inputs=inputs,
        call=direct(f"flashinfer.gemm.{args.routine}", *inputs, "out=out", **options),
        outputs={"out": f"{args.out_dtype}[rows n]"},
        flops=2 * rows * args.n * args.k,
        unit="fp8",
        check=_check(args, 1.1),
    )


def make_bmm_fp8(args: Namespace) -> Case:
    """Make a case of a batch of fp8 products. All first matrices share a scale, and all second matrices share a
    scale."""
    first, second = DTYPES[args.input_dtype], DTYPES[args.mat2_dtype]
    refusals: dict[str, Any] = {"cutlass": "float8_e5m2" in (first, second) and "e5m2 is not supported"}
    if first == second == "float8_e5m2":
        refusals = dict.fromkeys(BMM, "e5m2 times e5m2 is not supported")
    uneven = _not_multiple(args, m=16, n=16, k=16)
    refusals["cute-dsl"] = "both matrices must have one dtype" if first != second else uneven
    return _multiply(
        *(args, first, second, dict.fromkeys(("a_scale", "b_scale"), "float32[]")),
        unit="fp8",
        check=_check(args, 1.0),
        refusals=refusals,
    )


def make_mm_fp4(args: Namespace) -> Case:
    """Make a case of 4-bit floats with scales in tiles: nvfp4 with blocks of 16, or mxfp4 with blocks of 32."""
    block, scale = (16, "float8_e4m3fn") if args.use_nvfp4 else (32, "float8_e8m0fnu")
    split(args, "k", 2 * block)
    refusal = "" if args.use_nvfp4 else "mxfp4 is not supported"
    narrow = args.out_dtype != "bfloat16" and ONLY_BF16
    return _multiply(
        *(args, "float4_e2m1", "float4_e2m1", {**_tiles(args, scale, block), "alpha": floats([ALPHA])}),
        op_type="lowbit",
        constants={"BLOCK": block},
        unit="fp4",
        check=_check(args, ALPHA * E2M1_VARIANCE, 1.0),
        refusals={
            "trtllm": narrow or refusal or _not_multiple(args, n=128),
            "cutlass": refusal,
            "cute-dsl": _not_multiple(args, n=8),
        },
    )


RUBIN: Final = (*BLACKWELL, "10.7")
LATE: Final = ("11.0", *GEFORCE)
FROM_HOPPER: Final = (*HOPPER, *BLACKWELL, *LATE)
FROM_AMPERE: Final = ("8.0", "8.6", "8.9", *FROM_HOPPER)
FROM_ADA: Final = CAPABILITIES[3:]
FROM_RUBIN: Final = CAPABILITIES[5:]
CUTLASS: Final = {"cutlass": RUBIN}
BF16: Final = {"cudnn": FROM_AMPERE, "cutlass": RUBIN, "auto": (*FROM_AMPERE, "10.7")}
MM_BF16: Final = {
    **BF16,
    "cublaslt": FROM_AMPERE,
    "tinygemm": FROM_HOPPER,
    "cutile": FROM_HOPPER,
    "tgv": BLACKWELL,
    "cute-dsl": BLACKWELL,
}
TINY: Final = {"tinygemm": FROM_HOPPER}
BMM: Final = {"cudnn": FROM_ADA, "cublas": FROM_ADA, "cutlass": FROM_RUBIN, "cute-dsl": ("10.7",), "auto": FROM_ADA}
FP4: Final = {
    "cudnn": FROM_RUBIN,
    "trtllm": RUBIN,
    "cutlass": FROM_RUBIN,
    "cute-dsl": RUBIN,
    "b12x": GEFORCE,
    "auto": FROM_RUBIN,
}
LOW_LATENCY: Final = {"trtllm_low_latency": BLACKWELL}
MXFP8: Final = {
    "cudnn": (*BLACKWELL, *LATE),
    "cutlass": (*BLACKWELL, *LATE),
    "cute-dsl": BLACKWELL,
    "trtllm": BLACKWELL,
}
BMM_MXFP8: Final = {"cudnn": (*BLACKWELL, *GEFORCE)}
BF16_FP4: Final = {"cute-dsl": (*BLACKWELL, *GEFORCE), "cudnn": (*BLACKWELL, *LATE)}
"""Backend → compute capabilities that the backend supports."""
ANY_FLAGS: Final = _bf16_flags((*HALF, *FP8), (*HALF, "float32"))
ROUTINES: Final = (
    Routine("gemm", FLAGS, make_groupwise, "gemm_fp8_nt_groupwise", "fp8 GEMM with block scales", CUTLASS),
    Routine("gemm", FLAGS, make_groupwise, "group_gemm_fp8_nt_groupwise", "the same in groups", CUTLASS),
    Routine("gemm", FLAGS, make_bmm_fp8, "bmm_fp8", "batched fp8 GEMM with one scale each", BMM),
    Routine("gemm", FLAGS, make_mm_fp4, "mm_fp4", "GEMM of 4-bit floats", FP4),
    Routine("gemm", ANY_FLAGS, make_bf16, "mm_bf16", "bfloat16 GEMM", MM_BF16),
    Routine("gemm", ANY_FLAGS, make_bf16, "bmm_bf16", "batched bfloat16 GEMM", BF16),
    Routine("gemm", _bf16_flags(BFLOAT16, BFLOAT16), make_bf16, "tinygemm_bf16", "bfloat16 GEMM of few rows", TINY),
    Routine("gemm", FLAGS, make_mm_fp8, "mm_fp8", "fp8 GEMM with one scale", LOW_LATENCY),
    Routine("gemm", FLAGS, make_mxfp8, "bmm_mxfp8", "batched fp8 GEMM with powers of two", BMM_MXFP8),
    Routine("gemm", FLAGS, make_mxfp8, "mm_mxfp8", "the same without a batch", MXFP8),
    Routine("gemm", _bf16_flags(BFLOAT16, HALF), make_mm_bf16_fp4, "mm_bf16_fp4", "bfloat16 x 4-bit GEMM", BF16_FP4),
)
