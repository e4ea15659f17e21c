"""The progress of a run on stderr: a display that is redrawn on a terminal, a line for each finished job elsewhere.

Where nothing was written for a while, a line says what the devices are doing.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.render import (
    count,
    format_duration,
    format_half,
    format_latency,
    format_speedup,
    shorten_uuid,
)
from flashinfer_bench.data import Evaluation
from flashinfer_bench.report.intervals import read_interval
from flashinfer_bench.report.summary import measured_speedup
from flashinfer_bench.report.verdict import caveat_of, first_reason, reason_of, to_one_line

if TYPE_CHECKING:
    from rich.progress import Progress

SILENCE_S: Final = 60.0
"""Seconds without a line after which one says what the run is at."""
PRINTED: Final = "printed_bytes"
"""The note of a verdict whose solution printed in its calls."""
REASON_SHOWN: Final = 120
SHOWN_DEVICES: Final = 8


class RunProgress:
    """Counts the events of a run and shows them while it is entered.

    Args:
        quiet: show nothing. The result tells the faults.
        beats_only: write no lines but those about a silent run.
        limit_s: seconds that a solution may take on a workload; a line about a silent run tells it.
        write: writes a line.
        silence_s: seconds without a line after which one says what the run is at.
    """

    def __init__(
        self,
        *,
        quiet: bool = False,
        beats_only: bool = False,
        limit_s: float | None = None,
        write: Callable[[str], None] = write_err,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.quiet, self._beats_only = quiet, beats_only
        self.statuses: Counter[str] = Counter()
        """Verdicts by status; jobs without one count as `no verdict`."""
        self.jobs = 0
        self.running: dict[str, tuple[Job, float]] = {}
        """Device label → its current job, and the time in seconds when that began."""
        self._write = write
        self._note = "" if limit_s is None else f" (a solution may take {limit_s:g} s on a workload: --timeout)"
        self._silence_s = silence_s
        self._wrote_at = time.monotonic()
        self._told: set[str] = set()
        self._ended = threading.Event()
        self._live: Progress | None = None

    def __enter__(self) -> RunProgress:
        if self.quiet:
            return self
        if sys.stderr.isatty() and not self._beats_only and os.environ.get("TERM") != "dumb":
            self._live = _make_display()
            self._write = lambda line: self._live.console.print(line)  # type: ignore[union-attr]
            self._live.add_task("starting", total=None)
            self._live.start()
        else:
            threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        if self._live is not None:
            self._live.stop()

    def show(self, event: Event) -> None:
        """Count an event, and show it."""
        match event:
            case RunStarted():
                self.jobs = event.jobs
            case JobsAdded():
                self.jobs += event.jobs
            case JobStarted():
                self.running[event.device.label] = (event.job, time.monotonic())
            case JobFinished():
                self._end(event.job, event.trace.evaluation.status.value if event.trace.evaluation else "no verdict")
            case JobFaulted():
                self._end(event.job, "no verdict")
            case Notice():
                pass
        if self.quiet or self._beats_only:
            return
        line = self._describe(event)
        if line and (self._live is None or self._is_news(event)):
            self._write(line)
            self._wrote_at = time.monotonic()
        if self._live is not None:
            self._draw(self._live)

    def devices(self) -> Iterator[str]:
        """Yield a line for each device that works: its label, the time of its job so far, and the job."""
        devices = sorted(self.running.items())
        for label, (job, since) in devices[:SHOWN_DEVICES]:
            yield f"{label}  {format_duration(time.monotonic() - since)}  {describe_job(job)}"
        if len(devices) > SHOWN_DEVICES:
            yield f"and {count(len(devices) - SHOWN_DEVICES, 'more device')}"

    def _describe(self, event: Event) -> str:
        """Return the line that tells an event; empty for those that need none."""
        failed = self.statuses.total() - self.statuses["PASSED"]
        told = f", {failed} not passed" if failed else ""
        place = f"[{self.statuses.total():>{len(str(self.jobs))}}/{self.jobs}{told}]"
        match event:
            case JobFinished():
                verdict = describe_verdict(event.trace.evaluation) if event.trace.evaluation else ""
                verdict = f"at full assurance {verdict}" if event.job.assurance is not None else verdict
                return f"{place} {describe_job(event.job)} on {event.device.label}: {verdict}"
            case JobFaulted():
                kind = "" if event.is_left_out else "NO VERDICT: "
                return f"{place} {describe_job(event.job)}: {kind}{_bounded(first_reason(event.message))}"
            case Notice():
                return f"note: {first_reason(event.message)}"
            case _:
                return ""

    def _is_news(self, event: Event) -> bool:
        """Tell whether a display that is redrawn needs a line above it: for each kind of failure of a solution once."""
        if isinstance(event, JobFinished):
            names = (event.job.definition.name, event.job.solution.name)
            evaluation = event.trace.evaluation
            key = "" if evaluation is None or event.trace.is_successful() else f"{names} {evaluation.status}"
        else:
            key = event.message if isinstance(event, Notice | JobFaulted) else ""
        is_new = bool(key) and key not in self._told
        self._told.add(key)
        return is_new

    def _end(self, job: Job, status: str) -> None:
        self.statuses[status] += 1
        self.running = {label: item for label, item in self.running.items() if item[0].index != job.index}

    def _draw(self, live: Progress) -> None:
        counts = "  ".join(f"{number} {status}" for status, number in sorted(self.statuses.items()))
        done = self.statuses.total()
        head = f"{done}/{count(self.jobs, 'job')}  {counts}" if done or self.running else "starting the devices"
        jobs = [f"{label}  {describe_job(job)}" for label, (job, _) in sorted(self.running.items())[:SHOWN_DEVICES]]
        live.update(live.task_ids[0], description="\n".join([head, *jobs]), completed=done, total=self.jobs or None)

    def _watch(self) -> None:
        while not self._ended.wait(self._silence_s / 10):
            if time.monotonic() - self._wrote_at >= self._silence_s:
                self._wrote_at = time.monotonic()
                lines = "; ".join(self.devices())
                otherwise = "no job runs: devices are started, waited for, references timed, or solutions compiled"
                self._write(f"still at work: {f'{lines}{self._note}' if lines else otherwise}")


def _make_display() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}", markup=False), BarColumn(24), TimeElapsedColumn()]
    console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
    return Progress(*columns, TimeRemainingColumn(), console=console, transient=True, refresh_per_second=4)


def describe_job(job: Job) -> str:
    """Return the three names of a job."""
    return to_one_line(f"{job.definition.name} / {job.solution.name} / {shorten_uuid(job.workload.uuid)}")


def describe_verdict(evaluation: Evaluation) -> str:
    """Return the status, with the numbers of a pass or the reason of a failure."""
    performance = evaluation.performance
    if performance is None:
        reason = _bounded(reason_of(evaluation))
        return f"{evaluation.status.value}: {reason}" if reason else evaluation.status.value
    speedup = measured_speedup(evaluation)
    times = f", {format_speedup(speedup)}" if speedup is not None else ""
    caveat = " (not a meaningful time)" if caveat_of(evaluation) is not None else ""
    interval = read_interval(evaluation)
    half = format_half(interval.half_share) if interval is not None and interval.kind else ""
    printing = " (it prints in its calls, which costs time)" if (evaluation.extra or {}).get(PRINTED) else ""
    return f"{evaluation.status.value} {format_latency(performance.latency_ms)}{half}{times}{caveat}{printing}"


def _bounded(reason: str) -> str:
    return reason if len(reason) <= REASON_SHOWN else f"{reason[: REASON_SHOWN - 1]}…"
