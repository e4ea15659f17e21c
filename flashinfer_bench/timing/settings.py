"""The user's choices of how a GPU is timed. The names are those of the configuration; everything below uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

L2Cache = Literal["cold", "warm"]
"""State of a GPU's L2 cache before each timed call: "cold" flushes it, "warm" leaves it as it is."""
ClockChoice = Literal["auto", "cuda_events"]
"""The clock on a GPU: "auto" takes CUPTI where it works, and CUDA events elsewhere."""
Assurance = Literal["standard", "full"]
"""How a GPU's latency is bound from outside: "standard" by a chain of calls, "full" by batches of calls as well."""


@dataclass(frozen=True)
class TimingSettings:
    """How calls on a GPU are timed. A CPU has one way: these settings change nothing there."""

    l2_cache: L2Cache = "cold"
    clock: ClockChoice = "auto"
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, where the call can be captured."""
    assurance: Assurance = "standard"
    """What the session makes beside the readings to bound a solution's latency."""


USUAL: Final = TimingSettings()
PRECISION: Final = 0.015
"""Half the interval of a call's time after all its trials, as a share of it, that a measurement aims at unless another
is asked for. Two identical solutions then mostly agree to it. Most kernels scatter less, and take no reading for it."""
