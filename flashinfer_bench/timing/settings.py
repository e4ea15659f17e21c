"""The user's choices of how a GPU is timed. The names are those of the configuration; everything below uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

L2Cache = Literal["cold", "warm"]
"""State of a GPU's L2 cache before each timed call: "cold" flushes it, "warm" leaves it as it is."""
ClockChoice = Literal["auto", "cuda_events"]
"""The clock on a GPU: "auto" takes CUPTI where it works, and CUDA events elsewhere."""


@dataclass(frozen=True)
class TimingSettings:
    """How calls on a GPU are timed. A CPU has one way: these settings change nothing there."""

    l2_cache: L2Cache = "cold"
    clock: ClockChoice = "auto"
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, where the call can be captured."""


USUAL: Final = TimingSettings()
