"""References of the norm family, in float32, rounded once at the end."""

import torch

from flashinfer_bench.routines.code.formats import BLOCK, E2M1_MAX, pack_e2m1, scale_blocks, to_fp8, to_tiles

EPS = 1e-6
OUT_DTYPE = "float8_e4m3fn"
IS_SF_SWIZZLED_LAYOUT = False
UNWRITTEN = 0xFF


def normalise(x, weight):
    """Divide each row by its root mean square and multiply by the weight, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + EPS) * weight.float()


def quantise_fp4(values, global_scale):
    """Give each block of a row a scale of its own, global_scale times what would bring it to 6, and round to 4 bits.

    In tiles of scales nobody writes the padding: it holds NaN, as outputs do before a call.
    """
    quotients, scales = scale_blocks(values * global_scale, BLOCK, E2M1_MAX, is_power=BLOCK == 32)
    if IS_SF_SWIZZLED_LAYOUT:
        scales = to_tiles(scales.flatten(0, -2), 128, UNWRITTEN).view(scales.dtype)
    return pack_e2m1(quotients), scales


def rmsnorm(x, weight):
    """RMSNorm."""
    return normalise(x, weight).to(x.dtype)


def rmsnorm_quant(x, weight, scale):
    """RMSNorm, divided by the scale, in fp8."""
    return to_fp8(normalise(x, weight) / scale, getattr(torch, OUT_DTYPE))


def fused_add_rmsnorm_quant(x, residual, weight, scale):
    """Add, then RMSNorm of the sum as it was before rounding, divided by the scale, in fp8; and the sum."""
    total = x.float() + residual.float()
    return rmsnorm_quant(total, weight, scale), total.to(x.dtype)


def rmsnorm_fp4quant(x, weight, global_scale):
    """RMSNorm in 4-bit floats with a scale for each block of a row."""
    return quantise_fp4(normalise(x, weight), global_scale)


def add_rmsnorm_fp4quant(x, residual, weight, global_scale):
    """Add, round, then RMSNorm of the sum in 4-bit floats; and the sum."""
    total = (x.float() + residual.float()).to(x.dtype)
    return *rmsnorm_fp4quant(total, weight, global_scale), total
