"""One device's place in the host's loop: its lock, its session, and the jobs that it has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.bench.runner.client import SessionClient


@dataclass
class Station:
    """One device's place in the loop."""

    device: Device
    client: SessionClient | None = None
    open_jobs: dict[int, Job] = field(default_factory=dict)
    """Jobs of its block without an answer yet, in order."""
    ahead: dict[int, Job] = field(default_factory=dict)
    """Jobs of the block that its session was sent, and has not begun."""
    current: int | None = None
    """The job that runs, or whose baseline is prepared. It is to blame where the session is lost."""
    started: int | None = None
    """The job whose start was told last."""
    is_blamed: bool = False
    """The session has told which job is to blame for its end."""
    failed_starts: int = 0
    """Sessions that ended before they were ready, since one was."""
    asking: Iterator[str | None] | None = None
    """Asks for the lock of the device while another run has it."""
    is_locked: bool = False
    held: ExitStack = field(default_factory=ExitStack)
    """Gives the device's lock back."""
    given_up_at: float | None = None
    """When it was given up, in monotonic seconds; None while it is in use."""

    @property
    def jobs(self) -> list[Job]:
        """Jobs that it has been given and not answered."""
        return [*self.open_jobs.values(), *self.ahead.values()]

    def stop_asking(self) -> None:
        """Wait no more for a lock that another run has."""
        if self.asking is not None:
            self.free()

    def free(self) -> None:
        """Give the lock back."""
        self.asking, self.is_locked = None, False
        self.held.close()

    def end_session(self) -> None:
        """End its session; it has no jobs any more."""
        client, self.client = self.client, None
        self.open_jobs, self.ahead, self.current, self.started = {}, {}, None, None
        if client is not None:
            client.end()
