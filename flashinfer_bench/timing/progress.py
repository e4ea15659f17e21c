"""What is wanted of a trial, and what it knows so far of the call that it times: shared by the steps of the recipe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from flashinfer_bench.timing.clocks import Launch, Lead
from flashinfer_bench.timing.measurement import Sample

Supplier = Callable[[int], Launch]
"""Gives the launch of the i-th call of a trial, with arguments of its own; called outside of every reading."""

CHECKS: Final = 3
"""Calls that the check makes; they count as warm-up."""
SLOW_SHARE: Final = 4
"""Checks and warm-up take at most the budget divided by this."""


@dataclass(frozen=True)
class Recipe:
    """What is wanted of one trial."""

    warmup_runs: int
    """Untimed calls first."""
    iterations: int
    """Readings wanted."""
    budget_s: float
    """Wall time of the trial; a call too slow for it gets fewer readings, at least one."""
    cuda_graphs: bool = True
    """A call of several operations that can be captured is timed as the replay of a CUDA graph."""
    was_called: bool = False
    """The call has been made before, on these inputs: a first one that is slow here compiles nothing."""
    exact: bool = False
    """No more readings than are wanted, however they scatter."""


@dataclass
class TrialProgress:
    """What a trial knows so far of the call it times."""

    calls: int = 0
    lead: Lead = field(default_factory=Lead)
    waits_inside: bool = False
    """The call waits for the GPU before it returns, so the host is part of whatever is read."""
    overfills: bool = False
    """The call launches more than the device's queue holds, so no spin can get the host ahead of it."""
    per_call_s: float = 0.0
    compiled_s: float = 0.0
    """What the first call took beyond the second: it may have compiled kernels, which the budget does not pay for."""
    retaken: int = 0
    looked_at: Sample | None = None
    enqueue_ns: int = 0
    """What the host needs to enqueue one call, graphs aside."""
