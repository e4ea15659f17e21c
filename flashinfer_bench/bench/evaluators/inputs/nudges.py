"""Changes bits of narrow numbers by a secret pattern: of random ones any, of stored ones so that they stay as they are.

Bytes that are only moved along from call to call are known from the base: who has unpacked them once takes a stretch of
that. So stored numbers of narrow formats are changed, too, by as little as their range allows:

    float8, float4   the lowest bit of the mantissa, and the sign where both signs reach about as far
    int8             the sign, of numbers that were seen with both signs, where these are quantised numbers

Zeros, infinities and NaN stay, nothing becomes one of them, and no number is larger than the largest one seen. Bytes of
uint8 stay: they may be codes, masks or packed fields of any form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed

LARGEST_FLOAT8: Final = {torch.float8_e4m3fn: 0x7E, torch.float8_e5m2: 0x7B}
"""Bits of the largest finite number of a format, without its sign."""
BINADE: Final = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 4}
"""Numbers of a format between one power of two and the next. One of four bits has two."""
FLOAT4_BINADE: Final = 2
LEAST_REACH: Final = 4
"""Whole numbers of both signs reach this far at the least where they are taken for quantised ones. Others may be
numbers of experts, with -1 where there is none."""
LARGEST_INT8: Final = 127
CHANGED_TOGETHER: Final = 1 << 22
"""Bytes that are looked at together; what is worked out of them takes as much memory a few times over."""


class Flips(Protocol):
    """Changes bytes, given a random byte for each."""

    def change(self, held: torch.Tensor, pattern: torch.Tensor) -> None:
        """Change bytes in place.

        Args:
            held: uint8 [bytes] or [rows, bytes].
            pattern: uint8 [bytes]: random, the same for all rows.
        """


@dataclass(frozen=True)
class AnyBits:
    """Flips any of some bits of each byte: random ones stay as likely as they were."""

    bits: int

    def change(self, held: torch.Tensor, pattern: torch.Tensor) -> None:
        """Change bytes in place."""
        held.bitwise_xor_(pattern & self.bits)


@dataclass(frozen=True)
class NarrowFloats:
    """Flips the lowest bit of floats, and their sign, where that is no more than was seen."""

    width: int
    """Bits of a number: 8, or 4 of two in a byte."""
    reach: int
    """No number is changed into one whose bits, without the sign, are more than this."""
    has_both_signs: bool
    """Whether signs are flipped, too."""

    def change(self, held: torch.Tensor, pattern: torch.Tensor) -> None:
        """Change bytes in place."""
        sign = 1 << self.width - 1
        bits = sign | 1 if self.has_both_signs else 1
        for shift in range(0, 8, self.width):
            size = held >> shift & sign - 1 if shift else held & sign - 1
            is_free = (size > 1) & ((size | 1) <= self.reach)  # the smallest one would become a zero
            held.bitwise_xor_(is_free.view(torch.uint8) * (bits << shift) & pattern)


@dataclass(frozen=True)
class NarrowIntegers:
    """Changes the sign of whole numbers of 8 bits, where the other one was seen as well.

    So each becomes one that was there. Labels of 0 to 9 with -100 where there is none stay, and bytes into which
    narrower codes were packed become others of these.
    """

    sizes: tuple[int, ...]
    """The numbers without their signs that were seen with both, in order."""

    def change(self, held: torch.Tensor, pattern: torch.Tensor) -> None:
        """Change bytes in place."""
        is_free = torch.zeros(256, dtype=torch.uint8)
        is_free[[*self.sizes, *(256 - size for size in self.sizes)]] = 1
        found = is_free.to(held.device).index_select(0, held.reshape(-1).int()).view(held.shape)
        ones = found.bitwise_and_(pattern).neg_()  # all bits of a byte, or none
        held.bitwise_xor_(ones).sub_(ones)


def find_nudge(value: torch.Tensor) -> Flips | None:
    """Return how numbers of a narrow format may be changed; None where they have to stay. Waits for a GPU.

    Args:
        value: the stored tensor.
    """
    flat = value.reshape(-1).view(torch.uint8)
    parts = torch.split(flat, CHANGED_TOGETHER) if len(flat) else ()
    if value.dtype is torch.int8:
        seen = sum((torch.bincount(part, minlength=256) for part in parts), torch.zeros(256, device=flat.device)) > 0
        sizes = (seen[1 : LARGEST_INT8 + 1] & seen[LARGEST_INT8 + 2 :].flip(0)).nonzero()[:, 0].add(1).tolist()
        return NarrowIntegers(tuple(sizes)) if sizes and sizes[-1] >= LEAST_REACH else None
    if is_packed(value.dtype):
        found = [_find_largest(part >> shift & 0xF, 8, 7) for part in parts for shift in (0, 4)]
        return _nudge_floats(4, found, FLOAT4_BINADE)
    largest = LARGEST_FLOAT8.get(value.dtype)
    if largest is None:
        return None
    return _nudge_floats(8, [_find_largest(part, 0x80, largest) for part in parts], BINADE[value.dtype])


def _find_largest(codes: torch.Tensor, sign: int, largest: int) -> torch.Tensor:
    """Return the bits of the largest finite number of each sign, without the sign: uint8 [2]."""
    sizes = (codes, codes - sign)  # without a sign, so what has the other one is too large
    return torch.stack([(size * (size <= largest)).amax() for size in sizes])


def _nudge_floats(width: int, found: list[torch.Tensor], binade: int) -> NarrowFloats | None:
    """Return how floats may be changed, given the largest ones of both signs of each part."""
    if not found:
        return None
    less, more = torch.stack(found).amax(0).sort().values.tolist()
    has_both_signs = less > 1 and less + binade >= more
    return NarrowFloats(width, less if has_both_signs else more, has_both_signs)
