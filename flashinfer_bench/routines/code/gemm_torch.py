"""References of the GEMM family: dequantise, multiply in float32, round once at the end."""

from itertools import pairwise

import torch

from flashinfer_bench.routines.code.formats import by_blocks, by_columns, by_tiles, from_tiles

OUT_DTYPE = "bfloat16"
TILE_SIZE = 128
SCALE_MAJOR_MODE = "MN"


def ordered(scale):
    """Give factors with those of a row side by side."""
    return scale if SCALE_MAJOR_MODE == "K" else scale.T


def gemm_fp8_nt_groupwise(a, b, a_scale, b_scale):
    """a [m, k] times the transpose of b [n, k]."""
    rows = by_columns(a, ordered(a_scale), TILE_SIZE)
    return (rows @ by_blocks(b, ordered(b_scale), TILE_SIZE).T).to(getattr(torch, OUT_DTYPE))


def group_gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, m_indptr):
    """The same for each group of rows, with weights of its own."""
    rows, bounds = by_columns(a, ordered(a_scale), TILE_SIZE), pairwise(m_indptr.tolist())
    weights = (by_blocks(*group, TILE_SIZE) for group in zip(b, map(ordered, b_scale), strict=True))
    parts = [rows[start:end] @ group.T for group, (start, end) in zip(weights, bounds, strict=True)]
    return torch.cat(parts).to(getattr(torch, OUT_DTYPE))


def bmm_fp8(a, b, a_scale, b_scale):
    """a [batch, m, k] times the transpose of b [batch, n, k], one factor each."""
    dtype, scale = getattr(torch, OUT_DTYPE), a_scale * b_scale
    return torch.stack([(x.float() @ y.float().T * scale).to(dtype) for x, y in zip(a, b, strict=True)])


def mm_fp4(a, b, a_scale, b_scale, alpha):
    """a [m, k] times the transpose of b [n, k], both 4-bit floats with a scale for each block, times alpha."""
    product = by_tiles(a, a_scale) @ by_tiles(b, b_scale).T
    return (product * alpha).to(getattr(torch, OUT_DTYPE))


def mm_bf16(a, b, *bias):
    """a [m, k] times the transpose of b [n, k], plus the bias [n] if there is one."""
    product = torch.nn.functional.linear(a.float(), b.float(), *(one.float() for one in bias))
    return product.to(getattr(torch, OUT_DTYPE))


def bmm_bf16(a, b):
    """a [batch, m, k] times the transpose of b [batch, n, k]."""
    return torch.stack([mm_bf16(x, y) for x, y in zip(a, b, strict=True)])


def mm_fp8(a, b, alpha):
    """a [m, k] times the transpose of b [n, k], times alpha."""
    return mm_bf16(a, b.float() * alpha)


def by_powers(values, scale):
    """Scale fp8 rows: a power of two for each 32 elements of a row, in tiles; float32."""
    rows, columns = values.shape
    return by_columns(values, from_tiles(scale, rows, columns // 32).float(), 32)


def mm_mxfp8(a, b, a_scale, b_scale):
    """a [m, k] times the transpose of b [n, k], both fp8 with a power of two for each block."""
    return mm_bf16(by_powers(a, a_scale), by_powers(b, b_scale))


def bmm_mxfp8(a, b, a_scale, b_scale):
    """The same for a batch. The tiles of scales take the rows of all its matrices as one matrix."""
    return bmm_bf16(*(by_powers(x.flatten(0, 1), y).view(x.shape) for x, y in ((a, a_scale), (b, b_scale))))


def mm_bf16_fp4(a, b, b_scale, alpha):
    """a [m, k] times the transpose of b [n, k]: bfloat16 times 4-bit floats with a scale for each block, and alpha."""
    return mm_bf16(a, by_tiles(b, b_scale, alpha))
