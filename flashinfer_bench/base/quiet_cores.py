"""Which core a thread runs on: on a machine that others use, too, a core may be half as fast for a second or more.

Nothing tells this process of it: who slows the core down belongs to another machine. So a short loop is timed.
On a host of one GPU with nothing else in the machine, a loop took 0.57 or 1.17 ms, on six of ten cores the longer
time. Which cores are slow changes within tenths of a second to some seconds (docs/measurements.md).
"""

from __future__ import annotations

import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

LOOP: Final = 2_000
"""Steps of the loop by which cores are compared: a tenth of a millisecond."""
LOOKS: Final = 2
"""The loop is run so often on a core, and the shorter time counts: its first steps find no cache filled."""
MOST_TRIED: Final = 6
"""Cores that are tried at the most where the present one is slow: each takes 0.1 to 0.3 ms."""
SLOWER: Final = 1.25
"""A core is slow where the loop takes more than this times as long as on the best one."""
FADING: Final = 1.01
"""The best time that is known counts as so much longer with each look: all cores slow down where many are in use."""

FEWEST_NEAR: Final = 4
"""Sessions and workers keep to the cores near their GPU where so many of them are to be had."""
SIBLINGS: Final = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
NVIDIA: Final = "0x10de"
DISPLAY: Final = "0x03"
"""The vendor, and how the class of a GPU begins, in that folder."""

TimeLoop = Callable[[], int]
"""Returns what the loop takes on the present core, in nanoseconds."""


class QuietCores:
    """Moves a thread to a core that is quick; no thread is kept there, neither it nor those that it starts.

    Args:
        cores: those that it tries.
        time_loop: what the loop takes on the present core.
    """

    def __init__(self, cores: Sequence[int], time_loop: TimeLoop | None = None) -> None:
        self._cores = list(cores)
        self._time_loop = time_loop or time_loop_here
        self._chance = random.Random()  # the solution of this process may have seeded the one of the module
        self._best_ns = math.inf

    def leave_slow(self) -> None:
        """Move the calling thread to a quick core, where the one that it has is slow. Takes 0.1 to 2 ms."""
        if len(self._cores) < 2:
            return
        is_first = math.isinf(self._best_ns)
        own_ns = self._look()
        if not is_first and own_ns <= SLOWER * self._best_ns:
            return
        with moving() as move:
            tried = self._chance.sample(self._cores, min(MOST_TRIED, len(self._cores)))
            took_ns = {}
            for core in tried:
                if not move(core):
                    continue
                took_ns[core] = self._look()
                if not is_first and took_ns[core] <= SLOWER * self._best_ns:
                    return
            if took_ns:
                move(min(took_ns, key=lambda core: took_ns[core]))

    def _look(self) -> int:
        took_ns = self._time_loop()
        self._best_ns = min(self._best_ns * FADING, took_ns)
        return took_ns


@contextmanager
def moving() -> Iterator[Callable[[int], bool]]:
    """Give what moves the calling thread to a core, and says whether it may; at the end the thread may have any again.

    It stays where it is until the system moves it.
    """
    allowed = os.sched_getaffinity(0)

    def move(core: int) -> bool:
        with suppress(OSError):  # it is none of this process's any more
            os.sched_setaffinity(0, {core})
            return True
        return False

    try:
        yield move
    finally:
        try:
            os.sched_setaffinity(0, allowed)
        except OSError:  # this process has other cores now
            with suppress(OSError):
                os.sched_setaffinity(0, range(os.cpu_count() or 1))


def share_cores(
    session: int, sessions: int, *, spared: Sequence[int] = (), near: Set[int] = frozenset()
) -> tuple[list[int], list[int]]:
    """Return which cores a session tries, and which its workers try: no two try the same. Too few are as good as none.

    Args:
        session: its number among those of this machine.
        sessions: how many there are.
        spared: cores that others have work for; what shares one with these is left out, too, where enough are left.
        near: cores that lie near its GPU; where too few of them are to be had, all are as good.
    """
    allowed = os.sched_getaffinity(0) - set(spared) if hasattr(os, "sched_getaffinity") else set()
    apart = allowed.difference(*map(processors_beside, spared))
    allowed = apart if len(apart) >= FEWEST_NEAR * sessions else allowed
    chosen = allowed & near if len(allowed & near) >= FEWEST_NEAR else allowed
    cores = sorted(one for one in chosen if one == min(processors_beside(one) & chosen))  # two of one core share it
    size = len(cores) // max(1, sessions)
    begin = session % max(1, sessions) * size
    own = cores[begin : begin + size]
    return own[::2], own[1::2]


def cores_near(gpu: int | None, devices: Path = PCI_DEVICES) -> frozenset[int]:
    """Return the cores that lie near a GPU: those of its socket, for example. None where the system does not tell.

    Args:
        gpu: its number among NVIDIA's by PCI address; None where nobody knows it.
        devices: the system's folder of PCI devices.
    """
    if gpu is None:
        return frozenset()
    with suppress(OSError, ValueError, IndexError):
        gpus = sorted(one for one in devices.iterdir() if _is_gpu(one))
        return read_processors((gpus[gpu] / "local_cpulist").read_text())
    return frozenset()


def _is_gpu(device: Path) -> bool:
    with suppress(OSError):
        is_display = (device / "class").read_text().startswith(DISPLAY)
        return is_display and (device / "vendor").read_text().strip() == NVIDIA
    return False


@lru_cache
def processors_beside(processor: int) -> frozenset[int]:
    """Return the processors of the same core, this one among them."""
    with suppress(OSError, ValueError):
        return read_processors(Path(SIBLINGS.format(processor)).read_text()) | {processor}
    return frozenset({processor})


def read_processors(text: str) -> frozenset[int]:
    """Read a list of processors as the system writes it: 0-3,8.

    Raises:
        ValueError: it is none.
    """
    ends = [part.partition("-") for part in text.strip().split(",")]
    return frozenset(one for first, _, last in ends for one in range(int(first), int(last or first) + 1))


def time_loop_here() -> int:
    """Return what the loop takes on the present core, in nanoseconds."""
    return min(_time_once() for _ in range(LOOKS))


def _time_once() -> int:
    start, total = time.perf_counter_ns(), 0
    for step in range(LOOP):
        total += step
    return time.perf_counter_ns() - start
