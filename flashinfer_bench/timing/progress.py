"""What is wanted of a trial, and a trial while it is taken: the one object that the steps of the recipe share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Final

from flashinfer_bench.timing.clocks import Clock, Launch, Lead, Leads
from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.settings import PRECISION

Supplier = Callable[[int], Launch]
"""Gives the launch of the i-th call of a trial, with arguments of its own. It runs outside of every reading."""

CHECKS: Final = 3
"""The check makes this many calls, one less where the call was made before. They count as warm-up."""
SLOW_SHARE: Final = 4
"""Checks and warm-up together take at most the budget divided by this."""


@dataclass(frozen=True)
class Recipe:
    """What is wanted of one trial."""

    warmup_runs: int
    """Number of untimed calls before the readings."""
    iterations: int
    """Number of readings wanted."""
    budget_s: float
    """Wall time of the trial. A call that is too slow for it gets fewer readings, but at least one."""
    precision: float = PRECISION
    """Share of its time to which a call is to be known. A quick call that scatters gets more readings than wanted."""
    cuda_graphs: bool = True
    """Time a call of several operations as the replay of a CUDA graph, where the call can be captured."""
    sets: int = 1
    """The i-th call has set i % sets of the inputs, and of each set there are as many readings."""
    was_called: bool = False
    """The call was made before, on these inputs. So a first call that is slow does not compile anything."""
    exact: bool = False
    """Take no more readings than are wanted, however widely they scatter."""
    fewest: int | None = None
    """From so many readings on a call gets no more than `precision` needs; None where all that are wanted are taken."""
    stops_early: bool = False
    """Let a call that is not quick stop once its median is known well enough, also where the budget holds all readings
    that are wanted. A slow one gets no warm-up beyond the checks, and nobody looks for persisting lines: it is for code
    that we trust."""


@dataclass
class TrialUnderWay:
    """A trial while it is taken: what it is taken with, and what is known so far of the call."""

    supply: Supplier
    clock: Clock
    recipe: Recipe
    now: Callable[[], float] = perf_counter
    """The host's clock, in seconds."""
    calls: int = 0
    """Calls made so far, timed or not."""
    lead: Lead = field(default_factory=Lead)
    """What goes before each call."""
    waits_inside: bool = False
    """The call waits for the GPU before it returns. Then the host's time is part of every reading."""
    overfills: bool = False
    """The call launches more than the device's queue holds. Then no spin can get the host ahead of the GPU."""
    per_call_s: float = 0.0
    """Wall time of one reading."""
    compiled_s: float = 0.0
    """Time that the first call took beyond the second. It may have compiled kernels; the budget does not pay for it."""
    retaken: int = 0
    """Readings that were dropped and taken again."""
    looked_at: Sample | None = None
    """The reading that tells what the call launches."""
    enqueue_ns: int = 0
    """What the host needs to enqueue one call, when no graph is replayed."""

    def make_calls(self, count: int, *, supply: Supplier | None = None, lead: Leads | None = None) -> list[Sample]:
        """Make the next calls and return a reading of each.

        Args:
            count: the number of calls.
            supply: gives the launches, where they are not the call's own.
            lead: what goes before each call, or before all of them, where it is not the trial's own.
        """
        give = supply or self.supply
        launches = [give(self.calls + index) for index in range(count)]  # may copy arguments or capture graphs
        samples = self.clock.sample(launches, lead or self.lead)
        self.calls += count
        return samples

    def time_calls(self, count: int, *, supply: Supplier | None = None, lead: Leads | None = None) -> list[Sample]:
        """Do as `make_calls` does, and note the wall time of one reading."""
        begin = self.now()
        samples = self.make_calls(count, supply=supply, lead=lead)
        self.per_call_s = (self.now() - begin) / count
        return samples
