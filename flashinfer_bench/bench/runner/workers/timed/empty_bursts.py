"""What a burst takes that has nothing to compute: it is measured in each worker before a solution is loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import torch

EMPTY_BURSTS: Final = {"cpu": 8, "cuda": 5}
"""Bursts of few and of many calls that compute nothing, by which the session knows what a burst itself takes, by the
kind of device. On a GPU far more than they differ by is taken off anyway."""
MANY: Final = 64
"""Empty calls of a long burst on a CPU: so many that what the request varies by says little of a call."""
EMPTY_CALLS: Final = {"cpu": (0, MANY), "cuda": (1, 65)}
"""Calls of such a burst, few and many, by the kind of device. On a GPU the few are one: a request that launches nothing
does not bring the GPU back to the worker, which takes longer than all else of a burst. With 8 in place of 64 a busy
machine made an empty call seem to take up to 20 us (it takes 2), which was taken off each call of a solution."""

ROUNDS: Final = {"cpu": 1, "cuda": 3}
CALM_NS: Final = 100_000.0
"""Such bursts are taken so many times over, by the kind of device, unless they differ by less than this. What a busy
machine adds to them would be taken off each burst of a solution: with 0.74 ms in place of 0.3 a forged claim of 37 us
was told for a call of 55."""
MOST_OF_LEAST: Final = 1.5
"""On a GPU a worker's overhead is no more than this multiple of the least that was seen in another."""

Times = tuple[float, float | None]
"""What a burst took, in nanoseconds: by the wall, and of processors where that is told."""


@dataclass(frozen=True)
class BurstOverhead:
    """What a burst takes that has nothing to compute, in nanoseconds."""

    request: float = 0.0
    """Its requests and their answers, and on a GPU its return to the worker."""
    call: float = 0.0
    """Each of its calls, for each output."""
    noise: float = 0.0
    """How much bursts differ."""
    processors: BurstOverhead | None = None
    """The same in processor time; None where nobody tells it."""
    relay: float | None = None
    """What a call takes in a relay that computes nothing (`relay.py`); None where none is run."""
    touch: float = 0.0
    """What the session's own GPU takes to come back once such a burst is answered."""

    @classmethod
    def of(cls, few_ns: Sequence[float], many_ns: Sequence[float], calls: tuple[int, int]) -> BurstOverhead:
        """Return what follows from times of bursts of few calls and of many."""
        few, many = calls
        call = max(0.0, min(many_ns) - min(few_ns)) / (many - few)
        return cls(max(0.0, min(few_ns) - few * call), call, median(many_ns) - min(many_ns))

    def at_most(self, least: BurstOverhead | None) -> BurstOverhead:
        """Return this overhead as it is where nothing holds a worker up: bursts take no more than they took in another.

        Who has taken a worker over is held up less than honest code, and all that is taken off is his.
        """
        if least is None:
            return self
        request, long = (min(one, other) for one, other in zip(self._bursts(), least._bursts(), strict=True))
        processors = None if self.processors is None else self.processors.at_most(least.processors)
        relays = [one.relay for one in (self, least) if one.relay is not None]
        call = max(0.0, long - request) / MANY
        return BurstOverhead(request, call, self.noise, processors, min(relays, default=None), self.touch)

    def near(self, least: BurstOverhead | None) -> BurstOverhead:
        """Return this overhead, no further from the least that was seen in a worker of a GPU than workers differ."""
        if least is None:
            return self
        request, touched = (MOST_OF_LEAST * value for value in (least.request, least.touch))
        return replace(self, request=min(self.request, request), touch=min(self.touch, touched))

    def _bursts(self) -> tuple[float, float]:
        """Return what a burst without a call takes, and one of many."""
        return self.request, self.request + self.call * MANY


def take_overhead(
    time_burst: Callable[[int], Times], device_type: str, touch_device: Callable[[], object]
) -> BurstOverhead:
    """Return what bursts take of themselves.

    Args:
        time_burst: makes a burst of so many empty calls.
        device_type: cpu or cuda.
        touch_device: uses the device in this process, as writing the inputs of a burst does.
    """
    few: list[Times] = []
    many: list[Times] = []
    touches_ns: list[int] = []
    counts = EMPTY_CALLS[device_type]
    for _ in range(ROUNDS[device_type]):
        for _ in range(EMPTY_BURSTS[device_type]):
            for calls, taken in zip(counts, (few, many), strict=True):
                start = time.perf_counter_ns()
                touch_device()
                touches_ns.append(time.perf_counter_ns() - start)
                taken.append(time_burst(calls))
        walls_ns = [wall_ns for wall_ns, _ in many]
        if median(walls_ns) - min(walls_ns) <= CALM_NS:
            break
    overhead = BurstOverhead.of([wall_ns for wall_ns, _ in few], [wall_ns for wall_ns, _ in many], counts)
    overhead = replace(overhead, touch=float(median(touches_ns)))
    if any(cpu_ns is None for _, cpu_ns in (*few, *many)):
        return overhead
    few_ns, many_ns = ([cpu_ns or 0.0 for _, cpu_ns in taken] for taken in (few, many))
    of_processors = BurstOverhead.of(few_ns, many_ns, counts)
    # What a busy machine adds to an empty call would be taken off each call of a solution.
    return replace(overhead, call=min(overhead.call, of_processors.call), processors=of_processors)


def touch(device: torch.device) -> None:
    """Use a GPU for a moment in this process, which has to come back from a worker's context for that.

    What another process has enqueued goes on until its time slice ends. On a CPU nothing is done.
    """
    if device.type == "cuda":
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)
