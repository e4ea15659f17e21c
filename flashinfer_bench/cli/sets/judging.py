"""The checks of `validate` that judge: `baseline` each reference on its workloads, `benchmark` one author's solutions.

Both go through the engine: sessions call references, and workers run solutions in their sandbox. A reference is judged
as a solution too, against itself: an input or output that does not fit shows before any solution is judged by it.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.render import count
from flashinfer_bench.data import BuildSpec, Definition, LoadIssue, Solution, SourceFile, SupportedLanguages, TraceSet
from flashinfer_bench.data.issue import Severity
from flashinfer_bench.data.store.skeletons import make_reference_text
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.report.verdict import first_reason, reason_of

PASSED: Final = "PASSED"
NO_VERDICT: Final = "NO VERDICT"
"""In place of a status: the job ended with a fault."""
JOB_LIMIT_S: Final = 300.0
"""Seconds on a GPU for one solution on one workload; a slower one is an error."""
CPU_JOB_LIMIT_S: Final = 900.0
"""Seconds on a CPU. A slower reference is a warning there: it may be written for a GPU, and right."""
CHECK_LIMIT_S: Final = 1800.0
"""Seconds for one check; jobs that are left then are reported, and not judged."""
QUICKLY: Final = {"warmup_runs": 0, "iterations": 1, "num_trials": 1, "time_budget_s": 1.0, "profile_baseline": False}
"""Settings: each solution is judged once, and its time does not matter."""


def judge_set(
    check: str, trace_set: TraceSet, *, author: str, cpu_only: bool
) -> tuple[list[dict[str, Any]], list[LoadIssue]]:
    """Return what a check that judges has found: its jobs as in a report, and issues.

    Args:
        check: "baseline" or "benchmark".
        trace_set: has the definitions, and the solutions of the author in question.
        author: whose solutions `benchmark` judges.
        cpu_only: use no GPU.
    """
    is_baseline = check == "baseline"
    jobs: list[dict[str, Any]] = []
    issues: list[LoadIssue] = []

    def add(name: str, reason: str, severity: Severity = "error") -> None:
        file = trace_set.definition_files.get(name, trace_set.root or Path())
        issues.append(LoadIssue(severity, file, None, None, f"{name}: {reason}"))

    solutions = {
        name: [pack_reference(item)] if is_baseline else [one for one in group if one.author == author]
        for name, item in trace_set.definitions.items()
        for group in (trace_set.solutions.get(name, []),)
        if trace_set.workloads.get(name) and (item.is_runnable or not is_baseline)
    }
    definitions = {name: trace_set.definitions[name] for name, group in solutions.items() if group}
    if not definitions:
        return jobs, issues
    # Against itself a reference shows nothing on other scales, or with more draws.
    rules = {"regimes_rule": False, "power_rule": False} if is_baseline else {}
    settings: dict[str, Any] = {**QUICKLY, **rules, "devices": ["cpu"] if cpu_only else None}
    try:
        judged = replace(trace_set, definitions=definitions, solutions=solutions, traces={})
        engine = Benchmark(judged, BenchmarkConfig.default(**settings))
        is_on_cpu = all(device.kind == "cpu" for device in engine.machine.devices)
        engine.config.timeout_seconds = CPU_JOB_LIMIT_S if is_on_cpu else JOB_LIMIT_S
        plan = engine.plan()
    except ConfigError as error:  # what the set says of its tolerances: the check `definition` tells where
        for line in str(error).splitlines():
            add("not judged", line)
        return jobs, issues
    for skip in plan.skips:
        add(skip.definition, f"not judged: {skip.reason}", "error" if skip.is_fault else "warning")
    where = ", ".join(f"{device.label} ({device.name})" for device in engine.machine.devices)
    write_err(f"{check}: {count(len(plan.jobs), 'job')} on {where}")
    left = Counter(job.definition.name for job in plan.jobs)
    ends = time.monotonic() + CHECK_LIMIT_S
    events: Any = engine.run(plan, save_results=False)
    try:
        for event in events:
            if isinstance(event, Notice):
                write_err(event.message)
            elif isinstance(event, JobFinished | JobFaulted):
                job = event.job
                status, reason, seconds = NO_VERDICT, "", 0.0
                if isinstance(event, JobFaulted):
                    reason = first_reason(event.message)
                elif (evaluation := event.trace.evaluation) is not None:
                    status, reason, seconds = evaluation.status.value, reason_of(evaluation), max(event.seconds, 0.0)
                name, solution, uuid = job.definition.name, job.solution.name, job.workload.uuid
                left[name] -= 1
                names = {"definition": name, "solution": solution, "workload": uuid}
                jobs.append({"check": check, **names, "status": status, "seconds": round(seconds, 3)})
                who = f"{'the reference' if is_baseline else f'solution {solution!r}'} on workload {uuid}"
                if is_on_cpu and is_baseline and (status == "TIMEOUT" or getattr(event, "is_out_of_time", False)):
                    late = f"not judged: {who} takes longer than {CPU_JOB_LIMIT_S:g} s on a CPU"
                    add(name, f"{late}; that is no fault, a GPU may tell more", "warning")
                elif getattr(event, "is_left_out", False):  # the job that ran out of time has told what is wrong
                    add(name, f"not judged: {who}: {reason}", "warning")
                elif status != PASSED:
                    add(name, f"{who}: {status}: {reason}")
            if time.monotonic() > ends:
                break
    except Fault as fault:
        for line in str(fault).splitlines():
            add("given up", line)
    finally:
        events.close()
    for name, number in (+left).items():
        more = f"{number} of {count(sum(job.definition.name == name for job in plan.jobs), 'job')}"
        add(name, f"{more} not judged; a check ends after {CHECK_LIMIT_S:.0f} s", "warning")
    return jobs, issues


def pack_reference(definition: Definition) -> Solution:
    """Make a solution of a reference: as it stands if it takes the inputs in their order."""
    return Solution(
        name=f"{definition.name}__reference",
        definition=definition.name,
        author="reference",
        sources=[SourceFile(path="main.py", content=make_reference_text(definition))],
        spec=BuildSpec(
            language=SupportedLanguages.PYTHON,
            target_hardware=["any"],
            entry_point="main.py::run",
            destination_passing_style=False,
        ),
    )
