"""Outputs that lie in another place in memory for each call.

The place of an output decides which of its rows share the memory's banks with the inputs. On an H200, x + 1 over 32 MB
takes up to 2 % longer in one place than in another, for as long as a process keeps the place. So calls write to several
places in turn, and a latency is averaged over several placements.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flashinfer_bench.timing.clocks import Clock

PLACES: Final = 8
"""The most places that the outputs of a call are written to in turn."""
MOST_BYTES: Final = 512 << 20
"""All places together hold at most this. In calls on larger outputs the place makes no difference."""
FREE_SHARE: Final = 8
"""All places together hold at most the free memory divided by this."""
FEW_BYTES: Final = 32 << 20
"""Places that hold no more together are taken without a look at the free memory, which may wait for the driver."""


def count_places(size: int, *, calls: int, free_bytes: int) -> int:
    """Return in how many places the outputs of a call are to lie in turn, at least one.

    Args:
        size: bytes of all outputs of one call.
        calls: the untimed calls before the readings. Each place is made by one of them.
        free_bytes: memory that is free on the device.
    """
    room = min(MOST_BYTES, free_bytes // FREE_SHARE) // max(size, 1)
    return max(1, min(PLACES, calls, room))


def choose_places(size: int, *, calls: int, clock: Clock, device: torch.device) -> int:
    """Return in how many places outputs are to lie on this device: in one on a CPU, or where calls are to be warm."""
    if device.type != "cuda" or clock.cache_state != "cold":
        return 1
    if size * min(PLACES, calls) <= FEW_BYTES:
        return max(1, min(PLACES, calls))
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return count_places(size, calls=calls, free_bytes=free_bytes)


def held_bytes(result: Any) -> int | None:
    """Return the memory that a result keeps from being freed; None where that cannot be told."""
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(tensor.grad_fn is not None for tensor in tensors):
        return None
    if any(not isinstance(value, (torch.Tensor, int, float, type(None))) for value in values):
        return None
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
