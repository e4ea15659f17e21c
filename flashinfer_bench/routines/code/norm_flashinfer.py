"""Calls of FlashInfer's norm kernels. They write into given outputs."""

import flashinfer

EPS = 1e-6
ENABLE_PDL = False
BLOCK = 16
IS_SF_SWIZZLED_LAYOUT = False
COMMON = {"eps": EPS, "enable_pdl": ENABLE_PDL}
FP4 = {**COMMON, "block_size": BLOCK, "is_sf_swizzled_layout": IS_SF_SWIZZLED_LAYOUT}


def rmsnorm(x, weight, out):
    """rmsnorm."""
    flashinfer.rmsnorm(x, weight, out=out, **COMMON)


def rmsnorm_quant(x, weight, scale, out):
    """rmsnorm_quant."""
    flashinfer.rmsnorm_quant(out, x, weight, scale, **COMMON)


def fused_add_rmsnorm_quant(x, residual, weight, scale, out, residual_out):
    """fused_add_rmsnorm_quant; it works in place, so the residual is copied first."""
    residual_out.copy_(residual)
    flashinfer.fused_add_rmsnorm_quant(out, x, residual_out, weight, scale, **COMMON)


def rmsnorm_fp4quant(x, weight, global_scale, out, block_scale):
    """rmsnorm_fp4quant of CuTe-DSL."""
    flashinfer.rmsnorm_fp4quant(x, weight, out, block_scale, global_scale=global_scale, **FP4)


def add_rmsnorm_fp4quant(x, residual, weight, global_scale, out, block_scale, residual_out):
    """add_rmsnorm_fp4quant of CuTe-DSL; it works in place, so the residual is copied first."""
    residual_out.copy_(residual)
    flashinfer.add_rmsnorm_fp4quant(x, residual_out, weight, out, block_scale, global_scale=global_scale, **FP4)
