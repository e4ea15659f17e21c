"""References of the quantisation family."""

import torch

from flashinfer_bench.routines.code.formats import (
    BLOCK,
    E2M1_MAX,
    E4M3_MAX,
    pack_e2m1,
    scale_blocks,
    to_fp8,
    to_tiles,
)

LAYOUT = "128x4"


def lay_out(scales):
    """Lay scales [rows, columns] out as flat bytes: in tiles, padded with zeros, or as they are."""
    if LAYOUT == "linear":
        return scales.view(torch.uint8).reshape(-1)
    return to_tiles(scales, int(LAYOUT.partition("x")[0]), 0)


def mxfp8_quantize(x):
    """fp8 with a power of two for each block of 32."""
    values, scales = scale_blocks(x.float(), 32, E4M3_MAX, is_power=True)
    return to_fp8(values, torch.float8_e4m3fn), lay_out(scales)


def mxfp4_quantize(x):
    """4-bit floats with a power of two for each block of 32."""
    values, scales = scale_blocks(x.float(), 32, E2M1_MAX, is_power=True)
    return pack_e2m1(values), lay_out(scales)


def nvfp4_quantize(x, global_scale):
    """4-bit floats: values are multiplied by the global scale, and each block has an e4m3 factor."""
    values, scales = scale_blocks(x.float() * global_scale, BLOCK, E2M1_MAX)
    return pack_e2m1(values), lay_out(scales)


def nvfp4_batched_quantize(x, global_scale):
    """The same for each matrix of a batch, with a layout of its own each."""
    done = zip(*(nvfp4_quantize(matrix, global_scale) for matrix in x), strict=True)
    packed, scales = (torch.stack([matrix.view(torch.uint8) for matrix in part]) for part in done)
    return packed.view(torch.float4_e2m1fn_x2), scales


def nvfp4_quantize_rows(x, global_scale):
    """The same with a scale for each row: its largest value times the global scale. Values are divided by it."""
    scales = x.float().abs().amax(dim=-1) * global_scale
    return *nvfp4_quantize(x, 1 / scales.clamp(min=1e-30)[:, None]), scales
