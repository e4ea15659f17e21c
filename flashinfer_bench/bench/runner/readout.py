"""What a session adds to readings: the machine's launch gap, and the state of its GPU before and after.

The launch gap is measured in contexts that hold no solution yet. After the first measurement it stays the same for the
whole run, so that all solutions get the same gap.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import fmean

from flashinfer_bench.timing.gpu_state import GpuState, read_gpu_state
from flashinfer_bench.timing.measurement import Measured, Trial
from flashinfer_bench.timing.summary import summarise


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

    def add_launch_gap(self, gap_ns: int) -> None:
        """Take the launch gap of one more context; after the first measurement this does nothing."""
        if gap_ns > 0:
            self._gaps_ns.append(gap_ns)

    @property
    def launch_gap_ns(self) -> int:
        """The mean gap, in nanoseconds, of the contexts before the first measurement; 0 where none tells."""
        if self._gap_ns is None:
            self._gap_ns = round(fmean(self._gaps_ns)) if self._gaps_ns else 0
        return self._gap_ns

    def look(self) -> GpuState | None:
        """Look at the GPU."""
        if self._uuid is None:
            return None
        return read_gpu_state(self._uuid, ours={os.getpid(), *self._our_processes()})

    def measured(self, trials: Sequence[Trial], before: GpuState | None) -> Measured:
        """Summarise trials that have just been taken, `before` being the look at the GPU before the first."""
        gap_ns, after = self.launch_gap_ns, self.look()
        return summarise(trials, launch_gap_ns=gap_ns, before=before, after=after, keep_samples=self._keep_samples)
