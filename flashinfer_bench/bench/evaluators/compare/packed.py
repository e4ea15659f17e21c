"""Packed 4-bit floats: torch stores two in a byte and has few operations for them, so the judge reads the bytes.

The low half of a byte is the first of its two elements. The shape of a definition's `float4_e2m1` counts elements, so
the last dimension of the stored tensor is half as long. `float4_e2m1fn_x2` is the stored type itself, so its shape
counts bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each 4-bit code. A code is one bit of sign, two of exponent, one of mantissa."""
FLOAT4_PACKED: Final[torch.dtype | None] = getattr(torch, "float4_e2m1fn_x2", None)
"""The torch dtype of a byte with two elements; None if torch has no such dtype."""


def is_packed(dtype: torch.dtype) -> bool:
    """Return whether one element of this dtype is a byte with two values."""
    return FLOAT4_PACKED is not None and dtype == FLOAT4_PACKED


def storage_shape(shape: Sequence[int], dtype_name: str) -> tuple[int, ...]:
    """Return the shape of the stored tensor for a definition's shape. The two shapes differ only if elements are
    packed."""
    if dtype_name != "float4_e2m1":
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise ValueError(f"float4_e2m1 is stored two to a byte; the last dimension of {list(shape)} is not even")
    return (*shape[:-1], shape[-1] // 2)


def logical_shape(shape: Sequence[int], dtype_name: str) -> tuple[int, ...]:
    """Return the definition's shape for the shape of the stored tensor."""
    return (*shape[:-1], shape[-1] * 2) if dtype_name == "float4_e2m1" and shape else tuple(shape)


def unpack(flat: torch.Tensor) -> torch.Tensor:
    """Return the values of a flat packed tensor in float32, two for each byte."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32).to(flat.device, non_blocking=True)
    raw = flat.view(torch.uint8).to(torch.int32)
    return table[torch.stack((raw & 0xF, raw >> 4), dim=-1)].reshape(-1)
