"""The checks that judge: `baseline` each reference on its workloads, `benchmark` the solutions of one author.

Both go through the engine: sessions call references, and workers run solutions, behind their walls. A reference is
judged as a solution too, against itself: so an input or output that does not fit shows before anybody is judged by it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, Notice
from flashinfer_bench.bench.planning.plan import Plan
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.render import count
from flashinfer_bench.cli.sets.validate.validation import NO_VERDICT, PASSED, Check, CheckedIssue, TriedJob
from flashinfer_bench.data import (
    BuildSpec,
    Definition,
    Evaluation,
    EvaluationStatus,
    LoadIssue,
    Solution,
    SourceFile,
    SupportedLanguages,
    Trace,
    TraceSet,
)
from flashinfer_bench.data.issue import Severity
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.report.verdict import first_reason, reason_of

REFERENCE_AUTHOR: Final = "reference"
JOB_LIMIT_S: Final = 300.0
"""Seconds on a GPU for one solution on one workload; a slower one is an error."""
CPU_JOB_LIMIT_S: Final = 900.0
"""Seconds on a CPU. A reference that takes longer there is a warning: it may be written for a GPU, and right."""
CHECK_LIMIT_S: Final = 1800.0
"""Seconds for one check; jobs that are left then are told, and not judged."""
TOLD_EVERY_S: Final = 60.0
"""Seconds between two lines that say how far a check is."""
QUICKLY: Final = {
    "warmup_runs": 0,
    "iterations": 1,
    "num_trials": 1,
    "time_budget_s": 1.0,
    "profile_baseline": False,
}
"""Settings: each solution is judged once, and its time is nobody's business."""
BY_NAME: Final = """\
from reference import run as reference

INPUTS = {inputs!r}


def run(*inputs):
    given = dict(zip(INPUTS, inputs))
    return reference(*(given[name] for name in {positional!r}), **{{name: given[name] for name in {keywords!r}}})
"""

EngineFactory = Callable[[TraceSet, BenchmarkConfig], Benchmark]


@dataclass
class JudgedSet:
    """What a check that judges has found so far."""

    jobs: list[TriedJob] = field(default_factory=list)
    issues: list[CheckedIssue] = field(default_factory=list)
    limit_s: float = JOB_LIMIT_S
    """Seconds that a job may take."""
    is_on_cpu: bool = False


def judge_references(trace_set: TraceSet, *, cpu_only: bool, make_engine: EngineFactory = Benchmark) -> JudgedSet:
    """Judge the reference of each definition on all its workloads."""
    runnable = {name: item for name, item in trace_set.definitions.items() if item.is_runnable}
    solutions = {name: [pack_reference(item)] for name, item in runnable.items()}
    judged_set = replace(trace_set, solutions=solutions, traces={})
    # Against itself a reference shows nothing on other scales, or with more draws.
    rules = {"regimes_rule": False, "power_rule": False}
    return _judge("baseline", judged_set, _config(cpu_only, **rules), make_engine)


def judge_baselines(
    trace_set: TraceSet, *, author: str, cpu_only: bool, make_engine: EngineFactory = Benchmark
) -> JudgedSet:
    """Judge the solutions of the author of baselines on all workloads."""
    by_author = {name: [item for item in items if item.author == author] for name, items in trace_set.solutions.items()}
    judged_set = replace(trace_set, solutions=by_author, traces={})
    return _judge("benchmark", judged_set, _config(cpu_only), make_engine)


def pack_reference(definition: Definition) -> Solution:
    """Make a solution of a reference: as it stands where it takes the inputs in their order."""
    call = definition.reference_call
    sources = {"main.py": definition.reference}
    if call is not None and not definition.takes_inputs_in_order:
        adapter = BY_NAME.format(inputs=tuple(definition.inputs), **call._asdict())
        sources = {"reference.py": definition.reference, "main.py": adapter}
    return Solution(
        name=f"{definition.name}__{REFERENCE_AUTHOR}",
        definition=definition.name,
        author=REFERENCE_AUTHOR,
        sources=[SourceFile(path=path, content=content) for path, content in sources.items()],
        spec=BuildSpec(
            language=SupportedLanguages.PYTHON,
            target_hardware=["any"],
            entry_point="main.py::run",
            destination_passing_style=False,
        ),
    )


def _config(cpu_only: bool, **rules: bool) -> BenchmarkConfig:
    settings: dict[str, Any] = {**QUICKLY, **rules, "devices": ["cpu"] if cpu_only else None}
    return BenchmarkConfig.default(**settings)


def _judge(check: Check, trace_set: TraceSet, config: BenchmarkConfig, make_engine: EngineFactory) -> JudgedSet:
    """Judge what is in a set, and stop when the check has taken its time."""
    judged = JudgedSet()
    pairs = {name for name in trace_set.definitions if trace_set.solutions.get(name) and trace_set.workloads.get(name)}
    if not pairs:
        return judged
    try:
        engine = make_engine(_without_others(trace_set, pairs), config)
        judged.is_on_cpu = all(device.kind == "cpu" for device in engine.machine.devices)
        judged.limit_s = CPU_JOB_LIMIT_S if judged.is_on_cpu else JOB_LIMIT_S
        engine.config.timeout_seconds = judged.limit_s
        plan = engine.plan()
    except ConfigError as error:  # what the set says of its tolerances: the check `definition` tells where
        judged.issues += [_issue(check, trace_set, "not judged", line) for line in str(error).splitlines()]
        return judged
    for skip in plan.skips:
        severity: Severity = "error" if skip.is_fault else "warning"
        judged.issues.append(_issue(check, trace_set, skip.definition, f"not judged: {skip.reason}", severity))
    where = ", ".join(f"{device.label} ({device.name})" for device in engine.machine.devices)
    write_err(f"{check}: {count(len(plan.jobs), 'job')} on {where}")
    began = told = time.monotonic()
    events = engine.run(plan, save_results=False)
    try:
        for event in events:
            _take(event, check, trace_set, judged)
            now = time.monotonic()
            if now - began > CHECK_LIMIT_S:
                break
            if now - told > TOLD_EVERY_S:
                write_err(f"{check}: {len(judged.jobs)} of {count(len(plan.jobs), 'job')}")
                told = now
    except Fault as fault:
        judged.issues += [_issue(check, trace_set, "given up", line) for line in str(fault).splitlines()]
    finally:
        if isinstance(events, Generator):
            events.close()
    judged.issues += _tell_left(check, trace_set, plan, judged)
    return judged


def _take(event: Event, check: Check, trace_set: TraceSet, judged: JudgedSet) -> None:
    """Note what an event tells: a verdict, a fault, or something for people."""
    match event:
        case JobFinished(job, Trace(evaluation=Evaluation() as evaluation), _, seconds):
            status, reason = evaluation.status.value, reason_of(evaluation)
            is_out_of_time, is_left_out = evaluation.status is EvaluationStatus.TIMEOUT, False
        case JobFaulted(job, message, is_out_of_time, is_left_out):
            status, reason, seconds = NO_VERDICT, first_reason(message), 0.0
        case Notice(message):
            write_err(message)
            return
        case _:
            return
    names = {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload.uuid}
    judged.jobs.append(TriedJob(check=check, status=status, seconds=round(max(seconds, 0.0), 3), **names))
    if status != PASSED:
        who = "the reference" if check == "baseline" else f"solution {job.solution.name!r}"
        told = f"{who} on workload {job.workload.uuid}: {status}: {reason}"
        severity: Severity = "error"
        if is_out_of_time and check == "baseline" and judged.is_on_cpu:
            told = f"not judged: {who} takes longer than {judged.limit_s:g} s on a CPU, on workload {job.workload.uuid}"
            told, severity = f"{told}; that is no fault, a GPU may tell more", "warning"
        elif is_left_out:  # the job that ran out of time has told what is wrong
            told, severity = f"not judged: {who} on workload {job.workload.uuid}: {reason}", "warning"
        judged.issues.append(_issue(check, trace_set, job.definition.name, told, severity))


def _without_others(trace_set: TraceSet, names: set[str]) -> TraceSet:
    kept = {name: item for name, item in trace_set.definitions.items() if name in names}
    return replace(trace_set, definitions=kept, solutions={name: trace_set.solutions[name] for name in kept})


def _tell_left(check: Check, trace_set: TraceSet, plan: Plan, judged: JudgedSet) -> Iterator[CheckedIssue]:
    done = Counter(job.definition for job in judged.jobs)
    planned = Counter(job.definition.name for job in plan.jobs)
    for name, left in (planned - done).items():
        reason = f"{left} of {count(planned[name], 'job')} not judged; a check ends after {CHECK_LIMIT_S:.0f} s"
        yield _issue(check, trace_set, name, reason, "warning")


def _issue(check: Check, trace_set: TraceSet, name: str, reason: str, severity: Severity = "error") -> CheckedIssue:
    file = trace_set.definition_files.get(name, trace_set.root or Path())
    return CheckedIssue.of(check, LoadIssue(severity, file, None, None, f"{name}: {reason}"))
