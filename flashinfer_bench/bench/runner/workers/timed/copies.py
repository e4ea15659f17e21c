"""What copies of outputs take on a CPU, by the session's own: it is taken off what calls take that return them."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence

import torch


def time_copies(tensors: Sequence[torch.Tensor]) -> float:
    """Return the nanoseconds that copying tensors on a CPU takes a thread, from and to memory that is in use.

    What a copy takes to begin is not in it: that is known from empty calls.
    """
    moves = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]
    scratch = torch.zeros(max((size for _, size in moves), default=0), dtype=torch.uint8)
    target = scratch.data_ptr()
    begun = time.thread_time_ns()
    for source, _ in moves:
        ctypes.memmove(target, source, 0)
    start = time.thread_time_ns()
    for source, size in moves:
        ctypes.memmove(target, source, size)
    return max(0.0, float(time.thread_time_ns() - start - (start - begun)))
