"""What calls in a row take longer on a GPU than each alone, since the cache is full of what the one before wrote.

A call alone leaves its last writes in the cache, and is over before they are in memory. In a burst the next call waits
for them where memory is what it waits for anyway: a call that moves its bytes as fast as a copy of them does.
"""

from __future__ import annotations

import time
from functools import cache
from typing import Final

import torch

CACHE_SHARE: Final = 0.3
"""As much of a GPU's cache holds writes when a call ends. Sums of 16 million elements, 20 us, took 4 to 9 us longer in
bursts (H100, 50 MB)."""
FROM_SHARE: Final = 0.6
FULL_SHARE: Final = 0.9
"""A call waits for memory where a copy of its bytes takes the second of these shares of what it takes in a burst, and
does not below the first."""
SMALL_SHARE: Final = 0.12
"""Of that wait so much of a call is not taken off: a claim may lie a fifth below its burst anyway, for calls whose
power is limited, which that of such calls is not. With all of it, 6 of 60 us, a forged claim was told as 1.45 times as
fast."""
MOST_SHARE: Final = 0.1
"""No more than this share of a call is taken off: those sums needed 0.08. The shorter a burst, the longer its wait
seems, so the best of many of who forges readings was told as half of what it took: 1.6 times too fast, of 11 us."""
COPIED_BYTES: Final = 256 << 20
COPIES: Final = 12


def write_back_ns(cost_ns: float, moved_bytes: int, written_bytes: int, device: torch.device) -> float:
    """Return how much longer a call takes in a burst than alone, beyond a small share of it; 0 on a CPU.

    Args:
        cost_ns: what it takes in a burst.
        moved_bytes: of its inputs and outputs.
        written_bytes: of its outputs.
        device: where it runs.
    """
    if device.type != "cuda" or cost_ns <= 0:
        return 0.0
    held = CACHE_SHARE * float(torch.cuda.get_device_properties(device).L2_cache_size)
    return held_up_ns(cost_ns, moved_bytes, min(float(written_bytes), held), _byte_ns(device))


def held_up_ns(cost_ns: float, moved_bytes: int, held_bytes: float, byte_ns: float) -> float:
    """Return what a call waits for bytes that lie in the cache, beyond a small share of it. Pure.

    Args:
        cost_ns: what the call takes in a burst.
        moved_bytes: of its inputs and outputs.
        held_bytes: written by the call before.
        byte_ns: what it takes to read a byte or to write one, as copies do.
    """
    waits = (moved_bytes * byte_ns / cost_ns - FROM_SHARE) / (FULL_SHARE - FROM_SHARE)
    held_up = min(max(waits, 0.0), 1.0) * held_bytes * byte_ns - SMALL_SHARE * cost_ns
    return min(max(0.0, held_up), MOST_SHARE * cost_ns)


@cache
def _byte_ns(device: torch.device) -> float:
    """Return what a GPU takes to read a byte or to write one: the best of some copies."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    taken_ns = []
    for _ in range(COPIES):
        torch.cuda.synchronize(device)
        start = time.perf_counter_ns()
        target.copy_(source)
        torch.cuda.synchronize(device)
        taken_ns.append(time.perf_counter_ns() - start)
    return min(taken_ns) / (2 * COPIED_BYTES)
