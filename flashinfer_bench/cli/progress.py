"""The progress of a run on stderr: a display that is redrawn on a terminal, a line for each finished job elsewhere."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, JobStarted, Notice, RunStarted
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.render import count, format_half, format_latency, format_speedup, shorten_uuid
from flashinfer_bench.data import Evaluation
from flashinfer_bench.report.intervals import read_interval
from flashinfer_bench.report.summary import measured_speedup
from flashinfer_bench.report.verdict import caveat_of, first_reason, reason_of, to_one_line

if TYPE_CHECKING:
    from rich.progress import Progress

PRINTED: Final = "printed_bytes"
"""The note of a verdict whose solution printed in its calls."""
REASON_SHOWN: Final = 120
SHOWN_DEVICES: Final = 8
NO_VERDICT: Final = "no verdict"


class RunProgress:
    """Counts the events of a run and shows them while it is entered.

    Args:
        quiet: show nothing. The result tells the faults.
        write: writes a line.
    """

    def __init__(self, *, quiet: bool = False, write: Callable[[str], None] = write_err) -> None:
        self.quiet = quiet
        self.statuses: Counter[str] = Counter()
        """Verdicts by status; jobs without one count as `no verdict`."""
        self.jobs = 0
        self.running: dict[str, Job] = {}
        """Device label → its current job."""
        self._write = write
        self._told: set[str] = set()
        self._live: Progress | None = None

    def __enter__(self) -> RunProgress:
        if not self.quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            text, bar = TextColumn("{task.description}", markup=False), BarColumn(24)
            console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
            self._live = Progress(
                text, bar, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True
            )
            self._write = console.print
            self._live.add_task("starting the devices", total=None)
            self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, event: Event) -> None:
        """Count an event, and show it. On a display, each kind of failure of a solution is a line above it once."""
        kind = line = ""
        match event:
            case RunStarted() | JobsAdded():
                self.jobs += event.jobs
            case JobStarted():
                self.running[event.device.label] = event.job
            case JobFinished():
                evaluation: Any = event.trace.evaluation
                self._end(event.job, evaluation.status.value)
                level = "at full assurance " if event.job.assurance is not None else ""
                line = f"{describe_job(event.job)} on {event.device.label}: {level}{describe_verdict(evaluation)}"
                if not event.trace.is_successful():
                    kind = f"{event.job.definition.name} {event.job.solution.name} {evaluation.status}"
            case JobFaulted():
                self._end(event.job, NO_VERDICT)
                told = "" if event.is_left_out else "NO VERDICT: "
                line, kind = f"{describe_job(event.job)}: {told}{_bounded(first_reason(event.message))}", event.message
            case Notice():
                line = kind = f"note: {first_reason(event.message)}"
        if self.quiet:
            return
        if self._live is not None:
            counts = "  ".join(f"{number} {status}" for status, number in sorted(self.statuses.items()))
            done = self.statuses.total()
            jobs = [f"{label}  {describe_job(job)}" for label, job in sorted(self.running.items())[:SHOWN_DEVICES]]
            head = "\n".join([f"{done}/{count(self.jobs, 'job')}  {counts}", *jobs])
            self._live.update(self._live.task_ids[0], description=head, completed=done, total=self.jobs or None)
            if kind in ("", *self._told):
                return
            self._told.add(kind)
        if line:
            failed = self.statuses.total() - self.statuses["PASSED"]
            place = f"[{self.statuses.total()}/{self.jobs}{f', {failed} not passed' if failed else ''}] "
            self._write(line if isinstance(event, Notice) else place + line)

    def _end(self, job: Job, status: str) -> None:
        self.statuses[status] += 1
        self.running = {label: one for label, one in self.running.items() if one.index != job.index}


def describe_job(job: Job) -> str:
    """Return the three names of a job."""
    return to_one_line(f"{job.definition.name} / {job.solution.name} / {shorten_uuid(job.workload.uuid)}")


def describe_verdict(evaluation: Evaluation) -> str:
    """Return the status, with the numbers of a pass or the reason of a failure."""
    performance = evaluation.performance
    if performance is None:
        reason = _bounded(reason_of(evaluation))
        return f"{evaluation.status.value}: {reason}" if reason else evaluation.status.value
    speedup, interval = measured_speedup(evaluation), read_interval(evaluation)
    times = f", {format_speedup(speedup)}" if speedup is not None else ""
    caveat = " (not a meaningful time)" if caveat_of(evaluation) is not None else ""
    half = format_half(interval.half_share) if interval is not None and interval.kind else ""
    printing = " (it prints in its calls, which costs time)" if (evaluation.extra or {}).get(PRINTED) else ""
    return f"{evaluation.status.value} {format_latency(performance.latency_ms)}{half}{times}{caveat}{printing}"


def _bounded(reason: str) -> str:
    return reason if len(reason) <= REASON_SHOWN else f"{reason[: REASON_SHOWN - 1]}…"
