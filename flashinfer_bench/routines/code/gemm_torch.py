"""References of the GEMM family: dequantise, multiply in float32, round once at the end."""

from itertools import pairwise

import torch

OUT_DTYPE = "bfloat16"
TILE = 128
K_MAJOR = False
BLOCK = 16
E2M1_VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


def by_rows(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale fp8 rows [rows, k]: one factor for TILE elements; the factors come k-major or not."""
    factors = scale if K_MAJOR else scale.T
    return values.float() * factors.repeat_interleave(TILE, dim=1)[:, : values.shape[1]]


def by_tiles(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale fp8 weights [n, k]: one factor for TILE by TILE elements."""
    factors = (scale if K_MAJOR else scale.T).repeat_interleave(TILE, dim=0)[: values.shape[0]]
    return values.float() * factors.repeat_interleave(TILE, dim=1)[:, : values.shape[1]]


def gemm_fp8_nt_groupwise(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor
) -> torch.Tensor:
    """a [m, k] times the transpose of b [n, k]."""
    return (by_rows(a, a_scale) @ by_tiles(b, b_scale).T).to(getattr(torch, OUT_DTYPE))


def group_gemm_fp8_nt_groupwise(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, m_indptr: torch.Tensor
) -> torch.Tensor:
    """The same for each group of rows, with weights of its own."""
    rows, bounds = by_rows(a, a_scale), m_indptr.tolist()
    parts = [
        rows[start:end] @ by_tiles(b[group], b_scale[group]).T for group, (start, end) in enumerate(pairwise(bounds))
    ]
    return torch.cat(parts).to(getattr(torch, OUT_DTYPE))


def bmm_fp8(a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor) -> torch.Tensor:
    """a [batch, m, k] times the transpose of b [batch, n, k], one factor each."""
    out = torch.empty(a.shape[0], a.shape[1], b.shape[1], dtype=getattr(torch, OUT_DTYPE), device=a.device)
    for index in range(a.shape[0]):
        out[index] = ((a[index].float() @ b[index].float().T) * (a_scale * b_scale)).to(out.dtype)
    return out


def unswizzle(scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Bring scales out of tiles of 128 rows by 4 columns; the padding is left out."""
    tall, wide = -(-rows // 128), -(-columns // 4)
    ordered = scale.reshape(-1).view(torch.uint8).view(tall, wide, 32, 4, 4).permute(0, 3, 2, 1, 4)
    return ordered.reshape(tall * 128, wide * 4)[:rows, :columns].contiguous().view(scale.dtype)


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """Give the values of 4-bit floats, the low half of a byte first, in float32."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=packed.device)
    raw = packed.view(torch.uint8).to(torch.int32)
    return table[torch.stack((raw & 0xF, raw >> 4), dim=-1)].flatten(-2)


def dequantise_fp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Scale each block of a row of 4-bit floats."""
    values = unpack(packed)
    factors = unswizzle(scale, values.shape[0], values.shape[1] // BLOCK).float()
    return values * factors.repeat_interleave(BLOCK, dim=1)


def mm_fp4(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor, b_scale: torch.Tensor, alpha: torch.Tensor
) -> torch.Tensor:
    """a [m, k] times the transpose of b [n, k], both 4-bit floats with a scale for each block, times alpha."""
    product = dequantise_fp4(a, a_scale) @ dequantise_fp4(b, b_scale).T
    return (product * alpha).to(getattr(torch, OUT_DTYPE))
