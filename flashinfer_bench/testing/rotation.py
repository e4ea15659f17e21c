"""Cold by rotation: calls get copies of their arguments in turn, and a copy has left the L2 before its next use.

Three timings show whether it worked (`check_cold`). A call that reads a tensor which is not among its arguments, such
as one that it closes over, finds that tensor warm.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from math import ceil
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from flashinfer_bench.testing.device import TimingDevice
from flashinfer_bench.timing.clocks import Launch

BETWEEN_SHARE: Final = 3
"""Between two uses of one copy, the other copies fill the L2 this many times. Once would not do, because the L2 does
not replace its lines in strict order."""
MEMORY_SHARE: Final = 0.8
"""Largest share of the free memory that the copies may take."""
VISIBLE_SHARE: Final = 0.05
VISIBLE_MS: Final = 2e-4
"""If a flush slows a call by less than either limit, cold and warm make no difference that could be checked."""
COLD_SHARE: Final = 0.8
"""A rotated call is cold if its time is more than this share of the way from the warm call's to the flushed call's."""


class RotationRefused(Exception):
    """Rotating the arguments is not possible, or did not make calls cold; the message says why."""


def find_tensors(call: partial[object]) -> list[torch.Tensor]:
    """Return the tensors among a call's arguments, and in the lists, tuples and dicts among these."""
    return [leaf for leaf in tree_leaves((call.args, call.keywords)) if isinstance(leaf, torch.Tensor)]


def rotate(call: partial[object], device: TimingDevice, calls: int) -> Sequence[Launch]:
    """Return the call, and the same call on copies of its arguments, enough of them to make each of N calls cold.

    Values, strides and overlaps are kept. Memory is copied by whole storages: a slice costs as much as its buffer.

    Raises:
        RotationRefused: it is not possible.
    """
    if not device.l2_bytes:
        raise RotationRefused("the size of the L2 is not known")
    tensors = [tensor for tensor in find_tensors(call) if tensor.device.type == device.device.type]
    if not tensors:
        raise RotationRefused("there are no GPU tensors among the arguments to make copies of: pass them in args")
    for tensor in tensors:
        is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        if not is_plain or tensor.is_conj() or tensor.is_neg():
            kind = f"a {type(tensor).__name__} of layout {tensor.layout}" if not is_plain else "a lazy view"
            raise RotationRefused(f"an argument is {kind}, which cannot be copied")
    held = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    size = min(sum(tensor.nbytes for tensor in tensors), sum(held.values()))  # if it is too large, `check_cold` tells
    if not size:
        raise RotationRefused("the tensors among the arguments are empty")
    sets = 1 + ceil(BETWEEN_SHARE * device.l2_bytes / size)
    copies, copy_bytes, free_bytes = min(sets, calls) - 1, sum(held.values()), device.free_bytes()
    if copies * copy_bytes > MEMORY_SHARE * free_bytes:
        raise RotationRefused(
            f"{copies} copies of {copy_bytes / 1e6:.0f} MB do not fit into {free_bytes / 1e9:.1f} GB of memory"
        )
    launches: list[Launch] = [call]
    launches += (_copy(call, device.device.type) for _ in range(copies))
    return launches


def check_cold(*, rotated_ms: float, warm_ms: float, flushed_ms: float) -> None:
    """Check whether rotated calls were cold, if a flush makes a difference.

    Args:
        rotated_ms: the median of calls over rotated arguments.
        warm_ms: the median of calls on the same arguments each time, without a flush.
        flushed_ms: the median of calls on the same arguments each time, after a flush.

    Raises:
        RotationRefused: they were warm, at least in part.
    """
    visible_ms = flushed_ms - warm_ms
    if visible_ms > max(VISIBLE_MS, VISIBLE_SHARE * flushed_ms) and rotated_ms <= warm_ms + COLD_SHARE * visible_ms:
        raise RotationRefused(
            f"a call over rotated arguments takes {rotated_ms * 1e3:.2f} us, a warm one {warm_ms * 1e3:.2f} us and one "
            f"after a flush {flushed_ms * 1e3:.2f} us: it reads little of its arguments, or something beside them, "
            "which would have to be passed in args"
        )


def _copy(call: partial[object], device_type: str) -> Launch:
    """Return the call on copies of its tensors on a kind of device."""
    memo: dict[int, Any] = {}  # holds the storages that are copied already

    def copy(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != device_type:
            return tensor
        return deepcopy(tensor.detach(), memo).requires_grad_(tensor.requires_grad)

    args, kwargs = tree_map_only(torch.Tensor, copy, (call.args, call.keywords))
    return partial(call.func, *args, **kwargs)
