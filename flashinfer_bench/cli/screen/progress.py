"""The progress of a run on stderr: a live display on a terminal, a line per finished job elsewhere, or nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.planning.plan import Job
from flashinfer_bench.cli.screen.heartbeat import Heartbeat
from flashinfer_bench.cli.screen.output import write_err
from flashinfer_bench.cli.screen.tables import (
    count,
    format_duration,
    format_half,
    format_latency,
    format_speedup,
    shorten_uuid,
)
from flashinfer_bench.cli.screen.tally import Tally
from flashinfer_bench.data import Evaluation
from flashinfer_bench.report.intervals import read_interval
from flashinfer_bench.report.summary import measured_speedup
from flashinfer_bench.report.verdict import caveat_of, first_reason, reason_of, to_one_line

REFRESHES_PER_SECOND: Final = 4
PRINTED: Final = "printed_bytes"
"""The note of a verdict whose solution printed in its calls."""
REASON_SHOWN: Final = 120
SHOWN_DEVICES: Final = 8


class RunProgress(AbstractContextManager["RunProgress"], Protocol):
    """Shows events while it is entered."""

    def show(self, event: Event) -> None:
        """Show one event."""


class QuietProgress:
    """Prints nothing. The result tells the faults."""

    def __enter__(self) -> QuietProgress:
        return self

    def __exit__(self, *exc_info: object) -> None:
        return None

    def show(self, event: Event) -> None:
        """Show nothing."""


class PlainProgress:
    """One line per finished job, for logs and pipes. During a long job, a line from time to time."""

    def __init__(
        self,
        write: Callable[[str], None] = write_err,
        clock: Callable[[], float] = time.monotonic,
        *,
        limit_s: float | None = None,
    ) -> None:
        self._write = write
        note = "" if limit_s is None else f" (a solution may take {limit_s:g} s on a workload: --timeout)"
        self._heartbeat = Heartbeat(describe_devices, write, clock, note=note)

    def __enter__(self) -> PlainProgress:
        self._heartbeat.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._heartbeat.__exit__(kind, error, trace)

    def show(self, event: Event) -> None:
        """Write the event's line, if it has one."""
        self._heartbeat.observe(event)
        line = describe_event(event, self._heartbeat.tally)
        if line:
            self._write(line)


class LiveProgress:
    """Redraws in place: jobs done, rate, time left, status counts, and the job of each device."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tally = Tally()
        self._told: set[str] = set()
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(
            get_renderable=self._render,
            console=self._console,
            refresh_per_second=REFRESHES_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: Event) -> None:
        """Count the event. Print notices and faults above the display, equal ones once."""
        self._tally.observe(event, self._clock())
        if isinstance(event, Notice | JobFaulted) and event.message not in self._told:
            self._told.add(event.message)
            self._console.print(Text(describe_event(event, self._tally)))
        if isinstance(event, JobFinished) and event.trace.evaluation is not None and not event.trace.is_successful():
            self._tell_failure(event, event.trace.evaluation)

    def _tell_failure(self, event: JobFinished, evaluation: Evaluation) -> None:
        """Print why a solution did not pass: once for each status of it."""
        key = f"{event.job.definition.name} / {event.job.solution.name}: {evaluation.status.value}"
        if key not in self._told:
            self._told.add(key)
            self._console.print(Text(f"{describe_job(event.job)}: {describe_verdict(evaluation)}"))

    def _render(self) -> Group:
        return render_progress(self._tally, self._clock())


def choose_progress(
    stream: TextIO, *, quiet: bool, limit_s: float | None = None, environment: Mapping[str, str] = os.environ
) -> RunProgress:
    """Return the display for stderr: live on a terminal, lines elsewhere, nothing where that is asked for.

    Args:
        stream: what is drawn on.
        quiet: show nothing.
        limit_s: how long a solution may take on a workload; a line about a silent run tells it.
        environment: the variables of this process.
    """
    if quiet:
        return QuietProgress()
    can_redraw = stream.isatty() and environment.get("TERM") != "dumb"
    return LiveProgress(stream) if can_redraw else PlainProgress(limit_s=limit_s)


def describe_event(event: Event, tally: Tally) -> str:
    """Return the line that tells an event; empty for those that need none."""
    match event:
        case JobFinished():
            verdict = describe_verdict(event.trace.evaluation) if event.trace.evaluation else ""
            verdict = f"at full assurance {verdict}" if event.job.assurance is not None else verdict
            return f"{_position(tally)} {describe_job(event.job)} on {event.device.label}: {verdict}"
        case JobFaulted():
            kind = "" if event.is_left_out else "NO VERDICT: "
            return f"{_position(tally)} {describe_job(event.job)}: {kind}{_bounded(first_reason(event.message))}"
        case Notice():
            return f"note: {first_reason(event.message)}"
        case _:
            return ""


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


def render_progress(tally: Tally, now: float) -> Group:
    """Draw the tally."""
    head = Table.grid(padding=(0, 2))
    bar = ProgressBar(total=max(tally.jobs, 1), completed=tally.done, width=24)
    head.add_row(Text(_headline(tally, now)), bar)
    lines = [_one_row(_statuses(tally))]
    lines += [_one_row(Text(line, style="dim")) for line in describe_devices(tally, now)]
    return Group(head, *lines)


def _headline(tally: Tally, now: float) -> str:
    if not tally.jobs:
        return "starting"
    rate, left = tally.jobs_per_second(now), tally.seconds_left(now)
    parts = [f"{tally.done}/{count(tally.jobs, 'job')}"]
    if rate is not None and left is not None:
        parts += [f"{rate:.3g} jobs/s", f"{format_duration(left)} left"]
    elif not tally.running:
        parts.append("starting the devices")
    return "  ".join(parts)


def _statuses(tally: Tally) -> Text:
    text = Text("  ").join(
        Text(f"{status} {number}", style="green" if status == "PASSED" else "red")
        for status, number in sorted(tally.statuses.items(), key=lambda item: (item[0] != "PASSED", item[0]))
    )
    if tally.faulted:
        text.append(f"  no verdict {tally.faulted}", style="yellow")
    return text


def describe_devices(tally: Tally, now: float) -> Iterable[str]:
    """Yield a line for each device that works: its label, the time of its job so far, and the job."""
    devices = sorted(tally.running.items())
    for label, (job, since) in devices[:SHOWN_DEVICES]:
        yield f"{label}  {format_duration(now - since)}  {describe_job(job)}"
    if len(devices) > SHOWN_DEVICES:
        yield f"and {count(len(devices) - SHOWN_DEVICES, 'more device')}"


def _one_row(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _bounded(reason: str) -> str:
    return reason if len(reason) <= REASON_SHOWN else f"{reason[: REASON_SHOWN - 1]}…"


def _position(tally: Tally) -> str:
    failed = f", {tally.not_passed} not passed" if tally.not_passed else ""
    return f"[{tally.done:>{len(str(tally.jobs))}}/{tally.jobs}{failed}]"
