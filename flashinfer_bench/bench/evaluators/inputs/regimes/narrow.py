"""How values of 8 bits and bools are changed for each regime: usual ones are any byte, or true in half of the places.

A byte stays any byte, and a float8 a number; how many of them are large, or true, differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from flashinfer_bench.bench.evaluators.inputs.regimes.chance import Chance
from flashinfer_bench.bench.evaluators.inputs.regimes.parts import AXES, find_part
from flashinfer_bench.bench.evaluators.inputs.rules import FEW_BOOLS

NARROWER: Final = 3
"""By so many bits are bytes narrower in the regime `smaller`: their mean and their size are an eighth."""
FEW_FULL: Final = 1 / 64
"""Share of bytes that stay as they are where the others become narrow."""
MANY_BYTES: Final = 1 << 28
"""Larger inputs of 8 bits stay as they are: what is worked out of one takes its memory a few times over."""
RARE: Final = 0.1
"""Share of bools that are true where few are; where many are, so many are false."""
FEWEST_RARE: Final = 8
"""So many of a row, at least, are to be expected to be true, or false: without, a row may have no right answer."""
DENSITIES: Final = (0.02, 0.98)
"""Rows of bools have shares between these where each has its own."""
ZERO_ROWS: Final = 1 / 8
ZERO_SHARE: Final = 0.5
"""In the regime `zeros` so many rows have so many zeros."""
SHORT: Final = 16
"""In regimes of which a part differs, shorter rows or columns may be all true, or all false."""
TURNS: Final = 6
"""In the regime `offset` chance moves one row of so many to a half of the range, and another one to a half of that."""

ChangeBytes = Callable[[torch.Tensor, Chance], object]
"""Changes bytes in place: int8 or uint8 [rows, columns]."""


def change_bytes(regime: str, values: torch.Tensor, chance: Chance) -> None:
    """Turn random bytes into those of a regime, in place; there may be none.

    Args:
        regime: its name.
        values: int8 or uint8, of any shape.
        chance: of the values' device.
    """
    if values.nbytes > MANY_BYTES:
        return
    if regime in BYTES:
        BYTES[regime](values.view(-1, values.shape[-1]), chance)
    elif regime in AXES and (part := find_part(values, AXES[regime], chance)) is not None:
        part.copy_(_move_to_end(part, chance))


def change_bools(regime: str, values: torch.Tensor, chance: Chance, *, with_empty_rows: bool) -> None:
    """Turn random bools into those of a regime, in place.

    Args:
        regime: its name.
        values: bools of any shape.
        chance: of the values' device.
        with_empty_rows: where each row has a share of its own, whether one row has nothing that is true.
    """
    if values.numel() < FEW_BOOLS or values.nbytes > MANY_BYTES:
        return
    columns = values.shape[-1]
    rows = values.view(-1, columns)
    least = min(0.5, FEWEST_RARE / columns)
    if regime in SHARES:
        shares = torch.full((len(rows), 1), SHARES[regime], device=values.device)
    elif regime in AXES:
        held = torch.full(values.shape, 0.5, device=values.device)
        part = find_part(held, AXES[regime], chance)
        if part is None:
            return
        part.fill_(DENSITIES[int(chance.is_so())])
        shares = held.view(rows.shape)
    elif regime in WITH_OWN_SHARES:
        shares = torch.empty((len(rows), 1), device=values.device).uniform_(*DENSITIES, generator=chance.many)
    else:
        return
    usual = values.clone()
    rows.copy_(torch.rand(rows.shape, generator=chance.many, device=values.device) < shares.clamp_(least, 1 - least))
    _keep_some(values, usual, SHORT if regime in AXES else 0)
    if with_empty_rows and regime in WITH_OWN_SHARES and len(rows) > 1:
        rows[chance.below(len(rows))] = False


def _keep_some(values: torch.Tensor, usual: torch.Tensor, least: int = 0) -> None:
    """Make rows and columns in which all are true, or none is, what they usually are: they may have no right answer.

    Short ones may be so on usual inputs, too.
    """
    dims = [dim for dim in (-1, -2)[: values.ndim] if values.shape[dim] >= least]
    for dim in dims:
        torch.where(values.all(dim=dim, keepdim=True), usual, values, out=values)
    for dim in dims:
        torch.where(values.any(dim=dim, keepdim=True), values, usual, out=values)


def choose_zeros(rows: torch.Tensor, chance: Chance) -> torch.Tensor:
    """Choose half of the places of some rows, one at least; return bools of the rows' shape.

    Most rows stay, so that who looks at one or two of them sees nothing.
    """
    is_chosen = torch.rand(len(rows), generator=chance.many, device=rows.device) < ZERO_ROWS
    is_chosen[chance.below(len(rows))] = True
    return is_chosen[:, None] & (torch.rand(rows.shape, generator=chance.many, device=rows.device) < ZERO_SHARE)


def _narrow(rows: torch.Tensor, _chance: Chance) -> None:
    rows.bitwise_right_shift_(NARROWER)


def _leave_few_full(rows: torch.Tensor, chance: Chance) -> None:
    is_full = torch.rand(rows.shape, generator=chance.many, device=rows.device) < FEW_FULL
    rows.copy_(torch.where(is_full, rows, rows >> NARROWER))


def _move(rows: torch.Tensor, *, upwards: bool) -> torch.Tensor:
    """Return bytes in the upper or the lower half of their range."""
    half = (rows & 0x7F) if rows.dtype is torch.uint8 else rows.bitwise_and(0x7F)
    if rows.dtype is torch.uint8:
        return half | 0x80 if upwards else half
    return half if upwards else half | -0x80


def _move_to_end(values: torch.Tensor, chance: Chance) -> torch.Tensor:
    """Return bytes near one end of their range: dark ones, since these move a brightness most; int8 near any end."""
    if values.dtype is torch.uint8:
        return values >> 4
    low = (values >> 4) - 0x78
    return ~low if chance.is_so() else low


def _move_all(rows: torch.Tensor, chance: Chance) -> None:
    rows.copy_(_move(rows, upwards=chance.is_so()))


def _move_some(rows: torch.Tensor, chance: Chance) -> None:
    turns = torch.randint(TURNS, (len(rows),), generator=chance.many, device=rows.device)[:, None]
    upwards = chance.is_so()
    moved = torch.where(turns == 0, _move(rows, upwards=upwards), rows)
    rows.copy_(torch.where(turns == 1, _move(rows, upwards=upwards) >> 1, moved))


def _cube(rows: torch.Tensor, _chance: Chance) -> None:
    largest = float(torch.iinfo(rows.dtype).max)
    rows.copy_((rows.to(torch.float32) / largest).clamp_(-1, 1).pow_(3).mul_(largest).round_())


def _leave_half(rows: torch.Tensor, chance: Chance) -> None:
    rows.masked_fill_(choose_zeros(rows, chance), 0)


BYTES: Final[Mapping[str, ChangeBytes]] = {
    "few_large": _leave_few_full,
    "offset": _move_some,
    "larger": _move_all,
    "smaller": _narrow,
    "heavy_tails": _cube,
    "zeros": _leave_half,
}
"""Regime → changes random bytes in place; none in other regimes."""
SHARES: Final = {"few_large": RARE, "smaller": RARE, "larger": 1 - RARE}
"""Regime → share of bools that are true."""
WITH_OWN_SHARES: Final = frozenset({"offset", "heavy_tails"})
"""Regimes in which each row of bools has a share of its own."""
