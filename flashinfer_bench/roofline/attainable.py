"""The roofline: the shortest time that a device allows for a cost, the share that was reached, and impossible times.

A call is bound by its arithmetic or by its bytes, whichever takes longer (S. Williams, A. Waterman, D. Patterson:
"Roofline", CACM 52(4), 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from flashinfer_bench.roofline.cost import TERA, Cost
from flashinfer_bench.roofline.peaks import Peak

SLACK: Final = 1.05
"""A time is impossible where even this many times it is below the floor. Clocks and vendors' figures are rounded."""


@dataclass(frozen=True)
class Attainable:
    """The floor of a call on a device."""

    floor_ms: float
    """No correct call is faster where its data come from memory."""
    bound: Literal["compute", "memory"]
    """The limit that decides the floor."""
    hard_floor_ms: float
    """No correct call is faster at all. Data that fit into the cache need not come from memory."""

    def share(self, milliseconds: float) -> float:
        """Return the share of the roofline that a time reaches; 1 is the best."""
        return self.floor_ms / milliseconds

    def too_fast(self, milliseconds: float) -> str | None:
        """Say why a time is impossible; None where it is possible."""
        if milliseconds * SLACK >= self.hard_floor_ms:
            return None
        bound = self.bound if self.hard_floor_ms == self.floor_ms else "compute"
        return (
            f"{milliseconds:.6f} ms is faster than the device allows ({self.hard_floor_ms:.6f} ms, bound by "
            f"{bound}): work was skipped, the clock is wrong, or the cost is counted too high"
        )


def find_attainable(cost: Cost, peak: Peak) -> Attainable:
    """Return the floor of a cost on a device."""
    compute_ms = cost.flops / TERA / peak.operations(cost.unit) * 1e3
    memory_ms = cost.bytes / TERA / peak.tb_per_sec * 1e3
    in_cache = cost.bytes <= peak.l2_bytes
    return Attainable(
        floor_ms=max(compute_ms, memory_ms),
        bound="compute" if compute_ms >= memory_ms else "memory",
        hard_floor_ms=compute_ms if in_cache else max(compute_ms, memory_ms),
    )


def find_read_ms(size: float, tb_per_sec: float, l2_bytes: float) -> float:
    """Return the least time in ms to read so many bytes, of which as many as fit may lie in the L2 before.

    Args:
        size: bytes.
        tb_per_sec: peak memory bandwidth, 10^12 bytes a second; `SLACK` is allowed on it.
        l2_bytes: size of the L2.
    """
    return max(0.0, size - l2_bytes) / TERA / tb_per_sec / SLACK * 1e3
