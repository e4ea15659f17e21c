"""A session's metadata for samples: the launch overhead (`launch_gap_ns`), and the GPU's state before and after.

The launch overhead is measured in the CUDA contexts of all processes before the session loads a solution. The overhead
stays fixed for the whole run, so that it is the same for all solutions.
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
from flashinfer_bench.timing.summary import summarise

RECENT_S: Final = 0.2
"""Seconds for which a state of the GPU stays valid. A query takes 0.5 ms, and longer if other sessions query too."""


class RunMetadata:
    """Turns trials into measurements.

    Args:
        uuid: the GPU's UUID as NVML spells it; None for a CPU.
        our_processes: returns the ids of this session's workers.
        keep_samples: put every sample into the record.
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
        """Shortest time of a right call in ns, without the launch gap; 0 if it is unknown."""

    def add_launch_gap(self, gap_ns: int) -> None:
        """Add the launch gap of one more context. This has no effect after the first measurement is summarised."""
        if gap_ns > 0:
            self._gaps_ns.append(gap_ns)

    @property
    def launch_gap_ns(self) -> int:
        """The median launch gap of the contexts before the first measurement; 0 if it is unknown.

        For an even number of gaps this is the lower middle gap, since contexts that start at the same time lengthen
        gaps.
        """
        if self._gap_ns is None:
            self._gap_ns = median_low(self._gaps_ns) if self._gaps_ns else 0
        return self._gap_ns

    @property
    def least_call_ns(self) -> int:
        """The latency of the shortest right call in ns; 0 if it is unknown."""
        return self.least_span_ns and self.least_span_ns + self.launch_gap_ns

    def query(self) -> GpuState | None:
        """Query NVML for the state of the GPU; None on a CPU."""
        if self._uuid is None:
            return None
        state = read_gpu_state(self._uuid, ours={os.getpid(), *self._our_processes()})
        self._latest = time.monotonic(), state
        return state

    def query_before(self) -> GpuState | None:
        """Return the latest state if it is recent and undisturbed; else query NVML again."""
        seen_s, state = self._latest
        is_calm = state is not None and not state.slowed_by and not state.other_processes
        return state if is_calm and time.monotonic() - seen_s < RECENT_S else self.query()

    def measured(self, trials: Sequence[Trial], before: GpuState | None, precision: float) -> Measured:
        """Summarise trials that have just been taken.

        Args:
            trials: at least one trial.
            before: the state of the GPU before the first trial.
            precision: the target relative half-width after all trials.
        """
        gap_ns, after = self.launch_gap_ns, self.query()
        summary = summarise(trials, launch_gap_ns=gap_ns, before=before, after=after, keep_samples=self._keep_samples)
        low_ms, high_ms = summary.record.get("interval95_ms", (None, None))
        reached = None if low_ms is None else round((high_ms - low_ms) / (high_ms + low_ms or 1.0), 6)
        reported = {"precision": precision, "precision_reached": reached}
        return replace(summary, record={**summary.record, **reported})
