"""A run as text and as JSON: its plan beforehand, its verdicts, faults and exit code afterwards.

`run` and `submit` print it. Documents have a version; the tables of verdicts are in `verdicts.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.printable import to_printable
from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import find_misspelt_extras
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, JobsAdded, RunStarted
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import Job, Plan, Skip
from flashinfer_bench.bench.planning.resume import names_of
from flashinfer_bench.cli.exit_codes import FAILED, INTERRUPTED, RAN
from flashinfer_bench.cli.progress import describe_job
from flashinfer_bench.cli.render import Column, count, format_duration, render_table, section, some, wrap_line
from flashinfer_bench.cli.settings import Setting, format_value, resolved_settings, top_settings
from flashinfer_bench.cli.verdicts import render_summary
from flashinfer_bench.data import Evaluation, Trace, TraceSet
from flashinfer_bench.data.measurement import CONFIRMED, NOT_CONFIRMED, read_measurement, tell
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.report.best import best_by_workload
from flashinfer_bench.report.blind import find_blind
from flashinfer_bench.report.intervals import read_interval
from flashinfer_bench.report.summary import PairKey, count_statuses, measured_speedup, summarise
from flashinfer_bench.report.timing import read_timing
from flashinfer_bench.report.verdict import caveat_of, reason_of

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
CACHED: Final = "cached"
SHOWN_JOBS: Final = 3
FAULT_LINES: Final = 20
JobNames = tuple[str, str | None, str]
PLAN_COLUMNS: Final = (*map(Column, ("Definition", "Op type", "Solution", "Author")), Column("Workloads", True))


@dataclass
class RunOutcome:
    """The results of a run so far."""

    plan: Plan
    resumed: list[Trace] = field(default_factory=list)
    """Recorded verdicts of the jobs that a resumed run left out."""
    judged: dict[JobNames, JobFinished] = field(default_factory=dict)
    """Names of a job → its verdict."""
    confirmed: int = 0
    """Recorded verdicts that a confirmation has replaced."""
    faults: list[JobFaulted] = field(default_factory=list)
    """Jobs without a verdict."""
    unconfirmed: list[JobFaulted] = field(default_factory=list)
    """Confirmations that ended without a verdict; the one before counts on."""
    open: int = 0
    """Jobs of the run that have not ended, confirmations included."""
    errors: list[str] = field(default_factory=list)
    """What is broken in what was asked for, a line each."""
    devices: tuple[Device, ...] = ()
    seconds: float = 0.0
    is_interrupted: bool = False

    def observe(self, event: Event) -> None:
        """Keep what the result needs of an event. The verdict of a confirmation replaces the one before."""
        if isinstance(event, RunStarted):
            self.devices = event.devices
        if isinstance(event, RunStarted | JobsAdded):
            self.open += event.jobs
        elif isinstance(event, JobFinished):
            self.open -= 1
            names = names_of(event.trace)
            if event.job.assurance is not None and names not in self.judged:
                left = [trace for trace in self.resumed if names_of(trace) != names]
                self.confirmed += len(self.resumed) - len(left)
                self.resumed = left
            self.judged[names] = event
        elif isinstance(event, JobFaulted):
            self.open -= 1
            job = event.job
            names = job.definition.name, job.solution.name, job.workload.uuid
            is_judged = names in self.judged or any(names_of(trace) == names for trace in self.resumed)
            (self.unconfirmed if job.assurance is not None and is_judged else self.faults).append(event)

    @property
    def finished(self) -> list[JobFinished]:
        """The verdicts of this run, in the order in which their jobs ended first."""
        return list(self.judged.values())

    @property
    def traces(self) -> list[Trace]:
        """All verdicts that count: the recorded ones of jobs that were left out, then those of this run."""
        return [*self.resumed, *(event.trace for event in self.finished)]

    @property
    def left(self) -> int:
        """Jobs of the plan without a verdict."""
        return len(self.plan.jobs) + self.confirmed - len(self.judged)

    @property
    def to_confirm(self) -> int:
        """Confirmations that have begun, or are to, and have not ended."""
        return max(0, self.open - (self.left - len(self.faults)))

    @property
    def is_broken(self) -> bool:
        """Whether something of what was asked for is broken, or lacks its stored inputs."""
        return bool(self.errors) or any(skip.is_fault for skip in self.plan.skips)

    def faulted(self, *, left_out: bool) -> list[JobFaulted]:
        """Return the jobs that could not be judged, or were left out as another one of theirs ran out of time."""
        return [fault for fault in self.faults if fault.is_left_out is left_out]

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

    def expected(self) -> dict[PairKey, list[str]]:
        """Return the workloads that each solution should have a verdict on."""
        uuids: dict[PairKey, list[str]] = {}
        for job in self.plan.jobs:
            uuids.setdefault((job.definition.name, job.solution.name), []).append(job.workload.uuid)
        for trace in self.resumed:
            uuids.setdefault((trace.definition, trace.solution or ""), []).append(trace.workload.uuid)
        return uuids

    def roots(self, trace_set: TraceSet) -> dict[str, Path]:
        """Return solution → the root that its traces of this run went to."""
        names = dict.fromkeys(event.job.solution.name for event in self.finished)
        roots = {name: trace_set.solution_root(name) for name in names}
        return {name: root for name, root in roots.items() if root is not None}


def render_plan(plan: Plan, config: BenchmarkConfig, machine: Machine, width: int) -> str:
    """Lay out what a run will do."""
    rows = [[row.definition, row.op_type, row.solution, row.author, str(row.workloads)] for row in plan.rows()]
    groups: dict[str, list[str]] = {}
    for name, resolved in _configs(plan).items():
        groups.setdefault(_assignments(resolved_settings(resolved)), []).append(name)
    shared = [f"settings of {some(names)}: {values}" for values, names in groups.items()]
    parts = [
        *([render_table(PLAN_COLUMNS, rows, width)] if rows else []),
        *section(describe_skips(plan.skips), width),
        *section([f"settings of the run: {_assignments(_run_settings(config))}", *shared], width),
        "".join(f"{line}\n" for line in describe_plan(plan, machine)),
    ]
    return "\n".join(parts)


def describe_plan(plan: Plan, machine: Machine) -> list[str]:
    """Return how much there is to do and where, what a resumed run leaves out, and what it does again and why."""
    rows = plan.rows()
    of = f"{count(len({row.definition for row in rows}), 'definition')}, {count(len(rows), 'solution')}"
    devices = ", ".join(f"{device.label} ({device.name})" for device in machine.devices)
    skipped = f"; {len(plan.skips)} skipped" if plan.skips else ""
    lines = [f"{count(len(plan.jobs), 'job')} ({of}) on {devices}{skipped}" if rows else f"no job to run{skipped}"]
    if plan.resumed:
        lines.append(f"resume: {count(plan.resumed, 'recorded job')} left out, unchanged since")
    if plan.redone:
        reasons = ", ".join(f"{reason}: {number}" for reason, number in sorted(plan.redone_reasons.items()))
        lines.append(f"resume: {count(plan.redone, 'recorded job')} done again ({reasons})")
    return lines


def describe_odd_keys(plan: Plan) -> list[str]:
    """Return a warning for each key of `extra` that is probably misspelt."""
    return [f"warning: {line}" for line in find_misspelt_extras(_configs(plan).values(), plan.plug_in_keys)]


def describe_skips(skips: Iterable[Skip]) -> list[str]:
    """Return one line per reason, with the first names that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for skip in skips:
        name = " / ".join(part for part in (skip.definition, skip.solution, skip.workload) if part)
        by_reason.setdefault(skip.reason, []).append(name)
    return [f"skipped {some(names)}: {reason}" for reason, names in by_reason.items()]


def plan_document(plan: Plan, config: BenchmarkConfig, machine: Machine) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    return {
        "counts": _plan_counts(plan),
        "devices": _devices(machine.devices),
        "solutions": [asdict(row) for row in plan.rows()],
        "skipped": _skips(plan.skips),
        "settings": {
            "run": {item.name: item.value for item in _run_settings(config)},
            "definitions": {
                name: {item.name: item.value for item in resolved_settings(resolved)}
                for name, resolved in _configs(plan).items()
            },
        },
    }


def render_outcome(outcome: RunOutcome, width: int) -> str:
    """Lay out the table, the reasons of failures, the faults, the skips, and the totals."""
    rows = summarise(outcome.traces, outcome.expected())
    errors = outcome.errors[:FAULT_LINES]
    if len(outcome.errors) > FAULT_LINES:
        errors.append(f"and {count(len(outcome.errors) - FAULT_LINES, 'more error')}")
    broken = [wrap_line(to_printable(line), width, 2) for line in errors]
    title = "Broken in what was asked for (exit code 1; --allow-broken lets it pass)"
    return "\n".join(
        [
            *([render_summary(rows, width)] if rows else []),
            *_faults("No verdict (nothing that a solution did)", outcome.faulted(left_out=False), width),
            *_faults("Left out (--resume judges them)", outcome.faulted(left_out=True), width),
            *_faults("Not confirmed (--resume tries again)", outcome.unconfirmed, width),
            *section(describe_skips(outcome.plan.skips), width),
            *section([f"warning: {output}" for output in find_blind(outcome.traces)], width),
            *section(_describe_origins(outcome), width),
            *(["\n".join([title, *broken, ""])] if broken else []),
            wrap_line(_totals(outcome), width) + "\n",
        ]
    )


def outcome_document(outcome: RunOutcome, trace_set: TraceSet | None) -> dict[str, Any]:
    """Return the outcome as JSON-able values; with a set, the files of it that its traces went to."""
    roots = {} if trace_set is None else outcome.roots(trace_set)
    jobs = {event.job.solution.name: event.job for event in outcome.finished}
    files = [
        traces_path(
            root,
            author=jobs[name].solution.author,
            op_type=jobs[name].definition.op_type,
            definition=jobs[name].definition.name,
        )
        for name, root in roots.items()
    ]
    return {
        "version": FORMAT_VERSION,
        "plan": _plan_counts(outcome.plan),
        "counts": count_statuses(outcome.traces),
        "seconds": round(outcome.seconds, 3),
        "interrupted": outcome.is_interrupted,
        "devices": _devices(outcome.devices),
        "jobs": [
            {**_verdict(one.trace), "device": one.device.label, "seconds": round(one.seconds, 4)}
            for one in outcome.finished
        ],
        "resumed": list(map(_verdict, outcome.resumed)),
        "faults": list(map(_fault, outcome.faulted(left_out=False))),
        "left_out": list(map(_fault, outcome.faulted(left_out=True))),
        "not_confirmed": list(map(_fault, outcome.unconfirmed)),
        "skipped": _skips(outcome.plan.skips),
        "data_errors": outcome.errors,
        "blind": [asdict(output) for output in find_blind(outcome.traces)],
        "trace_files": [str(path) for path in dict.fromkeys(files)],
    }


def _configs(plan: Plan) -> dict[str, ResolvedEvalConfig]:
    """Return the settings of each definition that has jobs."""
    return {job.definition.name: job.config for job in plan.jobs}


def _run_settings(config: BenchmarkConfig) -> list[Setting]:
    """Return the settings that no definition has, without the names that choose jobs."""
    filters = {"definitions", "solutions", "op_types", "authors", "workloads", "devices"}
    own = {name for name in ResolvedEvalConfig.model_fields if name != "profile_baseline"}
    return [item for item in top_settings(config) if item.name.partition(".")[0] not in own | filters]


def _assignments(settings: Sequence[Setting]) -> str:
    return " ".join(f"{item.name}={format_value(item.value)}" for item in settings if item.value is not None)


def _plan_counts(plan: Plan) -> dict[str, Any]:
    numbers = {name: getattr(plan, name) for name in ("resumed", "redone")}
    reasons = dict(plan.redone_reasons)
    return {"jobs": len(plan.jobs), "skipped": len(plan.skips), **numbers, "redone_reasons": reasons}


def _devices(devices: Iterable[Device]) -> list[dict[str, str | None]]:
    return [{"label": device.label, "name": device.name, "uuid": device.uuid} for device in devices]


def _skips(skips: Iterable[Skip]) -> list[dict[str, Any]]:
    names = ("definition", "solution", "workload", "reason")
    return [{name: getattr(skip, name) for name in names} | {"fault": skip.is_fault} for skip in skips]


def _faults(title: str, faults: Iterable[JobFaulted], width: int) -> list[str]:
    """Return a section of jobs without a verdict: each message once and whole, under the jobs that ended with it."""
    groups: dict[str, list[Job]] = {}
    for fault in faults:
        groups.setdefault(fault.message, []).append(fault.job)
    lines = [title] if groups else []
    for message, jobs in groups.items():
        more = [f"and {count(len(jobs) - SHOWN_JOBS, 'more job')}"] if len(jobs) > SHOWN_JOBS else []
        lines += [wrap_line(name, width, 2) for name in [*map(describe_job, jobs[:SHOWN_JOBS]), *more]]
        told = [to_printable(line.rstrip()) for line in message.splitlines() if line.strip()]
        half = FAULT_LINES // 2
        told = told if len(told) <= FAULT_LINES else [*told[:half], "…", *told[-half:]]
        lines += [wrap_line(line.strip(), width, 4 + len(line) - len(line.lstrip())) for line in told]
    return ["\n".join([*lines, ""])] if lines else []


def _describe_origins(outcome: RunOutcome) -> list[str]:
    """Say how many speed-ups stand on times of earlier runs, and of how many workloads the best is confirmed."""
    lines = []
    sources = Counter(source_of_baseline(event.trace.evaluation) for event in outcome.finished)
    if sources[CACHED]:
        total = count(sources[CACHED] + sources["measured"], "speed-up")
        told = f"baseline: cached for {sources[CACHED]} of {total}, by an earlier run on this GPU"
        lines.append(f"{told}; --fresh-baselines times every reference")
    best = [row for row in best_by_workload(outcome.traces) if row.standing in (CONFIRMED, NOT_CONFIRMED)]
    if best:
        confirmed = sum(row.confirmed for row in best)
        lines.append(f"the best is confirmed at full assurance on {confirmed} of {count(len(best), 'workload')}")
    return lines


def source_of_baseline(evaluation: Evaluation | None) -> str | None:
    """Say where the time of the reference comes from: "measured" in this run, or "cached"; None where it has none."""
    record = ((evaluation.extra if evaluation is not None else None) or {}).get("baseline")
    if not isinstance(record, Mapping):
        return None
    return CACHED if record.get("source") == CACHED else "measured"


def _totals(outcome: RunOutcome) -> str:
    left_out = len(outcome.faulted(left_out=True))
    faulted = len(outcome.faulted(left_out=False)) if outcome.is_interrupted else outcome.left - left_out
    parts = {
        **count_statuses(outcome.traces),
        "left out": left_out,
        "without a verdict": faulted,
        "not finished": outcome.left - faulted - left_out,
    }
    told = ", ".join(f"{number} {kind}" for kind, number in parts.items() if number > 0)
    kept = f" and {outcome.plan.resumed} recorded before" if outcome.plan.resumed else ""
    jobs = f"{count(len(outcome.plan.jobs), 'job')}{kept}"
    return f"{jobs} in {format_duration(outcome.seconds)}: {told or 'nothing to do'}"


def _fault(event: JobFaulted) -> dict[str, str]:
    job = event.job
    names = {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload.uuid}
    return {**names, "message": event.message}


def _verdict(trace: Trace) -> dict[str, Any]:
    """Return a verdict as JSON-able values; what a failure has no number for is None."""
    names = {"definition": trace.definition, "solution": trace.solution, "workload": trace.workload.uuid}
    evaluation = trace.evaluation
    if evaluation is None:
        return names
    performance, correctness, interval = evaluation.performance, evaluation.correctness, read_interval(evaluation)
    timed: dict[str, Any] = dict.fromkeys(("latency_ms", "reference_latency_ms", "timing_caveat", "timing"))
    if performance is not None:
        timed = {
            "latency_ms": performance.latency_ms,
            "reference_latency_ms": performance.reference_latency_ms or None,
            "timing_caveat": caveat_of(evaluation),
            "timing": asdict(read_timing([evaluation])),
        }
    return {
        **names,
        "status": evaluation.status.value,
        "quick": tell(evaluation).run.quick,
        "confirmed": read_measurement(evaluation).is_full,
        "reason": None if performance is not None else reason_of(evaluation),
        **timed,
        "interval95_ms": [interval.low_ms, interval.high_ms] if interval is not None else None,
        "interval": interval.kind if interval is not None else None,
        "speedup": measured_speedup(evaluation),
        "baseline": source_of_baseline(evaluation),
        "correctness": correctness.to_dict() if correctness is not None else None,
    }
