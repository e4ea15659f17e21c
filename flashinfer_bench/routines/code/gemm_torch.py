"""References of the GEMM family: dequantise, multiply in float32, round once at the end."""

from itertools import pairwise

import torch

from flashinfer_bench.routines.code.formats import by_blocks, by_columns, by_tiles

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
