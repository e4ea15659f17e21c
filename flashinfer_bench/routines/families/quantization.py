"""The quantisation family: fp8 and 4-bit floats with a scale for each block of a row.

N = m k elements of e bytes, blocks of v. FLOPs: find the largest of a block, multiply, round: 3 N. The padding of
scales in a tiled layout does not count.
"""

from __future__ import annotations

from argparse import Namespace
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import BLACKWELL, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import floats
from flashinfer_bench.routines.case.words import read_dtype, require, round_up

FAMILY: Final = "quantization"
HALF: Final = ("bfloat16", "float16")
FLAGS: Final = (
    Flag("m", "int", "rows", required=True),
    Flag("k", "int", "columns; a multiple of 32", required=True),
    Flag("input_dtype", "text", "dtype of the input", "bfloat16", HALF),
    Flag("is_sf_swizzled_layout", "switch", "mxfp8: scales in tiles of 128 x 4, which is the default", True),
    Flag("no_sf_swizzled_layout", "switch", "mxfp8: scales row by row", False),
    Flag("alignment", "int", "mxfp8: columns are padded to a multiple of it", 32),
    Flag("enable_pdl", "switch", "programmatic dependent launch", False),
    Flag("batch_size", "int", "number of matrices (nvfp4_batched_quantize)"),
    Flag("global_scale", "float", "nvfp4: values are multiplied by it first", 1.0),
    Flag("sf_layout", "text", "nvfp4: order of the scales", "128x4", ("128x4", "8x4", "linear")),
    Flag("do_shuffle", "switch", "nvfp4: rows in the order of the trtllm backend; not checked here", False),
    Flag("sf_vec_size", "int", "nvfp4: elements that share a scale", 16),
)
CODES: Final = Check(1e-2, 1e-3, 0.97)
"""97 % of codes and scales must agree: a value near the middle of two codes may be rounded either way."""
FP8_CODES: Final = Check(1e-2, 1e-3, 0.98)
"""The same for fp8: 98 % must agree."""
TILE_ROWS: Final = {"128x4": 128, "8x4": 8}


def _scales(rows: int, columns: int, layout: str) -> int:
    return rows * columns if layout == "linear" else round_up(rows, TILE_ROWS[layout]) * round_up(columns, 4)


def _check(args: Namespace) -> str:
    require(args.k % 32 == 0, f"--k {args.k}: a multiple of 32")
    return read_dtype(args.input_dtype, "input_dtype", HALF)


def make_mxfp8_quantize(args: Namespace) -> Case:
    """fp8, blocks of 32. 3 N FLOPs; N e read, N + N / 32 written."""
    dtype, count, columns = _check(args), args.m * args.k, args.k // 32
    require(args.alignment == 32 or args.k % args.alignment == 0, f"--alignment {args.alignment} does not divide --k")
    swizzled = args.is_sf_swizzled_layout and not args.no_sf_swizzled_layout
    layout = "128x4" if swizzled else "linear"
    own = {"SWIZZLED": swizzled, "ALIGNMENT": args.alignment, "ENABLE_PDL": args.enable_pdl}
    return Case(
        label=f"m{args.m}_k{args.k}_{dtype}_{layout}",
        op_type="lowbit",
        axes={"m": args.m, "k": args.k},
        inputs={"x": Tensor(dtype, "m k")},
        outputs={
            "values": Tensor("float8_e4m3fn", "m k"),
            "block_scales": Tensor("uint8", str(_scales(args.m, columns, layout))),
        },
        reference=Code("quantization_torch", "mxfp8_quantize", {"LAYOUT": layout}),
        solutions={"cuda": Code("quantization_flashinfer", "mxfp8_quantize", own)},
        cost=Cost(3 * count, count * (size_of(dtype) + 1 + 1 / 32)),
        check=FP8_CODES,
    )


def make_mxfp4_quantize(args: Namespace) -> Case:
    """4-bit floats, blocks of 32. 3 N FLOPs; N e read, N / 2 + N / 32 written."""
    dtype, count = _check(args), args.m * args.k
    return Case(
        label=f"m{args.m}_k{args.k}_{dtype}",
        op_type="lowbit",
        axes={"m": args.m, "k": args.k},
        inputs={"x": Tensor(dtype, "m k")},
        outputs={
            "values": Tensor("float4_e2m1", "m k"),
            "block_scales": Tensor("uint8", str(_scales(args.m, args.k // 32, "128x4"))),
        },
        reference=Code("quantization_torch", "mxfp4_quantize"),
        solutions={"cuda": Code("quantization_flashinfer", "mxfp4_quantize")},
        cost=Cost(3 * count, count * (size_of(dtype) + 1 / 2 + 1 / 32)),
        check=CODES,
    )


def _why_not_nvfp4(args: Namespace) -> dict[str, str]:
    if args.sf_vec_size != 16:
        return {"cuda": f"--sf_vec_size {args.sf_vec_size}: its kernel takes 16 where scales are not powers of two"}
    if args.do_shuffle:
        return {"cuda": "--do_shuffle reorders rows in a way that the reference does not know"}
    return {}


def _make_nvfp4(args: Namespace, *, batch: int | None) -> Case:
    dtype, block = _check(args), args.sf_vec_size
    require(block in (16, 32) and args.k % block == 0, f"--sf_vec_size {block}: 16 or 32, a divisor of --k")
    layout = "128x4" if batch is not None else args.sf_layout
    count, columns = (batch or 1) * args.m * args.k, args.k // block
    rows = "m k" if batch is None else "batch_size m k"
    scales = str(_scales(args.m, columns, layout))
    function = "nvfp4_quantize" if batch is None else "nvfp4_batched_quantize"
    own = {"BLOCK": block}
    if batch is None:
        own |= {"LAYOUT": layout, "ENABLE_PDL": args.enable_pdl, "SHUFFLES": args.do_shuffle}
    return Case(
        label=f"{'' if batch is None else f'b{batch}_'}m{args.m}_k{args.k}_{dtype}_{layout}_v{block}",
        op_type="lowbit",
        axes={"m": args.m, "k": args.k, **({"batch_size": batch} if batch is not None else {})},
        inputs={"x": Tensor(dtype, rows), "global_scale": Tensor("float32", "1", floats([args.global_scale]))},
        outputs={
            "values": Tensor("float4_e2m1", rows),
            "block_scales": Tensor("uint8", scales if batch is None else f"batch_size {scales}"),
        },
        reference=Code("quantization_torch", function, {"BLOCK": block, "LAYOUT": layout}),
        solutions={"cuda": Code("quantization_flashinfer", function, own)},
        cost=Cost(3 * count, count * (size_of(dtype) + 1 / 2 + 1 / block) + 4),
        check=CODES,
        refusals=_why_not_nvfp4(args),
    )


def make_nvfp4_quantize(args: Namespace) -> Case:
    """4-bit floats, blocks of v. 3 N FLOPs; N e + 4 read, N / 2 + N / v written."""
    return _make_nvfp4(args, batch=None)


def make_nvfp4_batched_quantize(args: Namespace) -> Case:
    """The same for a batch: N counts all of its matrices."""
    require(args.batch_size is not None, "--batch_size is missing")
    return _make_nvfp4(args, batch=args.batch_size)


def _routine(name: str, summary: str, make: Any) -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {"cuda": BLACKWELL}, make)


ROUTINES: Final = (
    _routine("mxfp8_quantize", "fp8 with powers of two", make_mxfp8_quantize),
    _routine("mxfp4_quantize", "4-bit floats with powers of two", make_mxfp4_quantize),
    _routine("nvfp4_quantize", "4-bit floats with e4m3 factors", make_nvfp4_quantize),
    _routine("nvfp4_batched_quantize", "the same for a batch", make_nvfp4_batched_quantize),
)
