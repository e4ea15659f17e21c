"""Calls of FlashInfer's norm kernels. They write into given outputs."""

import flashinfer
from torch import Tensor

EPS = 1e-6
ENABLE_PDL = False
BLOCK = 16
SWIZZLED = False


def rmsnorm(x: Tensor, weight: Tensor, out: Tensor) -> None:
    """rmsnorm."""
    flashinfer.rmsnorm(x, weight, eps=EPS, out=out, enable_pdl=ENABLE_PDL)


def rmsnorm_quant(x: Tensor, weight: Tensor, scale: Tensor, out: Tensor) -> None:
    """rmsnorm_quant."""
    flashinfer.rmsnorm_quant(out, x, weight, scale, eps=EPS, enable_pdl=ENABLE_PDL)


def fused_add_rmsnorm_quant(
    x: Tensor, residual: Tensor, weight: Tensor, scale: Tensor, out: Tensor, residual_out: Tensor
) -> None:
    """fused_add_rmsnorm_quant; it works in place, so the residual is copied first."""
    residual_out.copy_(residual)
    flashinfer.fused_add_rmsnorm_quant(out, x, residual_out, weight, scale, eps=EPS, enable_pdl=ENABLE_PDL)


def rmsnorm_fp4quant(x: Tensor, weight: Tensor, global_scale: Tensor, out: Tensor, block_scale: Tensor) -> None:
    """rmsnorm_fp4quant of CuTe-DSL."""
    flashinfer.rmsnorm_fp4quant(
        x,
        weight,
        out,
        block_scale,
        global_scale=global_scale,
        eps=EPS,
        block_size=BLOCK,
        is_sf_swizzled_layout=SWIZZLED,
        enable_pdl=ENABLE_PDL,
    )


def add_rmsnorm_fp4quant(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    global_scale: Tensor,
    out: Tensor,
    block_scale: Tensor,
    residual_out: Tensor,
) -> None:
    """add_rmsnorm_fp4quant of CuTe-DSL; it works in place, so the residual is copied first."""
    residual_out.copy_(residual)
    flashinfer.add_rmsnorm_fp4quant(
        x,
        residual_out,
        weight,
        out,
        block_scale,
        global_scale=global_scale,
        eps=EPS,
        block_size=BLOCK,
        is_sf_swizzled_layout=SWIZZLED,
        enable_pdl=ENABLE_PDL,
    )
