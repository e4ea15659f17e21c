"""NaN as honest code makes it: constants, arithmetic, functions and conversions of torch's."""

from __future__ import annotations

from collections.abc import Iterator

import torch

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
NARROW = [torch.float8_e4m3fn, torch.float8_e5m2]
COUNT = 67
"""Elements of each: whole vectors are converted by other code than what is left."""


def make_nans(device: str = "cpu") -> Iterator[torch.Tensor]:
    """Give tensors of NaN, as they come of operations in each dtype and of conversions between any two."""
    for source in FLOATS:
        for value in _of(source, device):
            for between in (*FLOATS, *NARROW):
                for dtype in FLOATS:
                    made = value.to(between).to(dtype)
                    yield from (made, -made, made.abs(), made * 2, made.clone())


def _of(dtype: torch.dtype, device: str) -> Iterator[torch.Tensor]:
    nan, zero, one = (torch.full((COUNT,), value, dtype=dtype, device=device) for value in (torch.nan, 0.0, 1.0))
    infinite = one / zero
    yield from (nan, -nan, nan.abs(), zero / zero, -(zero / zero), infinite - infinite, zero * infinite)
    yield from ((-one).sqrt(), (-one).log(), nan.exp(), nan + one, nan * nan, infinite.sin(), torch.relu(nan))
    yield torch.softmax(-infinite, 0)
    yield nan.sum().expand(COUNT).contiguous()
