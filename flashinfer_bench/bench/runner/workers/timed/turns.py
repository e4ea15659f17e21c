"""Two kernels whose calls are timed in turns on one core: how many times as long do those of the other one take?

Where a call waits for the GPU inside, the host's time is part of it. A machine whose cores others use, too, may change
that by half from one second to the next, and from core to core: equal calls in two processes, one after the other,
agreed to 1.5 % in three pairs of ten. What holds one side up meets the call of the other side beside it as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, log
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.bench.runner.workers.timed.remote_clock import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.trial import PlaceLaunch, RemoteTrial
from flashinfer_bench.timing.clocks import Lead
from flashinfer_bench.timing.statistics import relative_half_width

FEWEST_ROUNDS: Final = 20
MOST_ROUNDS: Final = 250
"""Rounds that a ratio needs, and the most that are made for it. A round has a call of each side."""
LOOK_EVERY: Final = 10
"""After so many rounds it is looked at how well the ratio is known."""
RATIO_PRECISION: Final = 0.01
"""Share to which the ratio is to be known. Rounds differ by some per cent."""
MOST_S: Final = 0.7
"""Seconds after which no further round is begun."""
OUTSIDE_SLACK: Final = 1.1
MORE_SLACK: Final = 1.2
"""A ratio is told as no more than this multiple of what it is by the session's clock; the second where a call of one's
own has more operations than one of the other side, whose records take the worker time beside the call. By 30 honest
pairs the two agree to 4 %."""
DISTURBED_SHARE: Final = 0.25
"""Where the GPU was not free in a larger share of the rounds, they tell nothing."""


@dataclass(frozen=True)
class Turn:
    """One call of one side."""

    span_ns: float
    """What it took by its worker's clock."""
    cost_ns: float
    """What it took by the session's clock, with all that goes before it."""
    operations: int = 0
    """What it launched on the GPU, as its worker says."""


@dataclass
class Side:
    """Timed calls of one kernel, one at a time.

    Args:
        remote: where they lie, and who looks at what they gave.
        clock: makes them; it is switched on.
        lead: what goes before each.
        renews: each call gets content of its own, and may be compared. Else all have what the first one got: for code
            that we trust, and that leaves its inputs as they are.
    """

    remote: RemoteTrial
    clock: RemoteClock
    lead: Lead
    renews: bool

    def take(self) -> Turn:
        """Make a call.

        Raises:
            SolutionFailure: it failed.
            ClockLost: the clock lost its readings.
        """
        remote, launch = self.remote, PlaceLaunch(0)
        is_new = self.renews or not remote.costs_ns
        (sample,) = self.clock.sample([launch], self.lead) if is_new else self.clock.repeat([launch], self.lead)
        return Turn(float(sample.span_ns), remote.costs_ns[-1], sample.operations or 0)


@dataclass
class Turns:
    """Calls of two sides, one of each in turn, beginning and ending with one's own."""

    own: list[Turn] = field(default_factory=list)
    other: list[Turn] = field(default_factory=list)
    disturbed: int = 0
    """Rounds in which the GPU was not free when the other side's turn came."""

    @property
    def ratios(self) -> list[float]:
        """How many times as long each call of the other side took as those of one's own before it and after it."""
        return compare_neighbours(*([turn.span_ns for turn in side] for side in (self.own, self.other)))

    @property
    def outside_ratio(self) -> float:
        """The same by the session's clock, less what the other side's requests take beside its calls."""
        beside_ns = median(turn.cost_ns - turn.span_ns for turn in self.other)
        costs = [[turn.cost_ns - beside_ns for turn in side] for side in (self.own, self.other)]
        return middle_half(compare_neighbours(*costs))

    @property
    def is_known(self) -> bool:
        """Whether the ratio is known well enough."""
        count = len(self.other)
        is_looked_at = count >= FEWEST_ROUNDS and count % LOOK_EVERY == 0
        width = relative_half_width(self.ratios, middle_half) if is_looked_at else None
        return width is not None and width <= RATIO_PRECISION

    def to_record(self) -> dict[str, Any]:
        """Return what the rounds tell.

        A worker may claim what it likes of its own calls. So the ratio is held against what it is by the session's
        clock, which knows what the other side's requests take beside its calls, whose readings are ours.
        """
        count, ratios = len(self.other), self.ratios
        if count < FEWEST_ROUNDS:
            return {"rounds": count, "why_not": f"fewer than {FEWEST_ROUNDS} rounds fit into {MOST_S:g} s"}
        if self.disturbed > DISTURBED_SHARE * count:
            return {"rounds": count, "why_not": "the GPU was not free when it was the reference's turn"}
        claimed, outside = middle_half(ratios), self.outside_ratio
        operations, others = (median(turn.operations for turn in side) for side in (self.own, self.other))
        slack = MORE_SLACK if operations > others else OUTSIDE_SLACK
        own_ns, other_ns = (median(turn.span_ns for turn in side) for side in (self.own, self.other))
        record = {"ratio": min(claimed, slack * outside), "outside_ratio": round(outside, 6), "rounds": count}
        width = relative_half_width(ratios, middle_half)
        known = {} if width is None else {"precision": round(width, 6)}
        return {**record, **known, "own_ms": own_ns / 1e6, "reference_ms": other_ns / 1e6}


def compare_neighbours(own: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return how many times as much each value of the other side is as those of one's own before it and after it."""
    logs = [log(max(value, 1.0)) for value in own]
    beside = [(before + after) / 2 for before, after in pairwise(logs)]
    return [max(value, 1.0) / exp(middle) for middle, value in zip(beside, other, strict=False)]


def middle_half(values: Sequence[float]) -> float:
    """Return the mean of the middle half: steadier than a median where a core has two speeds."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return fmean(ordered[cut : len(ordered) - cut])


def take_turns(
    own: Callable[[], Turn],
    other: Callable[[], Turn],
    free_gpu: Callable[[], AbstractContextManager[bool]],
    now: Callable[[], float] = time.monotonic,
) -> Turns:
    """Have two sides make a call each in turn until it is known how many times as long those of the other one take.

    A first call of each is left out.

    Args:
        own: makes a call of the one.
        other: makes a call of the other one.
        free_gpu: holds the one still while it is the other's turn; says whether the GPU was free then.
        now: seconds.
    """

    def take_other() -> Turn:
        with free_gpu() as is_free:
            turns.disturbed += not is_free
            return other()

    turns = Turns()
    own()
    take_other()
    turns, start = Turns([own()]), now()
    while len(turns.other) < MOST_ROUNDS and not turns.is_known and now() - start <= MOST_S:
        theirs = take_other()
        turns.other.append(theirs)
        turns.own.append(own())
    return turns
