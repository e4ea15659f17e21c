"""What a measurement hands to whoever judges it: one number, the numbers it came from, and how they were taken.

No torch, no clock: pure values, made by `timing.recipe` where the code ran and by the runner from a worker's claim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """The latency of one callable over all its trials."""

    latency_ms: float
    """Mean over trials of the median over iterations, in milliseconds."""
    trials: list[float]
    """Median of each trial, in milliseconds."""
    record: dict[str, Any]
    """JSON-able: method, cache state, counts, spread, why sampling stopped, whether the number means anything."""
