"""Rows of bytes, one for each of some calls: copied together, and held against others with one wait for the device.

Each operation of torch and each wait for a GPU cost the host microseconds. So rows of many calls are handled at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch

from flashinfer_bench.bench.evaluators.inputs.fills import WORD
from flashinfer_bench.worker.arena import Slot


def copy_rows(held: torch.Tensor, indices: Sequence[int]) -> torch.Tensor:
    """Return a copy of some rows, in the order of the indices, without a wait for the device."""
    chosen = torch.tensor(indices, dtype=torch.int64).to(held.device, non_blocking=True)
    if not _is_made_of_words(held):
        return held.index_select(0, chosen)
    return held.view(torch.int64).index_select(0, chosen).view(torch.uint8)


def find_differing(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> list[list[bool]]:
    """Tell of pairs of rows which rows differ. All pairs are compared before the one wait.

    Args:
        pairs: bytes, [rows, bytes] each; the second of a pair may have one row, which stands for all.
    """
    differing = [_differ(one, other) for one, other in pairs]
    flags = iter(_to_host(differing))
    return [[next(flags) for _ in range(len(one))] for one in differing]


def find_changed(found: Sequence[torch.Tensor], given: torch.Tensor, slots: Sequence[Slot], most: int) -> list[bool]:
    """Tell which rows differ in a slot from those that were given. Bytes between slots are ignored.

    Args:
        found: rows of bytes, each by itself.
        given: as many rows of bytes, or more.
        slots: the bytes that are compared.
        most: rows that are compared together; they are copied to one piece for that.
    """
    if not slots:
        return [False] * len(found)
    spans = [slice(slot.offset, slot.offset + slot.nbytes) for slot in slots]
    differing = []
    for start in range(0, len(found), most):
        rows = torch.stack(list(found[start : start + most]))
        of_slots = [_differ(rows[:, span], given[start : start + len(rows), span]) for span in spans]
        differing.append(reduce(torch.logical_or, of_slots))
    return _to_host(differing)


def _to_host(flags: Sequence[torch.Tensor]) -> list[bool]:
    return torch.cat(list(flags)).to("cpu", copy=True).tolist() if flags else []


def _differ(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    if _is_made_of_words(one) and _is_made_of_words(other):
        one, other = one.view(torch.int64), other.view(torch.int64)
    return (one != other).any(dim=1)


def _is_made_of_words(rows: torch.Tensor) -> bool:
    step, next_to = rows.stride()
    return next_to == 1 and step % WORD == rows.shape[1] % WORD == rows.storage_offset() % WORD == 0
