"""The clocks: each takes a batch of readings of one launch, and says by which method and in which cache state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import torch

from flashinfer_bench.timing.clocks.cuda_events import CudaEventClock
from flashinfer_bench.timing.clocks.wall import WallClock

Launch = Callable[[], object]


class Clock(Protocol):
    """Takes readings. Nothing but the launch lies between the two ends of a sample."""

    method: str
    cache_state: str

    def warm_up(self, launch: Launch, count: int) -> None:
        """Launch `count` times untimed; the clock may learn from it what it needs for its readings."""

    def sample(self, launches: list[Launch]) -> list[int]:
        """Time each launch once, in order; return nanoseconds."""

    def facts(self) -> dict[str, Any]:
        """Return what the clock knows of its own readings, JSON-able."""


CLOCKS: Final[dict[str, Callable[[torch.device], Clock]]] = {"cuda": CudaEventClock, "cpu": WallClock}


def make_clock(device: torch.device) -> Clock:
    """Return the clock for a device."""
    return CLOCKS[device.type](device)
