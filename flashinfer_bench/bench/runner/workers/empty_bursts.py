"""What a burst takes that has nothing to compute: it is measured in each worker before a solution is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

EMPTY_BURSTS: Final = 8
"""Bursts of calls that compute nothing, by which the session knows what a burst itself takes."""
EMPTY_CALLS: Final = 8
"""Calls of such a burst."""

Times = tuple[float, float | None]
"""What a burst took, in nanoseconds: by the wall, and of processors where that is told."""


@dataclass(frozen=True)
class BurstOverhead:
    """What a burst takes that has nothing to compute, in nanoseconds."""

    request: float = 0.0
    """Its requests and their answers."""
    call: float = 0.0
    """Each of its calls, for each output."""
    noise: float = 0.0
    """How much bursts differ."""
    processors: BurstOverhead | None = None
    """The same in processor time; None where nobody tells it."""

    @classmethod
    def of(cls, bare_ns: Sequence[float], full_ns: Sequence[float]) -> BurstOverhead:
        """Return what follows from times of bursts without calls, and with EMPTY_CALLS of them."""
        call = max(0.0, min(full_ns) - min(bare_ns)) / EMPTY_CALLS
        return cls(min(bare_ns), call, median(full_ns) - min(full_ns))


def take_overhead(time_burst: Callable[[int], Times], touch_device: Callable[[], object]) -> BurstOverhead:
    """Return what bursts take of themselves.

    Args:
        time_burst: makes a burst of so many empty calls.
        touch_device: uses the device in this process, as writing the inputs of a burst does.
    """
    bare: list[Times] = []
    full: list[Times] = []
    for _ in range(EMPTY_BURSTS):
        for calls, taken in ((0, bare), (EMPTY_CALLS, full)):
            touch_device()
            taken.append(time_burst(calls))
    overhead = BurstOverhead.of([wall_ns for wall_ns, _ in bare], [wall_ns for wall_ns, _ in full])
    if any(cpu_ns is None for _, cpu_ns in (*bare, *full)):
        return overhead
    of_processors = BurstOverhead.of([cpu_ns or 0.0 for _, cpu_ns in bare], [cpu_ns or 0.0 for _, cpu_ns in full])
    # What a busy machine adds to an empty call would be taken off each call of a solution.
    return replace(overhead, call=min(overhead.call, of_processors.call), processors=of_processors)
