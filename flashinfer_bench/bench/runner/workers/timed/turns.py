"""Two kernels whose calls are timed in turns on one core: how many times as long do those of the other take?

Where a call waits for the GPU inside, the host's time is part of it. A machine whose cores others use, too, may change
that by half from one second to the next, and from core to core: equal calls in two processes, one after the other,
agreed to 1.5 % in three pairs of ten. What holds one side up meets the call of the other side beside it as well.

Single calls are timed in turns, by the workers' clocks: that is exact, and a worker may claim what it likes. So bursts
are timed in turns as well, by the session's clock, and bound what single calls tell.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final

from flashinfer_bench.bench.runner.workers.timed.bursts import BurstTimer
from flashinfer_bench.bench.runner.workers.timed.remote_clock import RemoteClock
from flashinfer_bench.bench.runner.workers.timed.trial import PlaceLaunch
from flashinfer_bench.timing.clocks import Lead
from flashinfer_bench.timing.statistics import relative_half_width

TURN_NS: Final = 2_000_000
"""A burst in turns has as many calls as take this long, and one at the least."""
MOST_CALLS: Final = 32
SINGLE_CALLS: Final = 8
SINGLE_CALLS_MS: Final = 16.0
"""A turn has so many calls that are timed one by one, as far as there are places, and as those of both sides take no
longer than this. Calls of 1 ms differed by a fifth (H100), and each turn takes 4 ms or more beside its calls: with one
call in each the ratio was known to 2 or 3 % after 0.8 s."""
FEWEST_ROUNDS: Final = 10
"""Rounds that single calls need, and bursts. A round has a turn of each side."""
LOOK_EVERY: Final = 10
"""After so many rounds it is looked at how well the ratio is known."""
RATIO_PRECISION: Final = 0.008
"""Share to which the ratio of single calls is to be known. Rounds differ by some per cent."""
LOOKED_AT: Final = 0.4
"""Share of one's own bursts whose outputs are looked at, chosen when a burst is over."""
DISTURBED_SHARE: Final = 0.25
"""Where the GPU was not free in a larger share of the rounds, they tell nothing."""
MEDIAN_SLACK: Final = 1.05
"""The ratio is no more than this multiple of that of the medians: who leaves out some calls changes no median."""
BURST_SLACK: Final = 1.2
"""Nor more than this multiple of what bursts tell. Of equal calls these told 0.85 to 1.16 in 15 pairs (H200), most of
them 0.95 to 1.09, since a GPU comes back to a worker sooner or later."""


@dataclass(frozen=True)
class Limits:
    """How many rounds are made."""

    most_s: float
    """Seconds after which no further round is begun."""
    most_rounds: int


OF_CALLS: Final = Limits(1.2, 250)
OF_BURSTS: Final = Limits(0.2, 16)


@dataclass
class Side:
    """Timed calls of one kernel, each on content of its own.

    Args:
        clock: makes single calls; it is switched on for them.
        lead: what goes before each of these.
        open_bursts: gives what makes bursts; called once single calls are over.
        calls: of a burst, as far as memory allows.
        is_ours: it is the reference: nobody compares what its calls give.
    """

    clock: RemoteClock
    lead: Lead
    open_bursts: Callable[[], BurstTimer]
    calls: int
    is_ours: bool = False
    request_ns: float = 0.0
    """Taken off each burst: what one takes that computes nothing."""

    @cached_property
    def _timer(self) -> BurstTimer:
        return self.open_bursts()

    def take_calls(self) -> float:
        """Make some calls; return what one took by its worker's clock, in nanoseconds: the mean of the middle half.

        Raises:
            SolutionFailure: it failed.
            ClockLost: the clock lost its readings.
        """
        launches = [PlaceLaunch(index) for index in range(self.clock.places)]
        return middle_half([float(sample.span_ns) for sample in self.clock.sample([*launches], self.lead)])

    def take_burst(self) -> float:
        """Make a burst; return what a call of it took by the session's clock, in nanoseconds.

        Raises:
            SolutionFailure: a call failed.
        """
        chance = random.SystemRandom()
        is_looked_at = None if self.is_ours else lambda: chance.random() < LOOKED_AT
        taken_ns, calls = self._timer.take_turn(self.calls, is_looked_at)
        return max(taken_ns - self.request_ns, 0.0) / calls


@dataclass
class Turns:
    """What calls of two sides took in their turns, beginning and ending with one's own, in nanoseconds."""

    own: list[float] = field(default_factory=list)
    other: list[float] = field(default_factory=list)
    disturbed: int = 0
    """Rounds in which the GPU was not free when the other side's turn came."""

    @property
    def logarithms(self) -> list[float]:
        """How many times as long the other side's calls took as those of one's own turns before and after them.

        Logarithms: of equal sides that differ from round to round the mean of ratios is more than 1, either way.
        """
        logs = [math.log(max(value, 1.0)) for value in self.own]
        beside = [(before + after) / 2 for before, after in pairwise(logs)]
        return [math.log(max(value, 1.0)) - middle for middle, value in zip(beside, self.other, strict=False)]

    @property
    def ratio(self) -> float:
        """What the rounds tell together."""
        told = math.exp(middle_half(self.logarithms))
        return min(told, MEDIAN_SLACK * median(self.other) / max(median(self.own), 1.0))

    @property
    def precision(self) -> float | None:
        """The share to which that is known; None where there are too few rounds."""
        return relative_half_width([math.exp(one) for one in self.logarithms], middle_half)

    @property
    def is_known(self) -> bool:
        """Whether the ratio is known well enough."""
        count = len(self.other)
        is_looked_at = count >= FEWEST_ROUNDS and count % LOOK_EVERY == 0
        width = self.precision if is_looked_at else None
        return width is not None and width <= RATIO_PRECISION


def tell(calls: Turns, bursts: Turns) -> dict[str, Any]:
    """Return what rounds of single calls and of bursts tell, or why they tell nothing."""
    count = len(calls.other)
    if min(count, len(bursts.other)) < FEWEST_ROUNDS:
        return {"rounds": count, "why_not": f"there was time for fewer than {FEWEST_ROUNDS} rounds"}
    if calls.disturbed + bursts.disturbed > DISTURBED_SHARE * (count + len(bursts.other)):
        return {"rounds": count, "why_not": "the GPU was not free when it was the reference's turn"}
    record: dict[str, Any] = {"ratio": min(calls.ratio, BURST_SLACK * bursts.ratio), "rounds": count}
    if calls.precision is not None:
        record["precision"] = round(calls.precision, 6)
    record |= {"burst_ratio": round(bursts.ratio, 6), "burst_rounds": len(bursts.other)}
    return record | {"own_ms": median(calls.own) / 1e6, "reference_ms": median(calls.other) / 1e6}


def middle_half(values: Sequence[float]) -> float:
    """Return the mean of the middle half: steadier than a median where a core has two speeds."""
    ordered = sorted(values)
    cut = len(ordered) // 4
    return fmean(ordered[cut : len(ordered) - cut])


def count_calls(call_ms: float) -> int:
    """Return how many calls of this length a burst has."""
    return max(1, min(MOST_CALLS, math.ceil(TURN_NS / 1e6 / max(call_ms, 1e-9))))


def count_single_calls(own_ms: float, other_ms: float) -> int:
    """Return how many calls of a turn are timed one by one, where calls of the two sides take so long."""
    return max(1, min(SINGLE_CALLS, int(SINGLE_CALLS_MS / max(own_ms + other_ms, 1e-9))))


def find_hindrance(own_ms: float, other_ms: float, left_s: float) -> str | None:
    """Return why two kernels whose calls take so long take no turns; None where they do.

    Args:
        own_ms: a call of the one, milliseconds.
        other_ms: a call of the other one.
        left_s: seconds that are left for the one's calls.
    """
    round_s = sum(count_calls(call_ms) * call_ms for call_ms in (own_ms, other_ms)) / 1e3
    if FEWEST_ROUNDS * round_s > OF_BURSTS.most_s:
        return f"there is time for fewer than {FEWEST_ROUNDS} rounds"
    most_s = OF_CALLS.most_s + OF_BURSTS.most_s
    return None if left_s > 4 * most_s else "too little of the solution's time is left"


def take_turns(
    own: Callable[[], float],
    other: Callable[[], float],
    free_gpu: Callable[[], AbstractContextManager[bool]],
    limits: Limits,
    now: Callable[[], float] = time.monotonic,
) -> Turns:
    """Have two sides take turns until it is known how many times as long the calls of the other one take.

    A first turn of each is left out.

    Args:
        own: has the one take a turn; returns what a call took, in nanoseconds.
        other: has the other one take a turn.
        free_gpu: holds the one still, so that it does nothing in the other's turn; says whether the GPU was free then.
            It goes before one's own turn, too: a core that has slept longer is slower.
        limits: how many rounds are made.
        now: seconds.
    """

    def take_other() -> float:
        with free_gpu() as is_free:
            turns.disturbed += not is_free
            return other()

    def take_own() -> float:
        with free_gpu():
            return own()

    turns = Turns()
    take_own()
    take_other()
    turns, start = Turns([take_own()]), now()
    while len(turns.other) < limits.most_rounds and not turns.is_known and now() - start <= limits.most_s:
        theirs = take_other()
        turns.other.append(theirs)
        turns.own.append(take_own())
    return turns
