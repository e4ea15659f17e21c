"""References of the quantisation family."""

import torch

BLOCK = 32
LAYOUT = "128x4"
E2M1_LIMITS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
E2M1_MAX = 6.0
E4M3_MAX = 448.0
EXPONENT_BIAS = 127
TILE_ROWS = {"128x4": 128, "8x4": 8}


def lay_out(scales: torch.Tensor) -> torch.Tensor:
    """Lay scales [rows, columns] out flat: in tiles, padded with zeros, or as they are."""
    if LAYOUT == "linear":
        return scales.reshape(-1)
    high = TILE_ROWS[LAYOUT]
    rows, columns = scales.shape
    shape = (-(-rows // high) * high, -(-columns // 4) * 4)
    padded = torch.zeros(shape, dtype=torch.uint8, device=scales.device)
    padded[:rows, :columns] = scales.view(torch.uint8)
    if high == 8:
        tiles = padded.view(shape[0] // 8, 8, shape[1] // 4, 4).permute(0, 2, 1, 3)
    else:
        tiles = padded.view(shape[0] // 128, 4, 32, shape[1] // 4, 4).permute(0, 3, 2, 1, 4)
    return tiles.reshape(-1)


def exponents(largest: torch.Tensor, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Give the smallest power of two that brings a block within the limit: its biased exponent, and itself."""
    mantissa, exponent = torch.frexp(largest / limit)
    exponent = torch.where(mantissa == 0.5, exponent - 1, exponent)
    stored = torch.where(largest > 0, exponent + EXPONENT_BIAS, 0).clamp(0, 254)
    return stored.to(torch.uint8), torch.exp2((stored - EXPONENT_BIAS).float())


def pack_e2m1(values: torch.Tensor) -> torch.Tensor:
    """Round to 4-bit floats, ties to even, and pack two to a byte, the first in the low half."""
    limits = torch.tensor(E2M1_LIMITS, dtype=torch.float32, device=values.device)
    size = values.abs().contiguous()
    above, from_on = torch.bucketize(size, limits, right=False), torch.bucketize(size, limits, right=True)
    code = torch.where(above % 2 == 0, above, from_on) | ((values.signbit()).long() << 3)
    pairs = code.to(torch.uint8).view(*code.shape[:-1], -1, 2)
    return (pairs[..., 0] | (pairs[..., 1] << 4)).view(torch.float4_e2m1fn_x2)


def mxfp8_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """fp8 with a power of two for each block of 32."""
    blocks = x.float().view(x.shape[0], -1, 32)
    stored, factor = exponents(blocks.abs().amax(dim=-1), E4M3_MAX)
    values = (blocks / factor[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    return values.view(x.shape), lay_out(stored)


def mxfp4_quantize(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit floats with a power of two for each block of 32."""
    blocks = x.float().view(x.shape[0], -1, 32)
    stored, factor = exponents(blocks.abs().amax(dim=-1), E2M1_MAX)
    return pack_e2m1((blocks / factor[..., None]).view(x.shape)), lay_out(stored)


def quantise_rows(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """nvfp4 of [rows, k]: multiply by the global scale, an e4m3 factor for each block; factors [rows, blocks]."""
    blocks = x.float().view(x.shape[0], -1, BLOCK)
    stored = (blocks.abs().amax(dim=-1) / E2M1_MAX * global_scale).clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
    factor = stored.float() / global_scale
    quotient = torch.where(factor[..., None] > 0, blocks / factor[..., None], 0.0)
    return pack_e2m1(quotient.view(x.shape)), stored.view(torch.uint8)


def nvfp4_quantize(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit floats with an e4m3 factor for each block."""
    packed, stored = quantise_rows(x, global_scale)
    return packed, lay_out(stored)


def nvfp4_batched_quantize(x: torch.Tensor, global_scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for each matrix of a batch, with a layout of its own each."""
    done = [quantise_rows(matrix, global_scale) for matrix in x]
    packed = torch.stack([values.view(torch.uint8) for values, _ in done]).view(torch.float4_e2m1fn_x2)
    return packed, torch.stack([lay_out(stored) for _, stored in done])
