"""The user's settings of GPU timing, with the names that the configuration has for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

L2Cache = Literal["cold", "warm"]
"""State of a GPU's L2 cache before each timed call: "cold" flushes it, "warm" does not."""
ClockChoice = Literal["auto", "cuda_events"]
"""The clock on a GPU: "auto" selects CUPTI if it works, else CUDA events."""
Assurance = Literal["standard", "full"]
"""How an outside process checks a GPU's latency: "standard" by a gated chain of calls, "full" also by batches of
calls."""


@dataclass(frozen=True)
class TimingSettings:
    """How calls on a GPU are timed. These settings change nothing on a CPU."""

    l2_cache: L2Cache = "cold"
    clock: ClockChoice = "auto"
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, if the call can be captured."""
    assurance: Assurance = "standard"
    """Which measurements, besides the samples, the session makes to bound a solution's latency from below."""


USUAL: Final = TimingSettings()
PRECISION: Final = 0.015
"""Default precision. After all trials, half the interval of a call's time should be at most this share of the time. The
times of two identical solutions then mostly differ by less than this share. Most kernels need no extra samples for
it."""
