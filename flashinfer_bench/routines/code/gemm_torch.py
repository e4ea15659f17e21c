"""References of the GEMM family: dequantise, multiply in float32, round once at the end."""

from itertools import pairwise

import torch

from flashinfer_bench.routines.code.formats import by_tiles

OUT_DTYPE = "bfloat16"
TILE_SIZE = 128
SCALE_MAJOR_MODE = "MN"


def scale_rows(values, scale):
    """Scale fp8 rows [rows, k]: one factor for TILE_SIZE elements; the factors come k-major or not."""
    factors = scale if SCALE_MAJOR_MODE == "K" else scale.T
    return values.float() * factors.repeat_interleave(TILE_SIZE, dim=1)[:, : values.shape[1]]


def scale_tiles(values, scale):
    """Scale fp8 weights [n, k]: one factor for TILE_SIZE by TILE_SIZE elements."""
    factors = (scale if SCALE_MAJOR_MODE == "K" else scale.T).repeat_interleave(TILE_SIZE, dim=0)[: values.shape[0]]
    return values.float() * factors.repeat_interleave(TILE_SIZE, dim=1)[:, : values.shape[1]]


def gemm_fp8_nt_groupwise(a, b, a_scale, b_scale):
    """a [m, k] times the transpose of b [n, k]."""
    return (scale_rows(a, a_scale) @ scale_tiles(b, b_scale).T).to(getattr(torch, OUT_DTYPE))


def group_gemm_fp8_nt_groupwise(a, b, a_scale, b_scale, m_indptr):
    """The same for each group of rows, with weights of its own."""
    rows, bounds = scale_rows(a, a_scale), pairwise(m_indptr.tolist())
    parts = [rows[start:end] @ scale_tiles(b[group], b_scale[group]).T for group, (start, end) in enumerate(bounds)]
    return torch.cat(parts).to(getattr(torch, OUT_DTYPE))


def bmm_fp8(a, b, a_scale, b_scale):
    """a [batch, m, k] times the transpose of b [batch, n, k], one factor each."""
    out = torch.empty(a.shape[0], a.shape[1], b.shape[1], dtype=getattr(torch, OUT_DTYPE), device=a.device)
    for index in range(a.shape[0]):
        out[index] = ((a[index].float() @ b[index].float().T) * (a_scale * b_scale)).to(out.dtype)
    return out


def mm_fp4(a, b, a_scale, b_scale, alpha):
    """a [m, k] times the transpose of b [n, k], both 4-bit floats with a scale for each block, times alpha."""
    product = by_tiles(a, a_scale) @ by_tiles(b, b_scale).T
    return (product * alpha).to(getattr(torch, OUT_DTYPE))
