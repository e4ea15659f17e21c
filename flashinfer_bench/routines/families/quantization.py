"""The quantisation family: fp8 and 4-bit floats with a scale for each block of a row.

N is the number of elements, over all matrices of a batch. An element has e bytes, and a block v elements. FLOPs are 3
N: a comparison for the largest value of a block, a multiplication, and a rounding. N e bytes are read, and 4 more bytes
for nvfp4. N bytes (fp8) or N / 2 bytes (4 bits) are written, and N / v bytes of scales. A scale for each row takes 4
bytes. The padding of scales in tiles does not count.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any, Final

from flashinfer_bench.routines.case.spec import (
    BLACKWELL,
    HALF,
    PDL,
    Case,
    Check,
    Routine,
    Tensor,
    counted,
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

FLAGS: Final = (
    size("m", "rows"),
    size("k", "columns; a multiple of 32"),
    word("input_dtype", "dtype of the input", "bfloat16", HALF),
    switch("is_sf_swizzled_layout", "mxfp8: scales in tiles of 128 x 4, which is the default", default=True),
    switch("no_sf_swizzled_layout", "mxfp8: scales row by row"),
    whole("alignment", "mxfp8: pad columns to a multiple of this", 32),
    PDL,
    whole("batch_size", "number of matrices (nvfp4_batched_quantize)"),
    real("global_scale", "nvfp4: factor of the values before quantisation", 1.0),
    word("sf_layout", "nvfp4: order of the scales", "128x4", ("128x4", "8x4", "linear")),
    switch("do_shuffle", "nvfp4: rows in the order of the trtllm backend; not checked here"),
    whole("sf_vec_size", "nvfp4: elements that share a scale", 16),
    switch("per_token_activation", "nvfp4_quantize: a scale for each row, its largest value times --global_scale"),
)
MATCH: Final = {"float4_e2m1": 0.97, "float8_e4m3fn": 0.98}
"""Share of codes and scales that must agree. A value midway between two codes may be rounded up or down."""


def make_quantisation(args: Namespace) -> Case:
    """Make a case of any routine of the family. Scales are stored row by row, or in tiles of 128 or 8 rows by 4
    columns."""
    name, batch, layout, values, block = args.routine, 1, "128x4", "float4_e2m1", 32
    is_batched, refusal, swizzled = "batched" in name, "", args.is_sf_swizzled_layout and not args.no_sf_swizzled_layout
    split(args, "k", 32)
    if name == "mxfp8_quantize":
        values, layout = "float8_e4m3fn", "128x4" if swizzled else "linear"
        if args.alignment != 32:
            split(args, "k", args.alignment)
    elif name != "mxfp4_quantize":
        block = args.sf_vec_size
        require(block in (16, 32), f"--sf_vec_size {block}: 16 or 32")
        if block != 16:
            refusal = f"--sf_vec_size {block}: its kernel takes 16 where scales are not powers of two"
        elif args.do_shuffle:
            refusal = "--do_shuffle reorders rows, and the reference does not"
        if args.per_token_activation:
            require(block == 16, f"--per_token_activation: --sf_vec_size is {block}, and must be 16")
        if is_batched:
            batch = needed(args, "batch_size")
        else:
            layout = args.sf_layout
    high, wide = (1, 1) if layout == "linear" else (int(layout.partition("x")[0]), 4)
    scales = round_up(args.m, high) * round_up(args.k // block, wide)
    matrices, count = "batch_size " if is_batched else "", batch * args.m * args.k
    by_row = args.per_token_activation and name == "nvfp4_quantize"
    inputs: dict[str, Any] = {"x": f"{args.input_dtype}[{matrices}m k]"}
    if name.startswith("nvfp4"):
        scale = args.global_scale
        inputs["global_scale"] = Tensor("float32", None, scale) if by_row else floats([scale])
    return Case(
        op_type="lowbit",
        inputs=inputs,
        outputs={
            "values": f"{values}[{matrices}m k]",
            "block_scales": counted(f"uint8[{matrices}{scales}]", count / block),
            **({"row_scales": "float32[m]"} if by_row else {}),
        },
        reference="nvfp4_quantize_rows" if by_row else "",
        constants={"SWIZZLED": swizzled, "BLOCK": block, "LAYOUT": layout},
        flops=3 * count,
        check=Check(1e-2, 1e-3, MATCH[values]),
        refusals=dict.fromkeys(BACKENDS, refusal),
    )


BACKENDS: Final = dict.fromkeys(("cuda", "cute-dsl"), (*BLACKWELL, "12.0", "12.1"))
"""Backend → compute capabilities that the backend supports."""
_routine = partial(Routine, "quantization", FLAGS, make_quantisation, support=BACKENDS)
ROUTINES: Final = (
    _routine("mxfp8_quantize", "fp8 with powers of two"),
    _routine("mxfp4_quantize", "4-bit floats with powers of two"),
    _routine("nvfp4_quantize", "4-bit floats with e4m3 factors"),
    _routine("nvfp4_batched_quantize", "the same for a batch", support={"cuda": BACKENDS["cuda"]}),
)
