"""What copies of outputs take on a CPU, by the session's own: it is taken off what calls take that return them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Final

import torch

OWN_CALLS: Final = 5
SLOWER_COPIES: Final = 1.5
"""No more is taken off for the copies of a call's outputs than SLOWER_COPIES times what those of the same size take
within this process, of OWN_CALLS calls. A worker that a timer wakes can give the pages of its outputs back, and then a
copy takes six times as long."""


class OutputCopies:
    """Times copies of outputs.

    Args:
        outputs: those of one call.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        self._own = [torch.ones(output.nbytes, dtype=torch.uint8) for output in outputs for _ in range(OWN_CALLS)]

    def time(self, outputs: Sequence[torch.Tensor], calls: int) -> float:
        """Return the nanoseconds that copying the outputs of a call takes a thread.

        Args:
            outputs: those of so many calls, where they lie.
            calls: how many.
        """
        for own in self._own:
            own.fill_(1)  # as the outputs are poisoned before
        return min(time_copies(outputs) / calls, SLOWER_COPIES * time_copies(self._own) / OWN_CALLS)


def time_copies(tensors: Sequence[torch.Tensor]) -> float:
    """Return the nanoseconds that copying tensors on a CPU takes a thread, from and to memory that is in use.

    What a copy takes to begin is not in it: that is known from empty calls.
    """
    moves = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
    scratch = torch.ones(max((size for _, size in moves), default=0), dtype=torch.uint8)
    target = scratch.data_ptr()
    begun = time.thread_time_ns()
    for source, _ in moves:
        ctypes.memmove(target, source, 0)
    start = time.thread_time_ns()
    for source, size in moves:
        ctypes.memmove(target, source, size)
    return max(0.0, float(time.thread_time_ns() - start - (start - begun)))
