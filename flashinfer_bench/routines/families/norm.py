"""The norm family: RMSNorm, alone, with an addition before it, and with a quantisation after it.

N is the number of elements, h the hidden size, e the bytes of an input element. FLOPs are 5 N: square, add, multiply by
the root, multiply by the weight, and one for mean and root. An addition before the norm makes 6 N.

N e + h e bytes are read, and N e bytes are written. An addition adds 2 N e bytes, for the residual and the sum. An fp8
output takes N bytes instead of N e. A 4-bit output takes N / 2 + N / block bytes; block is 16 for nvfp4 and 32 for
mxfp4. A quantised output also has a scale of 4 bytes to read.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    ALL,
    BLACKWELL,
    DTYPES,
    FP8,
    HALF,
    PDL,
    Case,
    Check,
    Routine,
    counted,
    direct,
    floats,
    real,
    require,
    round_up,
    size,
    split,
    switch,
    whole,
    word,
)

FLAGS: Final = (
    size("batch_size", "number of rows"),
    size("hidden_size", "length of a row"),
    whole("num_heads", "the input becomes [batch_size, num_heads, hidden_size]"),
    word("input_dtype", "dtype of the input", "bfloat16", HALF),
    real("eps", "added to the mean square", 1e-6, least=0.0),
    PDL,
    real("scale", "divisor of the fp8 output", 1.0),
    word("out_dtype", "dtype of a quantised output", None, (*FP8, "nvfp4", "mxfp4")),
    switch("use_global_scale", "nvfp4: multiply block scales by a global scale, to use the range of e4m3"),
    switch("is_sf_swizzled_layout", "fp4: scales in tiles of 128 x 4"),
)
FP8_MATCH: Final = 0.98
"""Share of fp8 codes that must agree. A value midway between two codes may be rounded up or down."""
FP4_MATCH: Final = 0.97
CALLS: Final = {
    "rmsnorm": ("x", "weight", "out=out"),
    "rmsnorm_quant": ("out", "x", "weight", "scale"),
    "fused_add_rmsnorm_quant": ("out", "x", "residual_out.copy_(residual)", "weight", "scale"),
    "rmsnorm_fp4quant": ("x", "weight", "out", "block_scale", "global_scale=global_scale"),
    "add_rmsnorm_fp4quant": (
        *("x", "residual_out.copy_(residual)", "weight", "out", "block_scale"),
        "global_scale=global_scale",
    ),
}
"""Routine → the arguments of its kernel. A kernel that works in place gets a copy of the residual."""
IN_PLACE: Final = ("cuda, cute-dsl: the kernel works in place; the timed call copies the residual first",)
LARGEST: Final = 24.0
"""Largest usual output. Outputs are products of two normal numbers."""
GLOBAL_SCALE: Final = 448.0 * 6.0 / LARGEST
"""Global scale. A block's scale is its largest value / 6, times the global scale. So scales use e4m3's range."""


def _choose(args: Namespace, kinds: Sequence[str]) -> str:
    """Return the dtype of a quantised output: --out_dtype, else the first of `kinds`."""
    kind = args.out_dtype or kinds[0]
    require(kind in kinds, f"--out_dtype {kind}: this routine takes {', '.join(kinds)}")
    return kind


def make_norm(args: Namespace) -> Case:
    """Make a case of any norm. The routine's name decides whether it adds and quantises."""
    name, hidden, count = args.routine, args.hidden_size, args.batch_size * (args.num_heads or 1)
    adds, elements, rows = "add" in name, count * hidden, "batch_size num_heads" if args.num_heads else "batch_size"
    x, constants = f"{args.input_dtype}[{rows} hidden_size]", dict[str, Any]()
    inputs = {"x": x, **({"residual": x} if adds else {}), "weight": f"{args.input_dtype}[hidden_size]"}
    outputs, match = {"out": x}, None
    if name.endswith("rmsnorm_quant"):
        require(args.num_heads is None, "--num_heads: the quantising norms take two dimensions")
        constants["OUT_DTYPE"] = out = DTYPES[_choose(args, FP8)]
        inputs["scale"], outputs["out"], match = floats([args.scale]), f"{out}[{rows} hidden_size]", FP8_MATCH
    elif name.endswith("fp4quant"):
        block, swizzled = 16 if _choose(args, ("nvfp4", "mxfp4")) == "nvfp4" else 32, args.is_sf_swizzled_layout
        columns = split(args, "hidden_size", block)
        require(hidden >= 64, f"--hidden_size {hidden}: at least 64")
        require(not args.use_global_scale or block == 16, "--use_global_scale goes with --out_dtype nvfp4")
        require(
            not swizzled or block == 16 or (count % 128 == 0 and columns % 4 == 0),
            "--is_sf_swizzled_layout with mxfp4: rows must be a multiple of 128 and hidden_size of 128, for the "
            "padding of byte scales has no defined content",
        )
        constants["BLOCK"], match = block, FP4_MATCH
        inputs["global_scale"] = floats([GLOBAL_SCALE if args.use_global_scale else 1.0])
        scales = round_up(count, 128) * round_up(columns, 4) if swizzled else f"{rows} {columns}"
        scale = counted(f"{'float8_e4m3fn' if block == 16 else 'uint8'}[{scales}]", elements // block)
        outputs = {"out": f"float4_e2m1[{rows} hidden_size]", "block_scale": scale}
    if adds:
        outputs["residual_out"] = x
    options = {"eps": args.eps, "enable_pdl": args.enable_pdl}
    if name.endswith("fp4quant"):
        options |= {"block_size": constants["BLOCK"], "is_sf_swizzled_layout": args.is_sf_swizzled_layout}
    return Case(
        op_type="rmsnorm" if name == "rmsnorm" else "lowbit",
        inputs=inputs,
        outputs=outputs,
        constants=constants,
        call=direct(f"flashinfer.{name}", *CALLS[name], **options),
        flops=(5 + adds) * elements,
        check=Check(1e-2, 1e-3, match),
        notes=IN_PLACE if adds else (),
    )


_cuda = partial(Routine, "norm", FLAGS, make_norm, support={"cuda": ALL}, module="norm")
# FlashInfer's documents name the backend `cuda` for all norms, but the 4-bit norms have only CuTe-DSL kernels.
_fp4 = partial(Routine, "norm", FLAGS, make_norm, support={"cute-dsl": BLACKWELL}, aliases={"cuda": "cute-dsl"})
ROUTINES: Final = (
    _cuda("rmsnorm", "root mean square normalisation"),
    _cuda("rmsnorm_quant", "RMSNorm to fp8"),
    _cuda("fused_add_rmsnorm_quant", "residual addition, then RMSNorm to fp8"),
    _fp4("rmsnorm_fp4quant", "RMSNorm to 4-bit floats"),
    _fp4("add_rmsnorm_fp4quant", "residual addition, then RMSNorm to 4-bit floats"),
)
