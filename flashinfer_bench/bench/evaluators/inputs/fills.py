"""The content of outputs before a call. A kernel that writes every element overwrites all of this content.

Floats of 16 bits and more are filled with a quiet NaN, with a payload that no conversion and no arithmetic makes. The
payload of a canonical NaN is all zeros or all ones, and NaNs from shorter floats end in zeros. A float of 8 bits has
only one or two NaN patterns. Outputs of 8 bits are filled with NaN before some calls, and with a finite number before
others. So an unwritten element is wrong in some of the calls.
"""

from __future__ import annotations

from typing import Final

import torch

WORD: Final = 8
"""Bytes of the word that is repeated to fill an output."""
NANS: Final = {
    torch.float64: (torch.int64, 0x7FFDB3C96E5AD72D),
    torch.float32: (torch.int32, 0x7FE5B3C9),
    torch.float16: (torch.int16, 0x7F5B),
    torch.bfloat16: (torch.int16, 0x7FD3),
}
"""Float dtype → the dtype of its bits, and the bits of its fill."""
NAN_BYTE: Final = 0xFF
"""A byte that is NaN in every float of 8 bits."""
OTHER_BYTE: Final = 0xA5
CHECKED_TOGETHER: Final = 1 << 26
"""Maximum elements that are checked together. This bounds the extra memory."""


def fill_words(dtype: torch.dtype) -> tuple[int, ...]:
    """Return the words that an output of a dtype may be filled with, as unsigned numbers; the usual word is first."""
    if dtype in NANS:
        bits, value = NANS[dtype]
        parts = [value.to_bytes(bits.itemsize, "little")]
    else:
        parts = [bytes([byte]) for byte in ((OTHER_BYTE, NAN_BYTE) if dtype.is_floating_point else (OTHER_BYTE,))]
    return tuple(int.from_bytes(part * (WORD // len(part)), "little") for part in parts)


def fill(into: torch.Tensor, word: int) -> None:
    """Fill bytes [..., bytes] with a word that is repeated along the last dimension."""
    size = into.shape[-1]
    pattern = torch.tensor([*word.to_bytes(WORD, "little")], dtype=torch.uint8, device=into.device)
    into.copy_(pattern.repeat(-(-size // WORD))[:size])


def count_unwritten(expected: torch.Tensor, got: torch.Tensor) -> int:
    """Count the elements whose right value is NaN, and that still hold the fill from before the call."""
    if expected.dtype not in NANS or got.dtype != expected.dtype:
        return 0
    bits, value = NANS[expected.dtype]
    count = 0
    sides = [torch.split(side.contiguous().view(-1), CHECKED_TOGETHER) for side in (expected, got)]
    for wanted, result in zip(*sides, strict=True):
        is_fill = result.view(bits) == value
        if bool(is_fill.any()):
            count += int((is_fill & wanted.isnan() & (wanted.view(bits) != value)).sum())
    return count
