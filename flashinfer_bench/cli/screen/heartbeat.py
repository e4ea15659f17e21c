"""Tells from time to time what a silent run is doing. For logs and pipes, where nothing is redrawn in place."""

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
"""Write a line after this many seconds without news, and again after each such time."""

NOTHING_RUNS: Final = "no job runs: devices are started, waited for, references timed, or solutions compiled"


class Heartbeat:
    """Watches a run while it is entered.

    Args:
        describe: turns a tally and the time into lines, one for each device that works.
        write: writes a line.
        clock: returns the time in seconds.
        silence_s: time without news after which a line is written.
        note: what a line says after the devices, if any works.
    """

    def __init__(
        self,
        describe: Callable[[Tally, float], Iterable[str]],
        write: Callable[[str], None] = write_err,
        clock: Callable[[], float] = time.monotonic,
        *,
        silence_s: float = SILENCE_S,
        note: str = "",
    ) -> None:
        self._describe = describe
        self._write = write
        self._clock = clock
        self._silence_s = silence_s
        self._note = note
        self.tally = Tally()
        """The counts of the events so far."""
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
        """Count an event. The start of a job is no news, because no line tells it."""
        now = self._clock()
        with self._lock:
            self.tally.observe(event, now)
            if not isinstance(event, JobStarted):
                self._heard_at = now

    def beat(self) -> None:
        """Write what the run is doing, if there was no news for long enough."""
        now = self._clock()
        with self._lock:
            if now - self._heard_at < self._silence_s:
                return
            self._heard_at = now
            lines = list(self._describe(self.tally, now))
        told = f"{'; '.join(lines)}{self._note}" if lines else NOTHING_RUNS
        self._write(f"still at work: {told}")

    def _watch(self) -> None:
        while not self._ended.wait(self._silence_s / 10):
            self.beat()
