"""Lines that a call makes persist in the L2: no flush evicts them, so they are looked for, and reset if they matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Final

from flashinfer_bench.timing.clocks import Clock
from flashinfer_bench.timing.progress import Supplier, TrialProgress
from flashinfer_bench.timing.statistics import quantile

LINES_CALLS: Final = 5
FIRST_LOOK: Final = 2 * LINES_CALLS
SECOND_LOOK: Final = 3
"""What the first look suspects is looked at again, with so many times the calls."""
LOOKS: Final = FIRST_LOOK * (1 + SECOND_LOOK)
"""Calls that the looks make at the most."""
LINES_SHARE: Final = 0.03
LINES_NS: Final = 64
"""A call that is slower by more than both once persisting lines are reset before it leaves such lines in the L2."""


def check_lines(
    supply: Supplier, clock: Clock, progress: TrialProgress, *, deadline: float, now: Callable[[], float]
) -> None:
    """Find out whether the call leaves persisting lines in the L2; then reset them each time.

    The reset needs an idle device, so it is done only where it matters; what idling itself does to a call is in both
    sets of readings. A call whose readings scatter may look as if it were slower: the second look tells. A call too
    slow for a look before the deadline (seconds) is not looked at, one too slow for the second is taken at the first.
    """

    def has_time(calls: int) -> bool:
        return now() + calls * progress.per_call_s < deadline

    if not clock.fills_queue or clock.cache_state != "cold" or not has_time(FIRST_LOOK):
        return
    if not _look(supply, clock, progress, LINES_CALLS):
        return
    if not has_time(FIRST_LOOK * SECOND_LOOK) or _look(supply, clock, progress, LINES_CALLS * SECOND_LOOK):
        progress.lead = replace(progress.lead, resets_lines=True)


def _look(supply: Supplier, clock: Clock, progress: TrialProgress, count: int) -> bool:
    """Say whether the call is slower once lines are reset: in the median, and in most readings."""
    readings = []
    for lead in (replace(progress.lead, waits_first=True), replace(progress.lead, resets_lines=True)):
        samples = clock.sample([supply(progress.calls + index) for index in range(count)], lead)
        progress.calls += count
        readings.append(sorted(s.span_ns if s.busy_ns is None else s.busy_ns for s in samples))
    kept, reset = readings
    return median(reset) > median(kept) * (1 + LINES_SHARE) + LINES_NS and quantile(reset, 0.25) > quantile(kept, 0.75)
