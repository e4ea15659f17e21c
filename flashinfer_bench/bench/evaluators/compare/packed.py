"""Packed 4-bit floats: torch stores two to a byte and can hardly operate on them, so the judge reads the bytes.

The low half of a byte is the first of its two elements. A definition's `float4_e2m1` shape counts elements, so its last
dimension is halved in storage; `float4_e2m1fn_x2` names the storage type itself, so its shape counts bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each 4-bit code: sign, two bits of exponent, one of mantissa."""
FLOAT4_PACKED: Final[torch.dtype | None] = getattr(torch, "float4_e2m1fn_x2", None)
"""The torch dtype of a byte with two elements; None in a torch that has none."""


def is_packed(dtype: torch.dtype) -> bool:
    """Tell whether one element of this dtype is a byte with two values."""
    return FLOAT4_PACKED is not None and dtype == FLOAT4_PACKED


def storage_shape(shape: Sequence[int], dtype_name: str) -> tuple[int, ...]:
    """Give the shape of the tensor that stores a definition's shape: the same, unless elements are packed in bytes."""
    if dtype_name != "float4_e2m1":
        return tuple(shape)
    if not shape or shape[-1] % 2:
        raise ValueError(f"float4_e2m1 is stored two to a byte; the last dimension of {list(shape)} is not even")
    return (*shape[:-1], shape[-1] // 2)


def logical_shape(shape: Sequence[int], dtype_name: str) -> tuple[int, ...]:
    """Give the shape that a definition means for the shape of the tensor that stores it."""
    return (*shape[:-1], shape[-1] * 2) if dtype_name == "float4_e2m1" and shape else tuple(shape)


def unpack(flat: torch.Tensor) -> torch.Tensor:
    """Give the values of a flat packed tensor in float32, twice as many."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float32, device=flat.device)
    raw = flat.view(torch.uint8).to(torch.int32)
    return table[torch.stack((raw & 0xF, raw >> 4), dim=-1)].reshape(-1)
