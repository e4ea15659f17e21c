"""The norm family: RMSNorm, alone and with an addition before it and a quantisation after it.

N is the number of elements, h the hidden size, e the bytes of an input element. FLOPs: square and add, multiply by the
root, multiply by the weight, and one for the mean and the root: 5 N; an addition before makes it 6 N.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any, Final

from flashinfer_bench.roofline.cost import Cost, size_of
from flashinfer_bench.routines.case.spec import ALL, BLACKWELL, NOT_NEGATIVE, Case, Check, Code, Flag, Routine, Tensor
from flashinfer_bench.routines.case.stored import floats
from flashinfer_bench.routines.case.words import read_dtype, require, swizzled_size

FAMILY: Final = "norm"
FLAGS: Final = (
    Flag("batch_size", "int", "number of rows", required=True),
    Flag("hidden_size", "int", "length of a row", required=True),
    Flag("num_heads", "int", "makes the input [batch_size, num_heads, hidden_size]"),
    Flag("input_dtype", "text", "dtype of the input", "bfloat16", ("bfloat16", "float16")),
    Flag("eps", "float", "added to the mean square", 1e-6, span=NOT_NEGATIVE),
    Flag("enable_pdl", "switch", "programmatic dependent launch", False),
    Flag("scale", "float", "the fp8 output is divided by it", 1.0),
    Flag("out_dtype", "text", "dtype of a quantised output", None, ("fp8_e4m3", "fp8_e5m2", "nvfp4", "mxfp4")),
    Flag("use_global_scale", "switch", "nvfp4: block scales are multiplied by a global one, to fill e4m3", False),
    Flag("is_sf_swizzled_layout", "switch", "fp4: scales in tiles of 128 x 4", False),
)
FP8_MATCH: Final = 0.98
"""Share of fp8 codes that must agree: a value near the middle of two codes may be rounded either way."""
FP4_ALIASES: Final = {"cuda": "cute-dsl"}
"""FlashInfer's documents name `cuda` for the whole family. The 4-bit norms have a kernel in CuTe-DSL only."""
IN_PLACE: Final = ("cuda, cute-dsl: the kernel works in place; the timed call copies the residual first",)
LARGEST: Final = 24.0
"""Outputs are products of two normal numbers, and hardly any exceeds this."""
GLOBAL_SCALE: Final = 448.0 * 6.0 / LARGEST
"""The scale of a block is its largest value / 6, times this. So the scales use all of e4m3's range."""


def _shape(args: Namespace) -> tuple[dict[str, int], str, int]:
    """Return the axes, the shape of the rows, and the number of rows."""
    if args.num_heads is None:
        axes = {"batch_size": args.batch_size, "hidden_size": args.hidden_size}
        return axes, "batch_size hidden_size", args.batch_size
    axes = {"batch_size": args.batch_size, "num_heads": args.num_heads, "hidden_size": args.hidden_size}
    return axes, "batch_size num_heads hidden_size", args.batch_size * args.num_heads


def _label(args: Namespace, *more: Any) -> str:
    heads = [] if args.num_heads is None else [f"n{args.num_heads}"]
    return "_".join([f"b{args.batch_size}", *heads, f"h{args.hidden_size}", args.input_dtype, *map(str, more)])


def make_rmsnorm(args: Namespace) -> Case:
    """RMSNorm. 5 N FLOPs; N e + h e read, N e written."""
    axes, rows, count = _shape(args)
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    elements, size = count * args.hidden_size, size_of(dtype)
    constants = {"EPS": args.eps}
    return Case(
        label=_label(args),
        op_type="rmsnorm",
        axes=axes,
        inputs={"x": Tensor(dtype, rows), "weight": Tensor(dtype, "hidden_size")},
        outputs={"out": Tensor(dtype, rows)},
        reference=Code("norm_torch", "rmsnorm", constants),
        solutions={"cuda": Code("norm_flashinfer", "rmsnorm", {**constants, "ENABLE_PDL": args.enable_pdl})},
        cost=Cost(5 * elements, (2 * elements + args.hidden_size) * size),
        check=Check(1e-2, 1e-3),
        dps=frozenset({"cuda"}),
    )


def _make_fp8(args: Namespace, *, adds: bool) -> Case:
    axes, rows, count = _shape(args)
    require(args.num_heads is None, "--num_heads: the quantising norms take two dimensions")
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    out = read_dtype(args.out_dtype or "fp8_e4m3", "out_dtype", ("fp8_e4m3", "fp8_e5m2"))
    function = "fused_add_rmsnorm_quant" if adds else "rmsnorm_quant"
    residual = {"residual": Tensor(dtype, rows)} if adds else {}
    elements, size = count * args.hidden_size, size_of(dtype)
    return Case(
        label=_label(args, out, f"scale{args.scale:g}"),
        op_type="lowbit",
        axes=axes,
        inputs={
            "x": Tensor(dtype, rows),
            **residual,
            "weight": Tensor(dtype, "hidden_size"),
            "scale": Tensor("float32", "1", floats([args.scale])),
        },
        outputs={"out": Tensor(out, rows), **({"residual_out": Tensor(dtype, rows)} if adds else {})},
        reference=Code("norm_torch", function, {"EPS": args.eps, "OUT_DTYPE": out}),
        solutions={"cuda": Code("norm_flashinfer", function, {"EPS": args.eps, "ENABLE_PDL": args.enable_pdl})},
        cost=Cost(
            (6 if adds else 5) * elements,
            ((3 if adds else 1) * elements + args.hidden_size) * size + elements + 4,
        ),
        check=Check(1e-2, 1e-3, FP8_MATCH),
        notes=IN_PLACE if adds else (),
        dps=frozenset({"cuda"}),
    )


def make_rmsnorm_quant(args: Namespace) -> Case:
    """RMSNorm to fp8. 5 N FLOPs; N e + h e + the scale read, N written."""
    return _make_fp8(args, adds=False)


def make_fused_add_rmsnorm_quant(args: Namespace) -> Case:
    """Addition and RMSNorm to fp8. 6 N FLOPs; 2 N e + h e + the scale read, N e and N written."""
    return _make_fp8(args, adds=True)


def _make_fp4(args: Namespace, *, adds: bool) -> Case:
    axes, rows, count = _shape(args)
    dtype = read_dtype(args.input_dtype, "input_dtype", ("bfloat16", "float16"))
    word = args.out_dtype or "nvfp4"
    require(word in ("nvfp4", "mxfp4"), f"--out_dtype {word}: this routine takes nvfp4, mxfp4")
    block = 16 if word == "nvfp4" else 32
    hidden, columns, swizzled = args.hidden_size, args.hidden_size // block, bool(args.is_sf_swizzled_layout)
    require(hidden % block == 0 and hidden >= 64, f"--hidden_size {hidden}: at least 64, a multiple of {block}")
    require(not args.use_global_scale or block == 16, "--use_global_scale goes with --out_dtype nvfp4")
    full = count % 128 == 0 and columns % 4 == 0
    require(
        not swizzled or block == 16 or full,
        "--is_sf_swizzled_layout with mxfp4: rows must be a multiple of 128 and hidden_size of 128, for the padding of "
        "byte scales has no defined content",
    )
    scales = str(swizzled_size(count, columns)) if swizzled else f"{rows.rpartition(' ')[0]} {columns}"
    constants = {"EPS": args.eps, "BLOCK": block, "SWIZZLED": swizzled}
    function = "add_rmsnorm_fp4quant" if adds else "rmsnorm_fp4quant"
    elements, size = count * hidden, size_of(dtype)
    global_scale = floats([GLOBAL_SCALE if args.use_global_scale else 1.0])
    return Case(
        label=_label(args, word, *(["swizzled"] if swizzled else []), *(["global"] if args.use_global_scale else [])),
        op_type="lowbit",
        axes=axes,
        inputs={
            "x": Tensor(dtype, rows),
            **({"residual": Tensor(dtype, rows)} if adds else {}),
            "weight": Tensor(dtype, "hidden_size"),
            "global_scale": Tensor("float32", "1", global_scale),
        },
        outputs={
            "out": Tensor("float4_e2m1", rows),
            "block_scale": Tensor("float8_e4m3fn" if block == 16 else "uint8", scales),
            **({"residual_out": Tensor(dtype, rows)} if adds else {}),
        },
        reference=Code("norm_torch", function, constants),
        solutions={"cute-dsl": Code("norm_flashinfer", function, {**constants, "ENABLE_PDL": args.enable_pdl})},
        cost=Cost(
            (6 if adds else 5) * elements,
            ((3 if adds else 1) * elements + hidden) * size + elements / 2 + count * columns + 4,
        ),
        check=Check(1e-2, 1e-3, 0.97),
        notes=IN_PLACE if adds else (),
        dps=frozenset({"cute-dsl"}),
    )


def make_rmsnorm_fp4quant(args: Namespace) -> Case:
    """RMSNorm to 4 bits. 5 N FLOPs; N e + h e read, N / 2 and N / block written (block 16: nvfp4, 32: mxfp4)."""
    return _make_fp4(args, adds=False)


def make_add_rmsnorm_fp4quant(args: Namespace) -> Case:
    """Addition and RMSNorm to 4 bits. 6 N FLOPs; 2 N e + h e read, N e, N / 2 and N / block written."""
    return _make_fp4(args, adds=True)


def _routine(name: str, summary: str, make: Callable[[Namespace], Case]) -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {"cuda": ALL}, make, module="norm")


def _fp4_routine(name: str, summary: str, make: Callable[[Namespace], Case]) -> Routine:
    return Routine(name, FAMILY, summary, FLAGS, {"cute-dsl": BLACKWELL}, make, aliases=FP4_ALIASES)


ROUTINES: Final = (
    _routine("rmsnorm", "root mean square normalisation", make_rmsnorm),
    _routine("rmsnorm_quant", "RMSNorm to fp8", make_rmsnorm_quant),
    _routine("fused_add_rmsnorm_quant", "residual addition, then RMSNorm to fp8", make_fused_add_rmsnorm_quant),
    _fp4_routine("rmsnorm_fp4quant", "RMSNorm to 4-bit floats", make_rmsnorm_fp4quant),
    _fp4_routine("add_rmsnorm_fp4quant", "residual addition, then RMSNorm to 4-bit floats", make_add_rmsnorm_fp4quant),
)
