"""Cache lines that a call makes persist in the L2. No flush evicts them, so the recipe looks for them.

Lines that slow nothing down stay; where they matter, they are reset before each reading.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Final

from flashinfer_bench.timing.measurement import Sample
from flashinfer_bench.timing.progress import TrialUnderWay
from flashinfer_bench.timing.statistics import quantile

LINES_CALLS: Final = 5
"""Calls of each kind in the first look: with and without a reset of persisting lines."""
FIRST_LOOK: Final = 2 * LINES_CALLS
"""Calls of the first look in all."""
SECOND_LOOK: Final = 3
"""The second look makes this many times the calls of the first. It comes only where the first look suspects lines."""
LOOKS: Final = FIRST_LOOK * (1 + SECOND_LOOK)
"""The most calls that both looks make together."""
LINES_SHARE: Final = 0.03
LINES_NS: Final = 64
"""If resetting persisting lines slows a call by more than both limits, the call had left such lines."""


def check_lines(trial: TrialUnderWay, *, deadline: float) -> list[Sample]:
    """Find out whether the call leaves persisting lines in the L2. If it does, have them reset before each call.

    A reset needs an idle device, so it is done only where it matters. Both kinds of readings wait for an idle device,
    so they differ by the reset alone. Readings that scatter can look slower by chance; the second look tells.

    Args:
        trial: the trial; its lead is changed where lines have to be reset.
        deadline: in seconds. A call too slow for the first look is not looked at; where only the second does not fit,
            the first one decides.

    Returns:
        The readings of its calls, which warm the call up as others would.
    """
    made: list[Sample] = []

    def has_time(calls: int) -> bool:
        return trial.now() + calls * trial.per_call_s < deadline

    clock = trial.clock
    if not clock.fills_queue or clock.cache_state != "cold" or not has_time(FIRST_LOOK):
        return made
    if _is_slower_after_reset(trial, LINES_CALLS, made) and (
        not has_time(FIRST_LOOK * SECOND_LOOK) or _is_slower_after_reset(trial, LINES_CALLS * SECOND_LOOK, made)
    ):
        trial.lead = replace(trial.lead, resets_lines=True)
    return made


def _is_slower_after_reset(trial: TrialUnderWay, count: int, made: list[Sample]) -> bool:
    """Say whether the call is slower once lines are reset: in the median, and in most readings.

    The readings go to `made`.
    """
    leads = replace(trial.lead, waits_first=True), replace(trial.lead, resets_lines=True)
    before_s = trial.per_call_s
    samples = trial.time_calls(2 * count, lead=[lead for lead in leads for _ in range(count)])
    trial.per_call_s = min(before_s, trial.per_call_s)
    made += samples
    times_ns = [s.span_ns if s.busy_ns is None else s.busy_ns for s in samples]
    kept, reset = sorted(times_ns[:count]), sorted(times_ns[count:])
    return median(reset) > median(kept) * (1 + LINES_SHARE) + LINES_NS and quantile(reset, 0.25) > quantile(kept, 0.75)
