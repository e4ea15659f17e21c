"""The user's choices of GPU timing, by the names of the configuration; everything below uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

L2Cache = Literal["cold", "warm"]
"""State of a GPU's L2 cache before each timed call: "cold" flushes it, "warm" does not."""
ClockChoice = Literal["auto", "cuda_events"]
"""The clock on a GPU: "auto" selects CUPTI if it works, else CUDA events."""
Assurance = Literal["standard", "full"]
"""How a GPU's latency is bound from outside: "standard" by a gated chain of calls, "full" by batches of calls as
well."""


@dataclass(frozen=True)
class TimingSettings:
    """How calls on a GPU are timed. These settings change nothing on a CPU."""

    l2_cache: L2Cache = "cold"
    clock: ClockChoice = "auto"
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, if the call can be captured."""
    assurance: Assurance = "standard"
    """The session's measurements besides the samples, which bound a solution's latency."""


USUAL: Final = TimingSettings()
PRECISION: Final = 0.015
"""Default target of half the interval of a call's time after all its trials, as a share of it. Two identical solutions
then mostly agree within it. Most kernels scatter less, and need no further sample for it."""
