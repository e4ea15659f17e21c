"""A counter of the processor time of this thread and of all that is started below it, kept by the kernel as it passes.

The kernel's other account of ended processes leaves out those that nobody waits for. This one does not, so a solution
cannot compute in a child whose time is dropped. A program that its user may execute and not read is counted no further.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from typing import Final

from flashinfer_bench.worker.linux import system_call

PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}
SOFTWARE, TASK_CLOCK = 1, 1
SIZE: Final = 64
"""Bytes of the first version of the kernel's record of an event."""
INHERIT, EXCLUDE_KERNEL = 1 << 1, 1 << 5
"""Exclude the kernel: an ordinary user may not ask otherwise. It changes nothing of this clock."""
CLOSE_ON_EXEC: Final = 1 << 3
VALUE: Final = struct.Struct("=Q")


def open_counter() -> int | None:
    """Open the counter of this thread and of what it starts from here on; None where the system has or gives none."""
    number = PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return None
    event = struct.pack("=IIQQQQQ", SOFTWARE, SIZE, TASK_CLOCK, 0, 0, 0, INHERIT | EXCLUDE_KERNEL).ljust(SIZE, b"\0")
    fd = system_call(number, ctypes.create_string_buffer(event, SIZE), 0, -1, -1, CLOSE_ON_EXEC)
    return fd if fd >= 0 else None


def read_counter(fd: int) -> int:
    """Return the nanoseconds so far."""
    value: int = VALUE.unpack(os.read(fd, VALUE.size))[0]
    return value
