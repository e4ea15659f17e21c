"""The wall clock, for a CPU: the time from the call to its return, caches as the calls before left them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch


class WallClock:
    """Reads the monotonic clock before and after each launch."""

    method = "wall"
    cache_state = "warm"

    def __init__(self, device: torch.device) -> None:
        del device  # there is one

    def warm_up(self, launch: Callable[[], object], count: int) -> None:
        """Launch untimed."""
        for _ in range(count):
            launch()

    def sample(self, launches: list[Callable[[], object]]) -> list[int]:
        """Time each launch; nanoseconds of wall time."""
        samples = []
        for launch in launches:
            start = perf_counter_ns()
            launch()
            samples.append(perf_counter_ns() - start)
        return samples

    def facts(self) -> dict[str, Any]:
        """Return nothing: the wall clock has no constants."""
        return {}
