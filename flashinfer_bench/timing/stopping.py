"""When to stop taking readings. Pure.

Usually at the count that was asked for. A quick call whose readings scatter gets more: until it is known to the
precision that was asked for. A slow call gets fewer: until its median is known to it, or the time is spent. So does a
quick one, from a least number on, where that was asked for in place of a count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, median
from typing import Final

from flashinfer_bench.timing.measurement import Stop, Trial
from flashinfer_bench.timing.settings import PRECISION
from flashinfer_bench.timing.statistics import (
    BATCH,
    FEWEST_BATCHES,
    WALL,
    Middle,
    count_together,
    relative_half_width,
    trimmed_mean,
)

STEP_NS: Final = 32
"""Step of the GPU's clock on an H200. A time that is known to half a step is known well enough: no number of extra
readings tells more."""
SLOW_BATCH: Final = 3
"""Readings of a call too slow for the budget that are taken before the rule looks again."""
FEW_SHARE: Final = 0.5
"""Where long readings are fewer than nine, half their interval is to be at most this share of the precision. Of three
that scatter by 1 %, one series in seven would seem to be known to 1 %; one in 25 does."""
EXTRA_BATCH: Final = 1 / 3
"""Share of the wanted readings that are taken at once beyond them: a few more often settle what those leave open."""
QUICK_S: Final = 0.002
"""If a reading takes at most this long, the call is quick, and all its readings are taken in one batch."""
BATCH_SHARE: Final = 1 / 8
"""A batch of a call that is not quick takes about this share of the time that is left. The rule then looks again, since
some calls become slower while they are timed."""


@dataclass(frozen=True)
class StoppingRule:
    """How many readings a trial takes."""

    iterations: int
    """Readings wanted."""
    budget_s: float
    """Wall time, in seconds. Where all readings would take longer than what is left of it, fewer are taken."""
    extra: int = 0
    """The most readings beyond these. They are taken while median span and mean busy time are not known well enough."""
    precision: float = PRECISION
    """A call is known well enough if half the intervals of its median span and mean busy time are at most this share of
    them. Then a quick call gets no more extra readings. A slow call stops early, there the span alone counts."""
    stops_early: bool = False
    """A call that is not quick may stop at its precision though all readings would fit into the budget."""
    method: str = WALL
    """The name of the clock."""
    fewest: int | None = None
    """From so many readings on a quick call stops at its precision, too; None where it gets all."""

    def reason_to_stop(
        self, spans_ns: Sequence[int], busy_ns: Sequence[int] = (), *, spent_s: float, per_call_s: float
    ) -> Stop | None:
        """Say why to stop; None where more readings are to be taken.

        Args:
            spans_ns: the readings so far, in order.
            busy_ns: the busy time of each, where the clock sees it.
            spent_s: wall time of the trial so far, warm-up included.
            per_call_s: wall time that one reading takes.
        """
        if len(spans_ns) >= self.iterations:
            return self._reason_to_stop_extra(spans_ns, busy_ns, spent_s, per_call_s)
        if self.fewest is not None and len(spans_ns) >= self.fewest and self._is_known(spans_ns, busy_ns):
            return "precision"
        if not spans_ns or self._fits(len(spans_ns), spent_s, per_call_s):
            return None
        batch = count_together(spans_ns, self.method) if self.stops_early else BATCH
        width = relative_half_width(spans_ns, batch=batch)
        is_few = len(spans_ns) < FEWEST_BATCHES * BATCH
        if width is not None and width <= self.precision * (FEW_SHARE if is_few else 1.0):
            return "precision"
        return "budget" if spent_s + per_call_s > self.budget_s else None

    def next_batch(self, taken: int, *, spent_s: float, per_call_s: float) -> int:
        """Return how many readings to take before looking again.

        A quick call that has the time takes all that are left. Extra readings come in batches of EXTRA_BATCH of them.
        """
        if taken >= self.iterations:
            batch = max(BATCH, round(EXTRA_BATCH * self.iterations))
            return min(batch, self.iterations + self.extra - taken)
        wanted = self.iterations - taken
        if self.fewest is not None:
            wanted = min(wanted, self.fewest - taken if taken < self.fewest else self.fewest // 2)
        if self._fits(taken, spent_s, per_call_s):
            if per_call_s <= QUICK_S:
                return wanted
            return min(wanted, max(SLOW_BATCH, int((self.budget_s - spent_s) * BATCH_SHARE / per_call_s)))
        batch = min(wanted, SLOW_BATCH)
        while batch > 1 and spent_s + batch * per_call_s > self.budget_s:
            batch -= 1
        return batch

    def _reason_to_stop_extra(
        self, spans_ns: Sequence[int], busy_ns: Sequence[int], spent_s: float, per_call_s: float
    ) -> Stop | None:
        taken = len(spans_ns)
        if taken >= self.iterations + self.extra:
            return "count"
        batch_s = self.next_batch(taken, spent_s=spent_s, per_call_s=per_call_s) * per_call_s
        if spent_s + batch_s > self.budget_s:
            return "count"
        if any(half_ns is None for half_ns, _ in _widths_ns(spans_ns, busy_ns, self.method)):
            return "count"
        if self._is_known(spans_ns, busy_ns):
            return "precision" if taken > self.iterations else "count"
        return None

    def _is_known(self, spans_ns: Sequence[int], busy_ns: Sequence[int]) -> bool:
        """Tell whether the median span, and the mean busy time, are known to the precision."""
        return all(
            half_ns is not None and half_ns <= max(self.precision * time_ns, STEP_NS / 2)
            for half_ns, time_ns in _widths_ns(spans_ns, busy_ns, self.method)
        )

    def _fits(self, taken: int, spent_s: float, per_call_s: float) -> bool:
        if self.stops_early and per_call_s > QUICK_S:
            return False
        return spent_s + (self.iterations - taken) * per_call_s <= self.budget_s


def reached_precision(trials: Sequence[Trial]) -> float | None:
    """Return to which share the mean of the trials' times is known: spans or busy times, whichever is known worse.

    None where no trial tells. Trials that do not tell are taken to be known as the others are.
    """
    found: list[float] = []
    for kind in zip(*(_trial_widths(trial) for trial in trials), strict=False):
        known = [share for share in kind if share is not None]
        if known:
            found.append(sqrt(fmean([share * share for share in known]) / len(trials)))
    return max(found, default=None)


def _trial_widths(trial: Trial) -> list[float | None]:
    """Return half the intervals of a trial's spans and busy times, as shares of these times."""
    busy_ns = [sample.busy_ns for sample in trial.samples if sample.busy_ns is not None]
    widths = _widths_ns(trial.spans_ns, busy_ns, trial.facts.get("method", WALL))
    return [None if half_ns is None or time_ns <= 0 else half_ns / time_ns for half_ns, time_ns in widths]


def _widths_ns(spans_ns: Sequence[int], busy_ns: Sequence[int], method: object) -> list[tuple[float | None, float]]:
    """Return half the interval and the middle of the spans, and of the busy times where the clock sees them."""
    batch = count_together(spans_ns, method)
    return [_width_ns(spans_ns, median, batch), *([_width_ns(busy_ns, trimmed_mean, batch)] if busy_ns else [])]


def _width_ns(values: Sequence[int], middle: Middle, batch: int) -> tuple[float | None, float]:
    """Return half the width of a series' interval, None where there is none, and its middle."""
    share, centre = relative_half_width(values, middle, batch=batch), middle(values)
    return (None if share is None else share * centre), centre
