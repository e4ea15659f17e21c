"""References of the quantisation family."""

import torch

from flashinfer_bench.routines.code.formats import BLOCK, E2M1_MAX, E4M3_MAX, pack_e2m1, to_fp8, to_tiles

LAYOUT = "128x4"
EXPONENT_BIAS = 127


def lay_out(scales):
    """Lay scales [rows, columns] out flat: in tiles, padded with zeros, or as they are."""
    return scales.reshape(-1) if LAYOUT == "linear" else to_tiles(scales, int(LAYOUT.partition("x")[0]), 0)


def divide_by_powers(x, limit):
    """Divide each block of 32 by the smallest power of two that brings it within the limit; biased exponents."""
    blocks = x.float().view(x.shape[0], -1, 32)
    largest = blocks.abs().amax(dim=-1)
    mantissa, exponent = torch.frexp(largest / limit)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    stored = torch.where(largest > 0, exponent + EXPONENT_BIAS, 0).clamp(0, 254)
    factor = torch.exp2((stored - EXPONENT_BIAS).float())
    return (blocks / factor[..., None]).view(x.shape), lay_out(stored.to(torch.uint8))


def mxfp8_quantize(x):
    """fp8 with a power of two for each block of 32."""
    values, scales = divide_by_powers(x, E4M3_MAX)
    return to_fp8(values, torch.float8_e4m3fn), scales


def mxfp4_quantize(x):
    """4-bit floats with a power of two for each block of 32."""
    values, scales = divide_by_powers(x, E2M1_MAX)
    return pack_e2m1(values), scales


def nvfp4_quantize(x, global_scale):
    """4-bit floats: values are multiplied by the global scale, and each block has an e4m3 factor."""
    blocks = x.float().view(x.shape[0], -1, BLOCK)
    stored = (blocks.abs().amax(dim=-1) / E2M1_MAX * global_scale).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    factor = stored.float() / global_scale
    quotient = torch.where(factor[..., None] > 0, blocks / factor[..., None], 0.0)
    return pack_e2m1(quotient.view(x.shape)), lay_out(stored.view(torch.uint8))


def nvfp4_batched_quantize(x, global_scale):
    """The same for each matrix of a batch, with a layout of its own each."""
    packed, scales = zip(*(nvfp4_quantize(matrix, global_scale) for matrix in x), strict=True)
    values = torch.stack([matrix.view(torch.uint8) for matrix in packed])
    return values.view(torch.float4_e2m1fn_x2), torch.stack(scales)
