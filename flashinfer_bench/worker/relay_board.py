"""The board of a relay: a page of memory by which a session gives calls out one by one, and a worker says what is done.

In a relay the inputs of a call come into its place when the call before is over. Both sides look at the board without a
pause: a message through the kernel would take longer than a short call.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import select
from contextlib import suppress
from typing import Final

BOARD_BYTES: Final = 4096
GIVEN: Final = 0
DONE: Final = 32
WAITS: Final = 64
"""Where the two counts lie, and whether the session waits for the bell, in words of eight bytes: in cache lines of
their own, neighbours left free."""
WAIT_MS: Final = 1
"""Who waits for the bell looks so often whether something else is the matter."""
RING: Final = b"\0"
MOST_RINGS: Final = 1 << 16
"""Bytes that are read at once: all that a pipe holds."""
SPINS: Final = 2_000
"""Looks at a count before others may have the processor after each: some 0.1 ms."""
ORDERED: Final = ("x86_64", "AMD64", "i386", "i686")
"""Processors on which what one core writes, others see in the order in which it was written. On others a count could be
seen before the inputs that it tells of."""


def has_order() -> bool:
    """Say whether this machine shows writes to other cores in order, which a board needs."""
    return platform.machine() in ORDERED


class RelayBoard:
    """The two counts, in shared memory, and the bell by which a worker wakes a session that waits.

    Args:
        fd: a memory file of BOARD_BYTES; it may be closed afterwards.
        bell: the end of a pipe: a worker's to write to, a session's to read from. No worker has the latter, so none can
            make it one that waits.
    """

    def __init__(self, fd: int, bell: int) -> None:
        self._counts = (ctypes.c_uint64 * (BOARD_BYTES // 8)).from_buffer(mmap.mmap(fd, BOARD_BYTES))
        self._bell = bell
        self._rung = select.poll()

    def clear(self) -> None:
        """Begin a relay: nothing is given, nothing done."""
        self._counts[GIVEN] = self._counts[DONE] = self._counts[WAITS] = 0

    def give(self, count: int) -> None:
        """Say that so many calls have their inputs."""
        self._counts[GIVEN] = count

    def tell_done(self, count: int) -> None:
        """Say that so many calls are over, and what they gave lies in their slots."""
        self._counts[DONE] = count
        if self._counts[WAITS]:
            os.write(self._bell, RING)

    def listen(self) -> None:
        """Have a worker ring the bell whenever a call is over."""
        self._rung.register(self._bell, select.POLLIN)
        self._counts[WAITS] = 1

    def await_bell(self) -> None:
        """Wait without a processor until a worker has rung, WAIT_MS at the most."""
        if self._rung.poll(WAIT_MS):
            with suppress(BlockingIOError):  # a worker may open its end for reading, and take back what it rang
                os.read(self._bell, MOST_RINGS)

    def is_done(self, count: int, looks: int = SPINS) -> bool:
        """Tell whether so many calls are over, after so many looks at the most."""
        counts = self._counts
        for _ in range(looks):  # noqa: SIM110 - any() takes longer than a short call
            if counts[DONE] >= count:
                return True
        return False

    def await_given(self, count: int) -> None:
        """Wait until so many calls have their inputs."""
        counts = self._counts
        for _ in range(SPINS):
            if counts[GIVEN] >= count:
                return
        while counts[GIVEN] < count:
            os.sched_yield()
