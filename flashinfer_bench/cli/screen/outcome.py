"""The outcome of `run`: its verdicts, its faults, its exit code, and its text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, RunStarted
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.planning.plan import Job, Plan
from flashinfer_bench.bench.planning.resume import FULL, names_of
from flashinfer_bench.cli.exit_codes import FAILED, INTERRUPTED, RAN
from flashinfer_bench.cli.screen.plan import describe_skips, plan_counts, skip_documents
from flashinfer_bench.cli.screen.progress import describe_job
from flashinfer_bench.cli.screen.tables import count, format_duration, wrap_line
from flashinfer_bench.cli.screen.verdicts import render_summary
from flashinfer_bench.data import Evaluation, Trace, TraceSet
from flashinfer_bench.data.measurement import read_measurement
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.blind import find_blind
from flashinfer_bench.report.intervals import read_interval
from flashinfer_bench.report.summary import PairKey, count_statuses, measured_speedup, summarise
from flashinfer_bench.report.timing import read_burst, read_timing
from flashinfer_bench.report.verdict import caveat_of, reason_of

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
CACHED: Final = "cached"
SHOWN_JOBS: Final = 3
FAULT_LINES: Final = 20


@dataclass
class RunOutcome:
    """The results of a run so far."""

    plan: Plan
    resumed: list[Trace] = field(default_factory=list)
    """Recorded verdicts of the jobs that a resumed run left out."""
    finished: list[JobFinished] = field(default_factory=list)
    confirmed: int = 0
    """Recorded verdicts that a confirmation has replaced."""
    faults: list[JobFaulted] = field(default_factory=list)
    unconfirmed: list[JobFaulted] = field(default_factory=list)
    """Confirmations that ended without a verdict; the one before counts on."""
    open: int = 0
    """Jobs of the run that have not ended, confirmations included."""
    errors: list[str] = field(default_factory=list)
    """What is broken in what was asked for, a line each."""
    devices: tuple[Device, ...] = ()
    seconds: float = 0.0
    is_interrupted: bool = False
    _at: dict[tuple[str, str | None, str], int] = field(default_factory=dict)
    """Names of a job → its position in `finished`."""

    def observe(self, event: Event) -> None:
        """Keep what the result needs of an event."""
        if isinstance(event, RunStarted):
            self.devices = event.devices
        if isinstance(event, (RunStarted, JobsAdded)):
            self.open += event.jobs
        elif isinstance(event, JobFinished):
            self.open -= 1
            self._finish(event)
        elif isinstance(event, JobFaulted):
            self.open -= 1
            self._fault(event)

    def _finish(self, event: JobFinished) -> None:
        """Keep a verdict; that of a confirmation takes the place of the one before."""
        names = names_of(event.trace)
        if names in self._at:
            self.finished[self._at[names]] = event
            return
        self._at[names] = len(self.finished)
        self.finished.append(event)
        if event.job.assurance is not None:
            left = [trace for trace in self.resumed if names_of(trace) != names]
            self.confirmed += len(self.resumed) - len(left)
            self.resumed = left

    def _fault(self, event: JobFaulted) -> None:
        """Keep a fault; that of a confirmation leaves the verdict before as it is."""
        job = event.job
        names = job.definition.name, job.solution.name, job.workload.uuid
        is_judged = names in self._at or any(names_of(trace) == names for trace in self.resumed)
        (self.unconfirmed if job.assurance is not None and is_judged else self.faults).append(event)

    @property
    def traces(self) -> list[Trace]:
        """All verdicts that count: the recorded ones of jobs that were left out, then those of this run."""
        return [*self.resumed, *(event.trace for event in self.finished)]

    @property
    def faulted(self) -> list[JobFaulted]:
        """The jobs that could not be judged."""
        return [fault for fault in self.faults if not fault.is_left_out]

    @property
    def left_out(self) -> list[JobFaulted]:
        """The jobs that were left out, since a call of their solution ran out of time in another one."""
        return [fault for fault in self.faults if fault.is_left_out]

    @property
    def left(self) -> int:
        """Jobs of the plan without a verdict."""
        return len(self.plan.jobs) + self.confirmed - len(self.finished)

    @property
    def to_confirm(self) -> int:
        """Confirmations that have begun, or are to, and have not ended."""
        return max(0, self.open - (self.left - len(self.faults)))

    @property
    def is_broken(self) -> bool:
        """Whether something of what was asked for is broken, or lacks its stored inputs."""
        return bool(self.errors) or any(skip.is_fault for skip in self.plan.skips)

    def exit_code(self, *, require_passed: bool, allow_broken: bool = False) -> int:
        """Return 130 if interrupted, 1 if a job has no verdict or what was asked for is broken in part, else 0.

        Where passing is required, return 1 also if a job did not pass, or if there is no verdict at all. Where broken
        data is allowed, it makes no failure, nor do the jobs that have no verdict beside it.
        """
        if self.is_interrupted:
            return INTERRUPTED
        all_passed = bool(self.traces) and all(trace.is_successful() for trace in self.traces)
        has_faults = (self.left or self.is_broken) and not (allow_broken and self.is_broken)
        return FAILED if has_faults or (require_passed and not all_passed) else RAN


def _describe_confirmed(outcome: RunOutcome, width: int) -> list[str]:
    """Say of how many workloads the best stands confirmed, where a GPU judged them."""
    best = [row for row in best_by_workload(outcome.traces) if row.burst.assurance]
    if not best:
        return []
    confirmed = sum(row.burst.assurance == FULL for row in best)
    text = f"the best is confirmed at full assurance on {confirmed} of {count(len(best), 'workload')}"
    return [wrap_line(text, width) + "\n"]


def trace_files(outcome: RunOutcome, trace_set: TraceSet) -> list[Path]:
    """Return the files that hold the run's traces."""
    files = [_trace_file(event.job, trace_set) for event in outcome.finished]
    return list(dict.fromkeys(path for path in files if path is not None))


def trace_folders(outcome: RunOutcome, trace_set: TraceSet) -> list[str]:
    """Return the traces/ folders that the run wrote to."""
    roots = [trace_set.solution_roots.get(event.job.solution.name) for event in outcome.finished]
    return [str(root / "traces") for root in dict.fromkeys(roots) if root is not None]


def render_outcome(outcome: RunOutcome, width: int) -> str:
    """Lay out the table, the reasons of failures, the faults, the skips, and the totals."""
    rows = summarise(outcome.traces, _expected(outcome))
    parts = [render_summary(rows, width)] if rows else []
    parts += _describe_faults("No verdict (nothing that a solution did)", outcome.faulted, width)
    parts += _describe_faults("Left out (--resume judges them)", outcome.left_out, width)
    parts += _describe_faults("Not confirmed (--resume tries again)", outcome.unconfirmed, width)
    skips = [wrap_line(line, width) for line in describe_skips(outcome.plan.skips)]
    parts += ["\n".join([*skips, ""])] if skips else []
    blind = [wrap_line(f"warning: {output}", width) for output in find_blind(outcome.traces)]
    parts += ["\n".join([*blind, ""])] if blind else []
    parts += _describe_cached(outcome, width)
    parts += _describe_confirmed(outcome, width)
    parts += _describe_errors(outcome.errors, width)
    return "\n".join([*parts, wrap_line(_totals(outcome), width) + "\n"])


def outcome_document(outcome: RunOutcome, files: Iterable[Path]) -> dict[str, Any]:
    """Return the outcome as JSON-able values."""
    return {
        "version": FORMAT_VERSION,
        "plan": plan_counts(outcome.plan),
        "counts": count_statuses(outcome.traces),
        "seconds": round(outcome.seconds, 3),
        "interrupted": outcome.is_interrupted,
        "devices": [{"label": device.label, "name": device.name, "uuid": device.uuid} for device in outcome.devices],
        "jobs": [_finished_document(event) for event in outcome.finished],
        "resumed": [_trace_document(trace) for trace in outcome.resumed],
        "faults": [{**_names(event.job), "message": event.message} for event in outcome.faulted],
        "left_out": [{**_names(event.job), "message": event.message} for event in outcome.left_out],
        "not_confirmed": [{**_names(event.job), "message": event.message} for event in outcome.unconfirmed],
        "skipped": skip_documents(outcome.plan.skips),
        "data_errors": outcome.errors,
        "blind": [asdict(output) for output in find_blind(outcome.traces)],
        "trace_files": [str(path) for path in files],
    }


def _expected(outcome: RunOutcome) -> dict[PairKey, list[str]]:
    uuids: dict[PairKey, list[str]] = {}
    for job in outcome.plan.jobs:
        uuids.setdefault((job.definition.name, job.solution.name), []).append(job.workload.uuid)
    for trace in outcome.resumed:
        uuids.setdefault((trace.definition, trace.solution or ""), []).append(trace.workload.uuid)
    return uuids


def _trace_file(job: Job, trace_set: TraceSet) -> Path | None:
    root = trace_set.solution_roots.get(job.solution.name)
    if root is None:
        return None
    return traces_path(root, author=job.solution.author, op_type=job.definition.op_type, definition=job.definition.name)


def _describe_faults(title: str, faults: Iterable[JobFaulted], width: int) -> list[str]:
    """Return a section of jobs without a verdict: each message once and whole, under the jobs that ended with it."""
    groups: dict[str, list[Job]] = {}
    for fault in faults:
        groups.setdefault(fault.message, []).append(fault.job)
    lines = [title] if groups else []
    for message, jobs in groups.items():
        lines += [wrap_line(name, width, 2) for name in _some_jobs(jobs)]
        lines += [wrap_line(line.strip(), width, 4 + _indent(line)) for line in _bounded_lines(message)]
    return ["\n".join([*lines, ""])] if lines else []


def source_of_baseline(evaluation: Evaluation) -> str | None:
    """Say where the time of the reference comes from: "measured" in this run, or "cached"; None where it has none."""
    record = (evaluation.extra or {}).get("baseline")
    if not isinstance(record, dict):
        return None
    return CACHED if record.get("source") == CACHED else "measured"


def _describe_cached(outcome: RunOutcome, width: int) -> list[str]:
    """Say how many speed-ups of this run stand on times of earlier runs."""
    evaluations = [event.trace.evaluation for event in outcome.finished]
    sources = Counter(source_of_baseline(one) for one in evaluations if one is not None)
    if not sources[CACHED]:
        return []
    total = sources[CACHED] + sources["measured"]
    text = f"baseline: cached for {sources[CACHED]} of {count(total, 'speed-up')}, by an earlier run on this GPU"
    return [wrap_line(f"{text}; --fresh-baselines times every reference", width) + "\n"]


def _describe_errors(errors: list[str], width: int) -> list[str]:
    """Return the section of what is broken in the data."""
    if not errors:
        return []
    more = [f"and {count(len(errors) - FAULT_LINES, 'more error')}"] if len(errors) > FAULT_LINES else []
    shown = [wrap_line(to_printable(line), width, 2) for line in [*errors[:FAULT_LINES], *more]]
    return ["\n".join(["Broken in what was asked for (exit code 1; --allow-broken lets it pass)", *shown, ""])]


def _bounded_lines(message: str) -> list[str]:
    lines = [to_printable(line.rstrip()) for line in message.splitlines() if line.strip()]
    if len(lines) <= FAULT_LINES:
        return lines
    half = FAULT_LINES // 2
    return [*lines[:half], "…", *lines[-half:]]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _some_jobs(jobs: list[Job]) -> list[str]:
    more = [f"and {count(len(jobs) - SHOWN_JOBS, 'more job')}"] if len(jobs) > SHOWN_JOBS else []
    return [*map(describe_job, jobs[:SHOWN_JOBS]), *more]


def _totals(outcome: RunOutcome) -> str:
    statuses = count_statuses(outcome.traces)
    parts = [f"{number} {status}" for status, number in statuses.items()]
    left_out = len(outcome.left_out)
    faulted = len(outcome.faulted) if outcome.is_interrupted else outcome.left - left_out
    if left_out:
        parts.append(f"{left_out} left out")
    if faulted:
        parts.append(f"{faulted} without a verdict")
    if outcome.left > faulted + left_out:
        parts.append(f"{outcome.left - faulted - left_out} not finished")
    kept = f" and {outcome.plan.resumed} recorded before" if outcome.plan.resumed else ""
    jobs = f"{count(len(outcome.plan.jobs), 'job')}{kept}"
    return f"{jobs} in {format_duration(outcome.seconds)}: {', '.join(parts) or 'nothing to do'}"


def _finished_document(event: JobFinished) -> dict[str, Any]:
    return {**_trace_document(event.trace), "device": event.device.label, "seconds": round(event.seconds, 4)}


def _trace_document(trace: Trace) -> dict[str, Any]:
    names = {"definition": trace.definition, "solution": trace.solution, "workload": trace.workload.uuid}
    return {**names, **(_verdict(trace, trace.evaluation) if trace.evaluation is not None else {})}


def _verdict(trace: Trace, evaluation: Evaluation) -> dict[str, Any]:
    performance, correctness = evaluation.performance, evaluation.correctness
    interval = read_interval(evaluation)
    return {
        "status": evaluation.status.value,
        "quick": evaluation.is_quick,
        "confirmed": read_measurement(evaluation).is_full,
        "reason": None if performance is not None else reason_of(evaluation),
        "latency_ms": performance.latency_ms if performance is not None else None,
        "interval95_ms": [interval.low_ms, interval.high_ms] if interval is not None else None,
        "interval": interval.kind if interval is not None else None,
        "reference_latency_ms": (performance.reference_latency_ms or None) if performance is not None else None,
        "speedup": measured_speedup(evaluation),
        "timing_caveat": caveat_of(evaluation) if performance is not None else None,
        "timing": asdict(read_timing([evaluation])) if performance is not None else None,
        "baseline": source_of_baseline(evaluation),
        "burst": asdict(read_burst(trace.workload.uuid, read_measurement(evaluation)))
        if performance is not None
        else None,
        "correctness": correctness.to_dict() if correctness is not None else None,
    }


def _names(job: Job) -> dict[str, str]:
    return {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload.uuid}
