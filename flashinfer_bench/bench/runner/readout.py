"""What a session adds to readings: the machine's launch gap, and the state of its GPU before and after.

The launch gap is measured in the contexts that the session meets before it loads a solution. The session then keeps it
for the whole run, so all solutions get the same gap.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median_low
from typing import Final

from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.nvml import GpuState, read_gpu_state
from flashinfer_bench.timing.stopping import reached_precision
from flashinfer_bench.timing.summary import summarise

RECENT_S: Final = 0.2
"""Seconds for which a query's result is reused. A query takes 0.5 ms, or several if other sessions query too."""


class Readout:
    """Turns trials into measurements.

    Args:
        uuid: the GPU's UUID as NVML spells it; None for a CPU.
        our_processes: gives the ids of this session's workers.
        keep_samples: put every reading into the record.
    """

    def __init__(
        self, uuid: str | None, *, our_processes: Callable[[], Sequence[int]] = list, keep_samples: bool = False
    ) -> None:
        self._uuid = uuid
        self._our_processes = our_processes
        self._keep_samples = keep_samples
        self._gaps_ns: list[int] = []
        self._gap_ns: int | None = None
        self._latest: tuple[float, GpuState | None] = -math.inf, None
        self.least_span_ns = 0
        """What the least call takes that can be right, without the launch gap; 0 where that is not known."""

    def add_launch_gap(self, gap_ns: int) -> None:
        """Take the launch gap of one more context. It has no effect after the first measurement was summarised."""
        if gap_ns > 0:
            self._gaps_ns.append(gap_ns)

    @property
    def launch_gap_ns(self) -> int:
        """The usual gap of the contexts that were met before the first measurement; 0 where none of them tells.

        Of two it is the lower one: other contexts are made meanwhile, and can make a gap three times as long.
        """
        if self._gap_ns is None:
            self._gap_ns = median_low(self._gaps_ns) if self._gaps_ns else 0
        return self._gap_ns

    @property
    def least_call_ns(self) -> int:
        """The latency of the least call that can be right; 0 where it is not known."""
        return self.least_span_ns and self.least_span_ns + self.launch_gap_ns

    def query(self) -> GpuState | None:
        """Query the GPU's state."""
        if self._uuid is None:
            return None
        state = read_gpu_state(self._uuid, ours={os.getpid(), *self._our_processes()})
        self._latest = time.monotonic(), state
        return state

    def query_before(self) -> GpuState | None:
        """Return the latest state if it is recent and undisturbed; else query the GPU."""
        seen_s, state = self._latest
        is_calm = state is not None and not state.slowed_by and not state.other_processes
        return state if is_calm and time.monotonic() - seen_s < RECENT_S else self.query()

    def measured(self, trials: Sequence[Trial], before: GpuState | None, precision: float) -> Measured:
        """Summarise trials that have just been taken.

        Args:
            trials: at least one.
            before: the GPU's state before the first.
            precision: the share of its time to which the call was to be known after all trials.
        """
        gap_ns, after, reached = self.launch_gap_ns, self.query(), reached_precision(trials)
        summary = summarise(trials, launch_gap_ns=gap_ns, before=before, after=after, keep_samples=self._keep_samples)
        reported = {"precision": precision, "precision_reached": None if reached is None else round(reached, 6)}
        return replace(summary, record={**summary.record, **reported})
