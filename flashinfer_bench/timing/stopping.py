"""Decides when a trial has enough samples. Pure functions.

Usually a trial takes the requested number of samples. A quick call whose samples vary too much gets extra samples,
until the requested precision is reached. For a slow call, sampling stops once the median has that precision, or the
time is spent. With `fewest`, a quick call may also stop once it has the precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from flashinfer_bench.timing.measurement import WALL, Stop
from flashinfer_bench.timing.settings import PRECISION
from flashinfer_bench.timing.statistics import (
    BATCH,
    FEWEST_BATCHES,
    STEP_NS,
    Middle,
    count_together,
    half_width,
    trimmed_mean,
)

SLOW_BATCH: Final = 3
"""Number of samples before the rule decides again, if all samples would exceed the budget."""
FEW_SHARE: Final = 0.5
"""With fewer than nine samples, half the interval must be at most this share of the precision, because few samples may
agree by chance."""
EXTRA_SHARE: Final = 3
"""The size of a batch of extra samples is the requested number of samples, divided by this."""
QUICK_S: Final = 0.002
"""A call whose sample takes at most this many seconds is quick: all its samples are taken in one batch."""
BATCH_SHARE: Final = 1 / 8
"""Share of the remaining time that one batch of a slow call may take. Some calls become slower while they are timed."""


@dataclass(frozen=True)
class StoppingRule:
    """How many samples a trial takes."""

    iterations: int
    """Requested samples."""
    budget_s: float
    """Wall time of the trial; if all samples would take longer, fewer are taken."""
    extra: int = 0
    """Maximum number of samples beyond `iterations`."""
    precision: float = PRECISION
    """A call's time is known if half its interval is at most this share of the time. This holds for GPU time and for
    busy time."""
    stops_early: bool = False
    """Whether a call that is not quick may stop once it has the precision, even if all samples would fit into the
    budget."""
    method: str = WALL
    """Name of the clock."""
    fewest: int | None = None
    """Minimum samples of a short call. After these, it stops at the requested precision. None: a short call takes all
    samples."""

    def next_batch(
        self, spans_ns: Sequence[int], busy_ns: Sequence[int] = (), *, spent_s: float, per_call_s: float
    ) -> int | Stop:
        """Return the number of samples to take before the next decision, or the reason to stop.

        Args:
            spans_ns: GPU times of the samples so far, in order.
            busy_ns: busy time of each sample, if the clock measures it.
            spent_s: wall time of the trial so far, warm-up included.
            per_call_s: wall time of one sample.
        """
        taken, left_s = len(spans_ns), self.budget_s - spent_s
        wanted = self.iterations - taken
        if wanted <= 0:
            is_known, more = self._is_known(spans_ns, busy_ns), max(BATCH, round(self.iterations / EXTRA_SHARE))
            more = min(more, wanted + self.extra)
            if is_known and wanted < 0:
                return "precision"
            return more if more > 0 and more * per_call_s <= left_s and is_known is False else "count"
        all_fit = wanted * per_call_s <= left_s and not (self.stops_early and per_call_s > QUICK_S)
        if self.fewest is not None:
            if taken >= self.fewest and self._is_known(spans_ns, busy_ns):
                return "precision"
            wanted = min(wanted, self.fewest - taken if taken < self.fewest else self.fewest // 2)
        if all_fit:
            at_once = wanted if per_call_s <= QUICK_S else int(left_s * BATCH_SHARE / per_call_s)
            return min(wanted, max(SLOW_BATCH, at_once))
        if taken:
            half_ns = half_width(spans_ns, batch=count_together(spans_ns, self.method) if self.stops_early else BATCH)
            needed = self.precision * (FEW_SHARE if taken < FEWEST_BATCHES * BATCH else 1.0)
            if half_ns is not None and half_ns <= needed * median(spans_ns):
                return "precision"
            if per_call_s > left_s:
                return "budget"
        return max(1, min(wanted, SLOW_BATCH, int(max(left_s, 0.0) / per_call_s)))

    def _is_known(self, spans_ns: Sequence[int], busy_ns: Sequence[int]) -> bool | None:
        """Return whether the median GPU time, and the mean busy time, are known to the precision; None if there are too
        few samples."""
        batch = count_together(spans_ns, self.method)
        kinds: tuple[tuple[Sequence[int], Middle], ...] = ((spans_ns, median), (busy_ns, trimmed_mean))
        widths = [(half_width(values, middle, batch=batch), middle(values)) for values, middle in kinds if values]
        if any(half_ns is None for half_ns, _ in widths):
            return None
        return all((half_ns or 0.0) <= max(self.precision * time_ns, STEP_NS / 2) for half_ns, time_ns in widths)
