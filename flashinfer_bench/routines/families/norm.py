"""The norm family: RMSNorm and LayerNorm, alone, with an addition before, and with a quantisation or SiLU after.

N is the number of elements, h the hidden size, e the bytes of an input element. FLOPs are 5 N: square, add, multiply by
the root, multiply by the weight, and one for mean and root together. FLOPs are 6 N with an addition before the norm.

N e + h e bytes are read, and N e bytes are written. An addition adds 2 N e bytes, for the residual and the sum. An fp8
output takes N bytes instead of N e. A 4-bit output takes N / 2 + N / block bytes; block is 16 for nvfp4 and 32 for
mxfp4. A quantised output needs a scale, so 4 more bytes are read. With both layouts of scales, N / block bytes are
written twice.

* `layernorm_quant`: 7 N FLOPs. 8 h bytes of gamma and beta are read.
* `fused_rmsnorm_silu`: 7 N FLOPs.
* `fused_dit_layernorm`: a row has 3072 elements. FLOPs are 8 N for the addition and the norm, 2 N more for a gate or a
  scale, and N more for a shift. A gate, a scale or a shift takes N e bytes, and 4 bytes for each column.
* `fused_qk_rmsnorm_rope`: N is the number of elements of queries. FLOPs are 10 N without the rotation, as FlashInfer
  counts. Bytes are 12 N + 4 h.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    ALL,
    BLACKWELL,
    CAPABILITIES,
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
    needed,
    real,
    require,
    round_up,
    size,
    split,
    switch,
    whole,
    word,
)

VIDEO: Final = (
    whole("ppf", "fused_qk_rmsnorm_rope: frames of a video, in patches", 5),
    whole("pph", "the same: height", 12),
    whole("ppw", "the same: width", 32),
)
WIDTH: Final = 3072
"""Length of a row of fused_dit_layernorm. The kernel supports only this length."""
DIT: Final[Mapping[str, tuple[int, Mapping[str, int]]]] = {
    "gate_residual_gamma_beta": (10, {"gate": 2}),
    "gate_residual_scale_shift": (13, {"gate": 5, "scale": 1, "shift": 0}),
    "residual_scale_shift": (11, {"scale": 4, "shift": 3}),
}
"""Mode → FLOPs per element, and the index of each part in the table and in the time embedding."""
FLAGS: Final = (
    size("batch_size", "number of rows"),
    size("hidden_size", "length of a row; fused_dit_layernorm: number of rows, whose length is 3072"),
    whole("num_heads", "the input becomes [batch_size, num_heads, hidden_size]; fused_qk_rmsnorm_rope: heads"),
    word("input_dtype", "dtype of the input", "bfloat16", HALF),
    real("eps", "added to the mean square", 1e-6, least=0.0),
    PDL,
    real("scale", "divisor of the fp8 output", 1.0),
    word("out_dtype", "dtype of a quantised output", None, (*FP8, "nvfp4", "mxfp4")),
    switch("use_global_scale", "nvfp4: multiply block scales by a global scale, to use the range of e4m3"),
    switch("is_sf_swizzled_layout", "fp4: scales in tiles of 128 x 4"),
    switch("output_both_sf_layouts", "fp4: scales in tiles and in rows"),
    word("dit_mode", "fused_dit_layernorm: its steps", next(iter(DIT)), tuple(DIT)),
    *VIDEO,
)
WITHOUT_PDL: Final = tuple(flag for flag in FLAGS if flag is not PDL)
FP8_MATCH: Final = 0.98
"""Share of fp8 codes that must agree. A value midway between two codes may be rounded up or down."""
FP4_MATCH: Final = 0.97
ROUNDED_TWICE: Final = 0.95
"""Share of fp8 codes that must agree if the kernel rounds to bfloat16 before it rounds to fp8."""
RTOL: Final = 1.6e-2
"""Allowed relative error: two steps of bfloat16. Kernels may also round the sum and the normalised row."""
ROUNDED_SUM: Final = Check(2e-2, 2e-2, 0.9999)
"""Tolerance if kernels may round the terms of a sum to bfloat16. A small sum has the rounding errors of large terms."""
KERNELS: Final = "flashinfer.norm.get_norm_module()"
"""The CUDA kernels. The library's functions prefer CuTe DSL on a GPU that CuTe DSL supports."""
PDL_HERE: Final = "flashinfer.utils.device_support_pdl(x.device)"
IN_PLACE: Final = ("cuda, cute-dsl: the kernel works in place; the timed call copies what it changes first",)
LARGEST: Final = 24.0
"""Largest usual output. Outputs are products of two normal numbers."""
GLOBAL_SCALE: Final = 448.0 * 6.0 / LARGEST
"""Global scale. The scale of a block is the block's largest value, divided by 6 and multiplied by the global scale. So
scales use the whole range of e4m3."""


def _choose(args: Namespace, kinds: Sequence[str]) -> str:
    """Return the dtype of a quantised output: --out_dtype, else the first of `kinds`."""
    kind = args.out_dtype or kinds[0]
    require(kind in kinds, f"--out_dtype {kind}: this routine takes {', '.join(kinds)}")
    return kind


def _require_rows(args: Namespace) -> None:
    require(args.num_heads is None, f"--num_heads: {args.routine} takes two dimensions")


def _require_bfloat16(args: Namespace) -> None:
    require(args.input_dtype == "bfloat16", f"--input_dtype {args.input_dtype}: {args.routine} takes bfloat16")


def make_norm(args: Namespace) -> Case:
    """Make a case of any norm. The routine's name decides whether the kernel also adds, and whether it quantises."""
    name, hidden, count = args.routine, args.hidden_size, args.batch_size * (args.num_heads or 1)
    adds, elements, rows = "add" in name, count * hidden, "batch_size num_heads" if args.num_heads else "batch_size"
    x, constants = f"{args.input_dtype}[{rows} hidden_size]", dict[str, Any]()
    inputs = {"x": x, **({"residual": x} if adds else {}), "weight": f"{args.input_dtype}[hidden_size]"}
    outputs, match, is_fp4 = {"out": x}, None, name.endswith("fp4quant")
    options, both = {"eps": args.eps, "enable_pdl": args.enable_pdl}, is_fp4 and args.output_both_sf_layouts
    if name.endswith("_quant"):
        constants["OUT_DTYPE"] = out = DTYPES[_choose(args, FP8)]
        inputs["scale"], outputs["out"], match = floats([args.scale]), f"{out}[{rows} hidden_size]", FP8_MATCH
    elif is_fp4:
        block, swizzled = 16 if _choose(args, ("nvfp4", "mxfp4")) == "nvfp4" else 32, both or args.is_sf_swizzled_layout
        columns = split(args, "hidden_size", block)
        require(hidden >= 64, f"--hidden_size {hidden}: at least 64")
        require(not args.use_global_scale or block == 16, "--use_global_scale goes with --out_dtype nvfp4")
        require(
            not swizzled or block == 16 or (count % 128 == 0 and columns % 4 == 0),
            "--is_sf_swizzled_layout with mxfp4: rows must be a multiple of 128 and hidden_size of 128, for the "
            "padding of byte scales has no defined content",
        )
        constants |= {"BLOCK": block, "IS_SF_SWIZZLED_LAYOUT": swizzled}
        options |= {"block_size": block, "is_sf_swizzled_layout": swizzled}
        match, dtype, in_rows = FP4_MATCH, "float8_e4m3fn" if block == 16 else "uint8", f"[{rows} {columns}]"
        inputs["global_scale"] = floats([GLOBAL_SCALE if args.use_global_scale else 1.0])
        scales = f"[{round_up(count, 128) * round_up(columns, 4)}]" if swizzled else in_rows
        scale = counted(f"{dtype}{scales}", elements // block)
        outputs = {"out": f"float4_e2m1[{rows} hidden_size]", "block_scale": scale}
        if both:
            outputs["block_scale_unswizzled"] = f"{dtype}{in_rows}"
            options["output_both_sf_layouts"] = True
    if adds:
        outputs["residual_out"] = x
    is_in_place = adds and match is None
    if not is_fp4 and (adds or match):
        _require_rows(args)
    given = {} if is_in_place else {"y_fp4" if is_fp4 else "out": "out"}
    given["input"] = "out.copy_(x)" if is_in_place else "x"
    if adds:
        given["residual"] = "residual_out.copy_(residual)"
    given |= {one: one for one in (*inputs, *outputs) if "scale" in one or one == "weight"}
    by_name = [f"{one}={value}" for one, value in given.items()]
    pdl = PDL_HERE if args.enable_pdl else "False"
    return Case(
        op_type="lowbit" if match else "rmsnorm",
        inputs=inputs,
        outputs=outputs,
        reference=f"{name}_both" if both else "",
        constants=constants,
        call={
            "cute-dsl": direct(f"flashinfer.{name}", *by_name, **options),
            "cuda": direct(f"{KERNELS}.{name}", *given.values(), repr(args.eps), pdl),
        },
        flops=(5 + adds) * elements,
        check=Check(RTOL, 1e-3, match),
        refusals={
            "cute-dsl": both and not adds and "--output_both_sf_layouts: its kernel writes one layout",
            "cuda": name == "gemma_rmsnorm" and args.num_heads and "--num_heads: its kernel takes two dimensions",
        },
        notes=IN_PLACE if adds else (),
    )


def make_bfloat16(args: Namespace) -> Case:
    """Make a case of LayerNorm to fp8, or of RMSNorm with SiLU. Both routines take only bfloat16."""
    _require_rows(args)
    _require_bfloat16(args)
    x, quantises = "bfloat16[batch_size hidden_size]", args.routine == "layernorm_quant"
    inputs, out = {"x": x, "weight": "bfloat16[hidden_size]"}, "bfloat16"
    if quantises:
        affine = dict.fromkeys(("gamma", "beta"), "float32[hidden_size]")
        inputs, out = {"x": x, **affine, "scale": floats([args.scale])}, DTYPES[_choose(args, FP8)]
    given = ("out", *inputs) if quantises else (*inputs, "out=out")
    return Case(
        op_type="lowbit" if quantises else "rmsnorm",
        inputs=inputs,
        outputs={"out": f"{out}[batch_size hidden_size]"},
        constants={"OUT_DTYPE": out},
        call=direct(f"flashinfer.{args.routine}", *given, eps=args.eps),
        flops=7 * args.batch_size * args.hidden_size,
        check=Check(RTOL, 1e-3, ROUNDED_TWICE) if quantises else Check(RTOL, 4e-3),
    )


def make_dit(args: Namespace) -> Case:
    """Make a case of a diffusion transformer's LayerNorm. Gates, scales and shifts are slices of one tensor."""
    _require_rows(args)
    _require_bfloat16(args)
    work, parts = DIT[args.dit_mode]
    rows, x = args.batch_size * args.hidden_size, f"bfloat16[batch_size hidden_size {WIDTH}]"
    affine = {} if "scale" in parts else dict.fromkeys(("gamma", "beta"), f"float32[{WIDTH}]")
    outputs = {"residual_out": x, "norm_out": x}
    given = {"input": "x", "residual": "residual"}
    for part, at in parts.items():
        given |= {part: f"temb[:, :, {at}]", f"{part}_bias": f"table[0, {at}]"}
    given |= {one: one for one in (*affine, *outputs)}
    return Case(
        op_type="layernorm",
        inputs={
            "x": x,
            "residual": x,
            "temb": counted(f"bfloat16[batch_size hidden_size 6 {WIDTH}]", len(parts) * rows * WIDTH),
            "table": counted(f"float32[1 6 {WIDTH}]", len(parts) * WIDTH),
            **affine,
        },
        outputs=outputs,
        constants={"PARTS": [parts.get(part) for part in ("gate", "scale", "shift")]},
        call=direct(
            f"flashinfer.fused_dit_{args.dit_mode.replace('residual', 'residual_layernorm')}",
            *(f"{one}={value}" for one, value in given.items()),
            epsilon=args.eps,
        ),
        flops=work * rows * WIDTH,
        check=ROUNDED_SUM,
    )


def make_qk(args: Namespace) -> Case:
    """Make a case of a video transformer's attention: RMSNorm of queries and keys, then 3-D RoPE of each head."""
    _require_bfloat16(args)
    heads, video = needed(args, "num_heads"), {flag.name: getattr(args, flag.name) for flag in VIDEO}
    dim = split(args, "hidden_size", heads)
    require(dim % 2 == 0, f"--hidden_size {args.hidden_size}: a head has {dim} elements, and RoPE takes pairs")
    side, length = dim // 6 * 2, math.prod(video.values())
    channels = {"num_frame_channels": dim - 2 * side, "num_height_channels": side, "num_width_channels": side}
    refusal = f"a head of {dim} elements: its kernel takes 64, 128, 256" if dim not in (64, 128, 256) else ""
    return Case(
        op_type="rmsnorm",
        axes={"tokens": length, "columns": 3 * args.hidden_size},
        inputs={
            "qkv": "bfloat16[batch_size tokens columns]",
            **dict.fromkeys(("q_weight", "k_weight"), "bfloat16[hidden_size]"),
        },
        outputs={f"{one}_out": f"bfloat16[batch_size tokens {heads} {dim}]" for one in "qkv"},
        constants={"CHANNELS": list(channels.values())},
        call=direct(
            f"flashinfer.{args.routine}",
            *("qkv", "q_weight", "k_weight", "q_out=q_out", "k_out=k_out", "v_out=v_out"),
            **video,
            **channels,
            **{f"num_heads_{one}": heads for one in "qkv"},
            head_dim=dim,
            eps=args.eps,
        ),
        flops=10 * args.batch_size * length * args.hidden_size,
        check=ROUNDED_SUM,
        refusals={"cuda": "at most 32 heads" if heads > 32 else refusal},
    )


ANY: Final = (*ALL, "12.1")
_rms = partial(Routine, "norm", FLAGS, make_norm, support={"cuda": ANY, "cute-dsl": ANY}, module="norm")
# FlashInfer's documents name the backend `cuda` for all norms, but the 4-bit norms have only CuTe-DSL kernels.
_fp4 = partial(
    Routine,
    *("norm", FLAGS, make_norm),
    support={"cute-dsl": (*BLACKWELL, "12.0", "12.1")},
    aliases={"cuda": "cute-dsl"},
)
_cuda = partial(Routine, "norm", WITHOUT_PDL, support={"cuda": CAPABILITIES[1:]})
ROUTINES: Final = (
    _rms("rmsnorm", "root mean square normalisation"),
    _rms("rmsnorm_quant", "RMSNorm to fp8"),
    _rms("fused_add_rmsnorm", "residual addition, then RMSNorm"),
    _rms("fused_add_rmsnorm_quant", "residual addition, then RMSNorm to fp8"),
    _rms("gemma_rmsnorm", "RMSNorm, times the weight plus 1"),
    _rms("gemma_fused_add_rmsnorm", "residual addition, then RMSNorm, times the weight plus 1"),
    _fp4("rmsnorm_fp4quant", "RMSNorm to 4-bit floats"),
    _fp4("add_rmsnorm_fp4quant", "residual addition, then RMSNorm to 4-bit floats"),
    _cuda(make_bfloat16, "layernorm_quant", "LayerNorm to fp8", support={"cuda": ANY}, module="norm"),
    _cuda(make_bfloat16, "fused_rmsnorm_silu", "RMSNorm, then SiLU"),
    _cuda(make_dit, "fused_dit_layernorm", "gate, residual addition, LayerNorm, scale and shift", module="norm"),
    _cuda(make_qk, "fused_qk_rmsnorm_rope", "RMSNorm of queries and keys, then 3-D RoPE", module="norm"),
)
