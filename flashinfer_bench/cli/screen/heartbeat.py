"""A line now and then that says what a silent run is at, for logs and pipes, where nothing is redrawn in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from flashinfer_bench.bench.events import Event, JobStarted
from flashinfer_bench.cli.screen.output import write_err
from flashinfer_bench.cli.screen.tally import Tally

SILENCE_S: Final = 60.0
"""After so long without any news a line is due, and again after as long."""

NOTHING_RUNS: Final = "no job runs: devices are started, waited for, references timed, or solutions compiled"


class Heartbeat:
    """Watches a run while it is entered.

    Args:
        describe: draws a tally at a time as lines, one for each device that works.
        write: takes a line.
        clock: the time in seconds.
        silence_s: how long nothing may be heard of the run.
    """

    def __init__(
        self,
        describe: Callable[[Tally, float], Iterable[str]],
        write: Callable[[str], None] = write_err,
        clock: Callable[[], float] = time.monotonic,
        *,
        silence_s: float = SILENCE_S,
    ) -> None:
        self._describe = describe
        self._write = write
        self._clock = clock
        self._silence_s = silence_s
        self.tally = Tally()
        """What was observed so far."""
        self._heard_at = clock()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def observe(self, event: Event) -> None:
        """Take an event in. One that a job begins is no news to a reader."""
        now = self._clock()
        with self._lock:
            self.tally.observe(event, now)
            if not isinstance(event, JobStarted):
                self._heard_at = now

    def beat(self) -> None:
        """Write what the run is at, if nothing was heard of it for long enough."""
        now = self._clock()
        with self._lock:
            if now - self._heard_at < self._silence_s:
                return
            self._heard_at = now
            lines = list(self._describe(self.tally, now)) or [NOTHING_RUNS]
        self._write(f"still at work: {'; '.join(lines)}")

    def _watch(self) -> None:
        while not self._ended.wait(self._silence_s / 10):
            self.beat()
