"""Renders a run as text and as JSON: the plan before the run, and the verdicts, faults and exit code after the run.

`run` and `submit` print both forms. `RunOutcome` stores the events of a run, and computes numbers from the events on
request. JSON documents have a version. `verdicts.py` has the tables of verdicts.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from flashinfer_bench.base.markdown import make_markdown_table
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, RunStarted
from flashinfer_bench.bench.machine import Device, Machine
from flashinfer_bench.bench.planning.plan import Job, Plan, Skip
from flashinfer_bench.bench.planning.resume import names_of
from flashinfer_bench.cli.github import Annotation, GitHubReport, Level, find_source
from flashinfer_bench.cli.output import FAILED, INTERRUPTED, RAN
from flashinfer_bench.cli.tables import (
    Names,
    count,
    default_columns,
    fill_cell,
    format_duration,
    format_speedup,
    indent_text,
    join_sections,
    lay_out,
    list_counts,
    some,
)
from flashinfer_bench.cli.verdicts import (
    describe_fault,
    describe_job,
    head_of,
    make_grid,
    name_jobs,
    render_grid,
    render_summary,
    summary_cells,
)
from flashinfer_bench.data import LoadIssue, Trace, TraceSet
from flashinfer_bench.data.measurement import CONFIRMED, NOT_CONFIRMED
from flashinfer_bench.data.sets.results import Result, list_results
from flashinfer_bench.data.store.layout import traces_path
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.report.blind import find_blind
from flashinfer_bench.report.changes import SaveChange
from flashinfer_bench.report.intervals import interval_of, mean_speedup
from flashinfer_bench.report.summary import (
    PairKey,
    best_by_workload,
    by_workload,
    count_statuses,
    mean_compile_speedup,
    summarise,
)
from flashinfer_bench.report.timing import count_timing
from flashinfer_bench.report.verdict import caveat_in, reason_of

FORMAT_VERSION: Final = 1
"""Version of the JSON document. 1: the first."""
LOST: Final = {
    "faults": "No verdict (nothing that a solution did)",
    "left_out": "Not judged",
    "not_confirmed": "Not confirmed (--resume tries again)",
}
"""Kind of jobs without a verdict, as in the document → title of the kind in the text."""
STOPPED: Final = "an earlier job did not pass (--fail-fast)"
FEW_SOLUTIONS, FEW_WORKLOADS = 8, 12
"""A run prints its times by workload if it has at most this many solutions and workloads."""
BROKEN: Final = "Broken in what was asked for (exit code 1; --allow-broken lets it pass)"
PLAN_TABLE: Final = {
    "Definition": "{definition}",
    "Op type": "{op_type}",
    "Solution": "{solution}",
    "Author": "{author}",
    "#Workloads": "{workloads}",
}
JobNames = tuple[str, str | None, str]
NAMES: Final = ("definition", "solution", "workload")
"""Keys in a document for the names of a job."""


@dataclass
class RunOutcome:
    """The results of a run so far."""

    plan: Plan
    recorded: list[Trace] = field(default_factory=list)
    """Recorded verdicts of the jobs that a resumed run skipped."""
    judged: dict[JobNames, JobFinished] = field(default_factory=dict)
    """Names of a job → verdict. The verdict of a confirmation replaces the first verdict."""
    faults: list[JobFaulted] = field(default_factory=list)
    """Jobs and confirmations that ended without a verdict. If a confirmation did, the first verdict of its job
    counts."""
    errors: list[str] = field(default_factory=list)
    """Broken parts of the requested set, one line each."""
    devices: tuple[Device, ...] = ()
    seconds: float = 0.0
    is_interrupted: bool = False
    is_stopped: bool = False
    """Whether --fail-fast ended the run."""
    change: SaveChange | None = None
    """With --watch: the change since the previous save that passed."""
    listed: Sequence[Job | AnyTrace] = ()
    """All workloads of the run's definitions, so that a name distinguishes a workload from all others."""

    def stop(self) -> None:
        """Mark the run as stopped by a failure, and mark open jobs as not judged."""
        self.is_stopped = True
        ended = {*self.judged, *(names_of_job(fault.job) for fault in self.faults)}
        left = [job for job in self.plan.jobs if names_of_job(job) not in ended]
        self.faults += [JobFaulted(job, STOPPED, is_left_out=True) for job in left]

    def observe(self, event: Event) -> None:
        """Store an event that the result needs."""
        if isinstance(event, RunStarted):
            self.devices = event.devices
        elif isinstance(event, JobFinished):
            self.judged[names_of_job(event.job)] = event
        elif isinstance(event, JobFaulted):
            self.faults.append(event)

    @property
    def resumed(self) -> list[Trace]:
        """The recorded verdicts that no confirmation has replaced."""
        return [trace for trace in self.recorded if names_of(trace) not in self.judged]

    @property
    def traces(self) -> list[Trace]:
        """All verdicts of the result: the recorded verdicts of skipped jobs, then the verdicts of this run."""
        return [*self.resumed, *(event.trace for event in self.judged.values())]

    @property
    def results(self) -> list[Result]:
        """The rows of `traces`, for reports."""
        return list_results(None, self.traces)

    @property
    def have_all_passed(self) -> bool:
        """Whether all verdicts passed; False without verdicts."""
        traces = self.traces
        return bool(traces) and all(trace.is_successful() for trace in traces)

    @property
    def left(self) -> int:
        """Jobs of the plan without a verdict."""
        return sum(names_of_job(job) not in self.judged for job in self.plan.jobs)

    @property
    def is_broken(self) -> bool:
        """Whether a requested part of the set is broken, or lacks its stored inputs."""
        return bool(self.errors) or any(skip.is_fault for skip in self.plan.skips)

    def lost(self) -> dict[str, list[JobFaulted]]:
        """Return the jobs without a verdict, by the kinds of `LOST`."""
        found: dict[str, list[JobFaulted]] = {kind: [] for kind in LOST}
        for one in self.faults:
            kind = "left_out" if one.is_left_out else "faults"
            found[kind if one.job.assurance is None else "not_confirmed"].append(one)
        return found

    def exit_code(self, *, require_passed: bool, allow_broken: bool = False) -> int:
        """Return 130 after an interrupt. Return 1 if --fail-fast ended the run, if a job has no verdict, or if a
        requested part of the set is broken. Otherwise return 0.

        With `require_passed`, also return 1 if a job did not pass, or if there is no verdict. With `allow_broken`,
        broken data is no failure. If there is broken data, jobs without a verdict are no failures either.
        """
        if self.is_interrupted:
            return INTERRUPTED
        if self.is_stopped:
            return FAILED
        has_faults = (self.left or self.is_broken) and not (allow_broken and self.is_broken)
        return FAILED if has_faults or (require_passed and not self.have_all_passed) else RAN

    def expected(self) -> dict[PairKey, dict[str, float]]:
        """Return (definition, solution) → uuid → weight of the workloads that need a verdict."""
        found: defaultdict[PairKey, dict[str, float]] = defaultdict(dict)
        for job in self.plan.jobs:
            found[job.definition.name, job.solution.name][job.workload.uuid] = job.workload.weight
        for trace in self.resumed:
            found[trace.definition, trace.solution or ""][trace.workload.uuid] = trace.workload.weight
        return found

    def names(self) -> Names:
        """Return the names of all workloads in the run's jobs and traces."""
        return name_jobs([*self.plan.jobs, *self.traces, *self.listed])

    def files(self, trace_set: TraceSet) -> list[str]:
        """Return the files of a set that got the traces of this run."""
        pairs = dict.fromkeys((definition, solution or "") for definition, solution, _ in self.judged)
        files = dict.fromkeys(find_trace_file(trace_set, *pair) for pair in pairs)
        return [str(file) for file in files if file is not None]


def render_plan(plan: Plan, machine: Machine) -> str:
    """Render the plan of a run."""
    return join_sections(lay_out(PLAN_TABLE, plan.rows()), describe_skips(plan.skips), describe_plan(plan, machine))


def describe_plan(plan: Plan, machine: Machine) -> list[str]:
    """Return lines for the number of jobs, the devices, and the skipped and repeated jobs of a resumed run."""
    rows = plan.rows()
    of = f"{count(len({row.definition for row in rows}), 'definition')}, {count(len(rows), 'solution')}"
    devices = ", ".join(f"{device.label} ({device.name})" for device in machine.devices)
    skipped = f"; {len(plan.skips)} skipped" if plan.skips else ""
    lines = [f"{count(len(plan.jobs), 'job')} ({of}) on {devices}{skipped}" if rows else f"no job to run{skipped}"]
    if plan.resumed:
        lines.append(f"resume: {count(plan.resumed, 'recorded job')} skipped, unchanged since")
    if plan.redone:
        reasons = ", ".join(f"{reason}: {number}" for reason, number in sorted(plan.redone_reasons.items()))
        lines.append(f"resume: {count(plan.redone, 'recorded job')} done again ({reasons})")
    return lines


def describe_skips(skips: Iterable[Skip]) -> list[str]:
    """Return one line per reason, with the first skipped names."""
    by_reason = defaultdict(list)
    for skip in skips:
        by_reason[skip.reason].append(" / ".join(filter(None, (skip.definition, skip.solution, skip.workload))))
    return [f"skipped {some(names)}: {reason}" for reason, names in by_reason.items()]


def plan_document(plan: Plan, machine: Machine) -> dict[str, Any]:
    """Return the plan as JSON-able values."""
    return {
        "counts": _plan_counts(plan),
        "devices": _devices(machine.devices),
        "solutions": [asdict(row) for row in plan.rows()],
        "skipped": _skips(plan.skips),
    }


def render_outcome(outcome: RunOutcome) -> str:
    """Render the table, the reasons of failures, the faults, the skips, and the totals."""
    traces, results, lost = outcome.traces, outcome.results, outcome.lost()
    notes = [*describe_skips(outcome.plan.skips), *(f"warning: {output}" for output in find_blind(traces))]
    sources = Counter(_source_of_baseline(event.trace) for event in outcome.judged.values())
    if cached := sources["cached"]:
        of = f"{cached} of {count(cached + sources['measured'], 'speed-up')}"
        notes.append(
            f"baseline: cached for {of}, by an earlier run on this GPU; --fresh-baselines times every reference"
        )
    best = [row.standing for row in best_by_workload(results) if row.standing in (CONFIRMED, NOT_CONFIRMED)]
    if best:  # the best results on a CPU cannot be confirmed
        confirmed = f"{best.count(CONFIRMED)} of {count(len(best), 'workload')}"
        notes.append(f"the best is confirmed at full assurance on {confirmed}")
    notes += describe_compiled(results)
    open_jobs = outcome.left - len(lost["left_out"])
    faulted = len(lost["faults"]) if outcome.is_interrupted else open_jobs
    ended = {"not judged": len(lost["left_out"]), "without a verdict": faulted, "not finished": open_jobs - faulted}
    kept = f", {outcome.plan.resumed} recorded before" if outcome.plan.resumed else ""
    total = f"{count(len(outcome.plan.jobs), 'job')} in {format_duration(outcome.seconds)}{kept}: "
    total += list_counts(count_statuses(results) | ended) or "nothing to do"
    rows, names = summarise(results, outcome.expected()), outcome.names()
    return join_sections(
        render_summary(rows, names) if rows else "",
        _render_times(outcome, names),
        *([LOST[kind], *_list_reasons(faults, names)] for kind, faults in lost.items() if faults),
        notes,
        [BROKEN, *indent_text("\n".join(outcome.errors), 2)] if outcome.errors else [],
        [total, *([str(outcome.change)] if outcome.change is not None else [])],
    )


def describe_compiled(results: Iterable[Result]) -> list[str]:
    """Return a line about references under torch.compile; empty if none was requested."""
    timed = [item for item in results if item.is_passed and item.reported.baseline_compile.mode]
    if not timed:
        return []
    known = mean_compile_speedup(timed)
    records = [item.reported.baseline_compile for item in timed]
    reasons = Counter(record.reason for record in records if record.reason)
    parts = [f"{number} without a time: {reason}" for reason, number in reasons.items()]
    if known is not None:
        number = len(timed) - reasons.total()
        parts.insert(0, f"{format_speedup(known)} on {count(number, 'verdict')} (geometric mean)")
    return [f"speed-up over torch.compile ({records[0].mode}): {'; '.join(parts)}"]


def annotate_outcome(
    report: GitHubReport,
    outcome: RunOutcome,
    issues: Iterable[LoadIssue],
    trace_set: TraceSet,
    files: Mapping[str, Path],
    args: Namespace,
) -> None:
    """Add a run to a report for GitHub. A problem that makes the exit code 1 becomes an error. All remaining problems
    become warnings.

    Args:
        report: the report.
        outcome: the run.
        issues: broken parts of the requested set.
        trace_set: the set that was judged.
        files: name of a solution → source file, folder of sources, or JSON file.
        args: the arguments of the command.
    """
    failed: Level = "error" if args.require_passed or outcome.is_stopped else "warning"
    broken: Level = "warning" if args.allow_broken and outcome.is_broken else "error"
    rows, found = summarise(outcome.results, outcome.expected()), report.annotations
    for row in rows:
        for alike in row.failures:
            text = f"{alike.status} on {len(alike.workloads)} of {count(row.judged, 'workload')}: {alike.reason}"
            at = find_source(trace_set.get_solution(row.solution), files.get(row.solution), alike.reason)
            found.append(Annotation(failed, text, f"{row.solution} of {row.definition}", *at, len(alike.workloads)))
    found += [Annotation(broken, issue.text, "", issue.file, issue.line) for issue in issues]
    found += [Annotation(broken, skip.reason, skip.definition) for skip in outcome.plan.skips if skip.is_fault]
    for kind, faults in outcome.lost().items():
        if reasons := _list_reasons(faults, outcome.names()):
            level: Level = "warning" if kind == "not_confirmed" else broken
            found.append(Annotation(level, "\n".join(reasons), LOST[kind], weight=len(faults)))
    report.count = list_counts(count_statuses(outcome.results) | {"without a verdict": outcome.left})
    cells = default_columns(summary_cells(rows))
    table = make_markdown_table(list(cells), ([fill_cell(cell, row) for cell in cells.values()] for row in rows))
    head = "".join(f"#### {line}\n\n" for line in head_of(row.standing for row in rows))
    report.summary = f"{head}{table}\n{report.count}"


def _render_times(outcome: RunOutcome, names: Names) -> str:
    """Render the times by workload for a terminal, if one definition was run and the table is small."""
    counts = [len(set(column)) for column in zip(*map(names_of, outcome.traces), strict=True)]
    if not sys.stdout.isatty() or not counts or counts[0] > 1 or counts[1] > FEW_SOLUTIONS:
        return ""
    rows = by_workload(outcome.results)
    return render_grid(rows, *make_grid(rows, names)) if 1 < counts[2] <= FEW_WORKLOADS else ""


def outcome_document(outcome: RunOutcome, trace_set: TraceSet | None) -> dict[str, Any]:
    """Return the outcome as JSON-able values. With a set, include the files that got the traces."""
    return {
        "version": FORMAT_VERSION,
        "plan": _plan_counts(outcome.plan),
        "counts": count_statuses(outcome.results),
        "seconds": round(outcome.seconds, 3),
        "interrupted": outcome.is_interrupted,
        "devices": _devices(outcome.devices),
        "jobs": [
            {**_verdict(one.trace), "device": one.device.label, "seconds": round(one.seconds, 4)}
            for one in outcome.judged.values()
        ],
        "resumed": list(map(_verdict, outcome.resumed)),
        **{
            kind: [dict(zip((*NAMES, "message"), (*names_of_job(one.job), one.message), strict=True)) for one in faults]
            for kind, faults in outcome.lost().items()
        },
        "skipped": _skips(outcome.plan.skips),
        "data_errors": outcome.errors,
        "blind": [asdict(output) for output in find_blind(outcome.traces)],
        "trace_files": [] if trace_set is None else outcome.files(trace_set),
        **({"change": outcome.change.document()} if outcome.change is not None else {}),
    }


def find_trace_file(trace_set: TraceSet, definition: str, solution: str) -> Path | None:
    """Return the file of a set for the traces of a solution; None for a set in memory."""
    root, known = trace_set.solution_root(solution), trace_set.get_solution(solution)
    if root is None or known is None:
        return None
    op_type = trace_set.definitions[definition].op_type
    return traces_path(root, author=known.author, op_type=op_type, definition=definition)


def names_of_job(job: Job) -> JobNames:
    """Return the definition's name, the solution's name, and the workload's uuid."""
    return job.definition.name, job.solution.name, job.workload.uuid


def _plan_counts(plan: Plan) -> dict[str, Any]:
    counts = {"resumed": plan.resumed, "redone": plan.redone, "redone_reasons": dict(plan.redone_reasons)}
    return {"jobs": len(plan.jobs), "skipped": len(plan.skips), **counts}


def _devices(devices: Iterable[Device]) -> list[dict[str, str | None]]:
    return [{"label": device.label, "name": device.name, "uuid": device.uuid} for device in devices]


def _skips(skips: Iterable[Skip]) -> list[dict[str, Any]]:
    return [{name.removeprefix("is_"): value for name, value in asdict(skip).items()} for skip in skips]


def _list_reasons(faults: Iterable[JobFaulted], names: Names) -> list[str]:
    """Return each message once, below the names of its jobs."""
    groups, lines = defaultdict(list), []
    for fault in faults:
        groups[describe_fault(fault, names)].append(describe_job(fault.job, names))
    for message, jobs in groups.items():
        lines += [f"  {some(jobs)}", *indent_text(message, 4)]
    return lines


def _source_of_baseline(trace: Trace) -> str | None:
    """Return the source of the reference's time: "measured" in this run, or "cached"; None if there is no time."""
    record = (getattr(trace.evaluation, "extra", None) or {}).get("baseline")
    if not isinstance(record, dict):
        return None
    return "cached" if record.get("source") == "cached" else "measured"


def _verdict(trace: Trace) -> dict[str, Any]:
    """Return a verdict as JSON-able values. Missing numbers of a failure are None."""
    (item,) = list_results(None, [trace])
    evaluation, reported, interval, speedup = item.evaluation, item.reported, interval_of(item), mean_speedup([item])
    performance, compiled = evaluation.performance, reported.baseline_compile
    correctness: Any = evaluation.correctness
    return {
        **dict(zip(NAMES, names_of(trace), strict=True)),
        "status": item.status,
        "quick": reported.run.quick,
        "confirmed": item.measurement.is_full,
        "reason": None if performance else reason_of(evaluation),
        "latency_ms": performance and performance.latency_ms,
        "reference_latency_ms": (performance and performance.reference_latency_ms) or None,
        "timing_caveat": performance and caveat_in(item.measurement),
        "timing": performance and asdict(count_timing([reported])),
        "interval95_ms": interval and [interval.low_ms, interval.high_ms],
        "interval": interval and interval.kind,
        "speedup": speedup and speedup.value,
        "speedup_interval95": speedup and speedup.interval,
        "baseline": _source_of_baseline(trace),
        "baseline_compile": structs.asdict(compiled) if compiled.mode else None,
        "correctness": correctness and correctness.to_dict(),
    }
