"""References of the norm family, in float32, rounded once at the end."""

import torch

EPS = 1e-6
OUT_DTYPE = "float8_e4m3fn"
BLOCK = 16
SWIZZLED = False
E2M1_LIMITS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
E2M1_MAX = 6.0
E4M3_MAX = 448.0
UNWRITTEN = 0xFF
LEAST_EXPONENT = -127


def normalise(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Divide each row by its root mean square and multiply by the weight, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + EPS) * weight.float()


def to_fp8(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Divide by the scale and round to fp8; what is too large becomes the largest value."""
    dtype = getattr(torch, OUT_DTYPE)
    limit = torch.finfo(dtype).max
    return (values / scale).clamp(-limit, limit).to(dtype)


def pack_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round to 4-bit floats, ties to even, and pack two to a byte, the first in the low half."""
    limits = torch.tensor(E2M1_LIMITS, dtype=torch.float32, device=values.device)
    size = values.abs().contiguous()
    above, from_on = torch.bucketize(size, limits, right=False), torch.bucketize(size, limits, right=True)
    code = torch.where(above % 2 == 0, above, from_on) | ((values.signbit()).long() << 3)
    pairs = code.to(torch.uint8).view(*code.shape[:-1], -1, 2)
    return (pairs[..., 0] | (pairs[..., 1] << 4)).view(torch.float4_e2m1fn_x2)


def swizzle(scales: torch.Tensor) -> torch.Tensor:
    """Lay scales [rows, columns] out in tiles of 128 rows by 4 columns, flat.

    Nobody writes the padding: it holds NaN, as outputs do before a call.
    """
    rows, columns = scales.shape
    shape = (-(-rows // 128) * 128, -(-columns // 4) * 4)
    padded = torch.full(shape, UNWRITTEN, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales.view(torch.uint8)
    tiles = padded.view(padded.shape[0] // 128, 4, 32, padded.shape[1] // 4, 4)
    return tiles.permute(0, 3, 2, 1, 4).reshape(-1).view(scales.dtype)


def quantise_fp4(values: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Give each block of a row a scale of its own, global_scale times what would bring it to 6, and round to 4 bits."""
    scaled = values * global_scale
    blocks = scaled.view(*scaled.shape[:-1], -1, BLOCK)
    largest = blocks.abs().amax(dim=-1)
    if BLOCK == 16:
        stored = (largest / E2M1_MAX).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
        factor = stored.float()
    else:
        exponent = torch.ceil(torch.log2(largest / E2M1_MAX)).clamp(LEAST_EXPONENT, 127)
        stored, factor = (exponent - LEAST_EXPONENT).to(torch.uint8), torch.exp2(exponent)
    quotient = torch.where(factor[..., None] > 0, blocks / factor[..., None], 0.0)
    packed = pack_e2m1(quotient.reshape(scaled.shape))
    flat = stored.reshape(-1, stored.shape[-1])
    return packed, swizzle(flat) if SWIZZLED else stored


def rmsnorm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMSNorm."""
    return normalise(x, weight).to(x.dtype)


def rmsnorm_quant(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """RMSNorm, divided by the scale, in fp8."""
    return to_fp8(normalise(x, weight), scale)


def fused_add_rmsnorm_quant(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add, then RMSNorm of the sum as it was before rounding, divided by the scale, in fp8; and the sum."""
    total = x.float() + residual.float()
    return to_fp8(normalise(total, weight), scale), total.to(x.dtype)


def rmsnorm_fp4quant(
    x: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """RMSNorm in 4-bit floats with a scale for each block of a row."""
    return quantise_fp4(normalise(x, weight), global_scale)


def add_rmsnorm_fp4quant(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, global_scale: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add, round, then RMSNorm of the sum in 4-bit floats; and the sum."""
    total = (x.float() + residual.float()).to(x.dtype)
    packed, scales = quantise_fp4(normalise(total, weight), global_scale)
    return packed, scales, total
