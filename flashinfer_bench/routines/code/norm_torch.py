"""References of the norm family, in float32, rounded once at the end."""

import torch

from flashinfer_bench.routines.code.formats import (
    BLOCK,
    E2M1_MAX,
    from_tiles,
    pack_e2m1,
    scale_blocks,
    to_fp8,
    to_tiles,
)

EPS = 1e-6
OUT_DTYPE = "float8_e4m3fn"
IS_SF_SWIZZLED_LAYOUT = False
UNWRITTEN = 0xFF
PARTS = [2, None, None]
NUM_HEADS = 8
CHANNELS = [44, 42, 42]
PPF = 5
PPH = 12
PPW = 32
THETA = 1e4


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


def add_rows(packed, tiles, *rest):
    """Insert the scales in rows after their tiles."""
    *shape, width = packed.shape
    columns = width * 2 // BLOCK
    linear = from_tiles(tiles, packed.numel() // width, columns).view(*shape, columns)
    return packed, tiles, linear, *rest


def rmsnorm_fp4quant_both(x, weight, global_scale):
    """RMSNorm in 4-bit floats, with both layouts of scales."""
    return add_rows(*rmsnorm_fp4quant(x, weight, global_scale))


def add_rmsnorm_fp4quant_both(x, residual, weight, global_scale):
    """Add, round, then RMSNorm in 4-bit floats, with both layouts of scales; and the sum."""
    return add_rows(*add_rmsnorm_fp4quant(x, residual, weight, global_scale))


def fused_add_rmsnorm(x, residual, weight):
    """Add, then RMSNorm of the sum before rounding; and the sum."""
    total = x.float() + residual.float()
    return normalise(total, weight).to(x.dtype), total.to(x.dtype)


def gemma_rmsnorm(x, weight):
    """RMSNorm, times the weight plus 1."""
    return normalise(x, weight.float() + 1).to(x.dtype)


def gemma_fused_add_rmsnorm(x, residual, weight):
    """Add, then RMSNorm of the sum before rounding, times the weight plus 1; and the sum."""
    return fused_add_rmsnorm(x, residual, weight.float() + 1)


def standardise(x, *affine):
    """Subtract the mean of each row and divide by its deviation, then multiply and add."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], *affine, eps=EPS)


def layernorm_quant(x, gamma, beta, scale):
    """LayerNorm, divided by the scale, in fp8."""
    return to_fp8(standardise(x.float(), gamma, beta) / scale, getattr(torch, OUT_DTYPE))


def fused_rmsnorm_silu(x, weight):
    """RMSNorm, then SiLU."""
    return torch.nn.functional.silu(normalise(x, weight)).to(x.dtype)


def fused_dit_layernorm(x, residual, temb, table, *affine):
    """Add x, or x times a gate, to the residual; then LayerNorm of the sum before rounding, with scale and shift.

    PARTS has the index of gate, scale and shift in the table and the time embedding; None for a part that is absent.
    """
    gate, scale, shift = (None if at is None else temb[:, :, at].float() + table[:, at] for at in PARTS)
    total = residual.float() + (x.float() if gate is None else x.float() * gate)
    norm = standardise(total, *affine)
    return total.to(x.dtype), (norm if scale is None else norm * (1 + scale) + shift).to(x.dtype)


def turns(device):
    """Return the turn of each pair of channels of each token, as complex numbers [tokens, pairs].

    The first channels turn with the frame, the next with the row, and the last with the column.
    """
    token = torch.arange(PPF * PPH * PPW, device=device)
    places = (token // (PPH * PPW), token // PPW % PPH, token % PPW)
    steps = [torch.arange(0, width, 2, dtype=torch.float64, device=device) / width for width in CHANNELS]
    angle = torch.cat([place[:, None] * THETA**-step for place, step in zip(places, steps, strict=True)], dim=1)
    return torch.polar(torch.ones_like(angle), angle)


def fused_qk_rmsnorm_rope(qkv, q_weight, k_weight):
    """RMSNorm of the queries and keys of a token over all heads, then RoPE of neighbouring channels; and the values."""
    q, k, v = qkv.chunk(3, dim=-1)
    turn = turns(qkv.device).to(torch.complex64)[:, None]
    outputs = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        pairs = torch.view_as_complex(normalise(x, weight).unflatten(-1, (NUM_HEADS, -1, 2)))
        outputs.append(torch.view_as_real(pairs * turn).flatten(-2).to(x.dtype))
    return *outputs, v.unflatten(-1, (NUM_HEADS, -1)).contiguous()
