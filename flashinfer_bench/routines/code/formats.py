"""Formats of low-bit floats: codes, scales of blocks, and tiles of scales. Several families share this module."""

import torch

BLOCK = 16
E2M1_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
E2M1_LIMITS = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
E2M1_MAX = 6.0
E4M3_MAX = 448.0
EXPONENT_BIAS = 127


def pack_e2m1(values):
    """Round to 4-bit floats, ties to even, and pack two to a byte, the first in the low half."""
    limits = torch.tensor(E2M1_LIMITS, dtype=torch.float32, device=values.device)
    size = values.abs().contiguous()
    above, from_on = torch.bucketize(size, limits, right=False), torch.bucketize(size, limits, right=True)
    code = torch.where(above % 2 == 0, above, from_on) | (values.signbit().long() << 3)
    pairs = code.to(torch.uint8).unflatten(-1, (-1, 2))
    return (pairs[..., 0] | (pairs[..., 1] << 4)).view(torch.float4_e2m1fn_x2)


def scale_blocks(values, block, limit, is_power=False):
    """Divide each block of a row so that its largest value becomes the limit; give the quotients and the scales.

    A scale is an e4m3 number, or the smallest power of two that is large enough, as a biased exponent.
    """
    blocks = values.unflatten(-1, (-1, block))
    ratio = blocks.abs().amax(dim=-1) / limit
    if is_power:
        mantissa, exponent = torch.frexp(ratio)
        biased = torch.where(mantissa == 0.5, exponent - 1, exponent) + EXPONENT_BIAS
        stored = torch.where(ratio > 0, biased, 0).clamp(0, 254).to(torch.uint8)
        factor = torch.exp2(stored.float() - EXPONENT_BIAS)
    else:
        stored = ratio.clamp(max=E4M3_MAX).to(torch.float8_e4m3fn)
        factor = stored.float()
    return torch.where(factor[..., None] > 0, blocks / factor[..., None], 0.0).flatten(-2), stored


def by_rows(packed, scale, factor=1):
    """Scale 4-bit floats, the low half of a byte first: a factor for each block of a row, and one for all; float32."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=packed.device)
    raw = packed.view(torch.uint8).int()
    values = table[torch.stack((raw & 0xF, raw >> 4), dim=-1)].flatten(-2)
    return values * scale.float().repeat_interleave(BLOCK, dim=-1) * factor


def by_tiles(packed, scale, factor=1):
    """Scale 4-bit floats: one factor for each block of a row, the scales in tiles, and one for all; float32."""
    return by_rows(packed, from_tiles(scale, packed.shape[0], packed.shape[1] * 2 // BLOCK), factor)


def by_columns(values, scale, tile=128):
    """Scale fp8 rows: one factor for `tile` elements of a row; float32."""
    return values.float() * scale.repeat_interleave(tile, dim=-1)[..., : values.shape[-1]]


def by_blocks(weights, scale, tile=128):
    """Scale fp8 weights: one factor for `tile` by `tile` elements; float32."""
    return by_columns(weights, scale.repeat_interleave(tile, dim=0)[: weights.shape[0]], tile)


def to_fp8(values, dtype):
    """Round to fp8; what is too large becomes the largest value."""
    limit = torch.finfo(dtype).max
    return values.clamp(-limit, limit).to(dtype)


def to_tiles(scales, high, padding):
    """Lay scales [rows, columns] out in tiles of `high` rows by 4 columns, flat bytes, with padding."""
    rows, columns = scales.shape
    below, beside = -rows % high, -columns % 4
    padded = torch.nn.functional.pad(scales.view(torch.uint8), (0, beside, 0, below), value=padding)
    low = min(32, high)
    return padded.view(-1, high // low, low, (columns + beside) // 4, 4).permute(0, 3, 2, 1, 4).reshape(-1)


def from_tiles(scale, rows, columns):
    """Bring scales out of tiles of 128 rows by 4 columns; the padding is left out."""
    tall, wide = -(-rows // 128), -(-columns // 4)
    ordered = scale.reshape(-1).view(torch.uint8).view(tall, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return ordered.reshape(tall * 128, wide * 4)[:rows, :columns].contiguous().view(scale.dtype)
