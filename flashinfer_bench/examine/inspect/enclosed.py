"""Runs one program in a worker's place: in its sandbox, with its limits and under its supervisor."""

from __future__ import annotations

import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.bench.runner.workers.process import WorkerExit, WorkerProcess

KEPT_BYTES: Final = 16 << 20
"""Bytes of output kept from each end."""
LOOK_S: Final = 1.0


@dataclass(frozen=True)
class ProgramEnd:
    """How a program ended."""

    text: str
    exit: WorkerExit | None
    is_late: bool = False

    @property
    def code(self) -> int | None:
        """Its exit code; None where a signal ended it."""
        return self.exit.code if self.exit is not None else None

    def describe(self, limit_s: float) -> str:
        """Say in words how it ended; nothing where it ended by itself with 0."""
        if self.is_late:
            return f"it did not end within {limit_s:g} s"
        if self.exit is not None and self.exit.over_memory:
            return "it was ended because it took more host memory than a worker may"
        if self.exit is not None and self.exit.signal is not None:
            names = {one.value: one.name for one in signal.Signals}
            return f"it was killed by {names.get(self.exit.signal, self.exit.signal)}"
        return "" if self.code == 0 else f"it ended with exit code {self.code}"


def run_enclosed(server: socket.socket, order: dict[str, Any], home: Path, limit_s: float) -> ProgramEnd:
    """Run the order's `program`; nothing of it is left when this returns.

    Args:
        server: the socket of the fork server.
        order: as a worker's: environment, sandbox, memory limit.
        home: a folder of the program's own, made here and removed at the end.
        limit_s: the program is ended after so many seconds.

    Raises:
        DeviceFault: something of it does not end.
    """
    deadline = time.monotonic() + limit_s
    log = BoundedLog(head_bytes=KEPT_BYTES, tail_bytes=KEPT_BYTES)
    with WorkerProcess(server, order, home, log=log) as program:
        program.deafen()
        while not program.has_ended and time.monotonic() < deadline:
            select.select([program], [], [], min(LOOK_S, max(0.0, deadline - time.monotonic())))
        is_late = not program.has_ended
        ended = program.end()
        return ProgramEnd(log.take(), ended, is_late)
