"""The checks of `validate` that judge. `baseline` judges each reference on its workloads. `benchmark` judges the
solutions of one author.

Both checks use the engine: sessions call references, and workers run solutions in a sandbox. `baseline` judges each
reference as a solution, against itself. This check finds wrong inputs and outputs before they affect a verdict.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import JobFaulted, JobFinished, Notice
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.tables import count
from flashinfer_bench.cli.verdicts import ENDED
from flashinfer_bench.data import BuildSpec, Definition, LoadIssue, Solution, SourceFile, SupportedLanguages, TraceSet
from flashinfer_bench.data.issue import Severity
from flashinfer_bench.data.store.skeletons import make_reference_text
from flashinfer_bench.errors import ConfigError, Fault
from flashinfer_bench.report.verdict import first_reason, reason_of

JOB_LIMIT_S: Final = 900.0
"""Seconds for one solution on one workload. The limit is long because a right reference may be slow on a CPU."""
QUICKLY: Final = {"warmup_runs": 0, "iterations": 1, "num_trials": 1, "time_budget_s": 1.0, "profile_baseline": False}
"""Settings of a check: each solution is judged once, and its time does not matter."""
AGAINST_ITSELF: Final = {"regimes_rule": False, "power_rule": False}
"""Settings of `baseline`. Stress cases and repeated draws are off, since they find no bug if a reference is compared
with itself."""


def judge_set(
    check: str, trace_set: TraceSet, *, author: str, cpu_only: bool
) -> tuple[list[dict[str, Any]], list[LoadIssue]]:
    """Run a check that judges. Return the jobs for the report, and the issues.

    Args:
        check: "baseline" or "benchmark".
        trace_set: the set with the definitions, and with the solutions of the author.
        author: the author whose solutions `benchmark` judges.
        cpu_only: use no GPU.
    """
    is_baseline = check == "baseline"
    jobs: list[dict[str, Any]] = []
    issues: list[LoadIssue] = []

    def add(name: str, reason: str, severity: Severity = "error") -> None:
        file = trace_set.definition_files.get(name, trace_set.root or Path())
        issues.append(LoadIssue(severity, file, None, None, f"{name}: {reason}"))

    def add_job(event: JobFinished | JobFaulted) -> None:
        name, solution, uuid = event.job.definition.name, event.job.solution.name, event.job.workload.uuid
        subject = f"{'the reference' if is_baseline else f'solution {solution!r}'} on workload {uuid}"
        is_late = is_left_out = False
        if isinstance(event, JobFaulted):
            status, reason, seconds = ENDED["FAULT"], first_reason(event.message), 0.0
            is_late, is_left_out = event.is_out_of_time, event.is_left_out
        else:
            evaluation: Any = event.trace.evaluation
            status, reason, seconds = evaluation.status.value, reason_of(evaluation), event.seconds
            is_late = status == "TIMEOUT"
        names = {"definition": name, "solution": solution, "workload": uuid}
        jobs.append({"check": check, **names, "status": status, "seconds": round(max(seconds, 0.0), 3)})
        if is_late and is_on_cpu and is_baseline:
            slow = f"not judged: {subject} takes longer than {JOB_LIMIT_S:g} s on a CPU"
            add(name, f"{slow}; that is no fault, a GPU may tell more", "warning")
        elif is_left_out:  # the job that timed out has the reason already
            add(name, f"not judged: {subject}: {reason}", "warning")
        elif status != "PASSED":
            add(name, f"{subject}: {status}: {reason}")

    solutions = {}
    for name, definition in trace_set.definitions.items():
        if trace_set.workloads.get(name) and (definition.is_runnable or not is_baseline):
            listed = trace_set.solutions.get(name, [])
            solutions[name] = (
                [pack_reference(definition)] if is_baseline else [one for one in listed if one.author == author]
            )
    definitions = {name: trace_set.definitions[name] for name, group in solutions.items() if group}
    if not definitions:
        return jobs, issues
    settings: dict[str, Any] = {**QUICKLY, "devices": ["cpu"] if cpu_only else None, "timeout_seconds": JOB_LIMIT_S}
    try:
        judged = replace(trace_set, definitions=definitions, solutions=solutions, traces={})
        config = BenchmarkConfig.default(**settings, **(AGAINST_ITSELF if is_baseline else {}))
        engine = Benchmark(judged, config)
        plan = engine.plan()
    except ConfigError as error:  # the check `definition` reports the file of a wrong tolerance
        for line in str(error).splitlines():
            add("not judged", line)
        return jobs, issues
    for skip in plan.skips:
        add(skip.definition, f"not judged: {skip.reason}", "error" if skip.is_fault else "warning")
    devices = engine.machine.devices
    is_on_cpu = all(device.kind == "cpu" for device in devices)
    where = ", ".join(f"{device.label} ({device.name})" for device in devices)
    write_err(f"{check}: {count(len(plan.jobs), 'job')} on {where}")
    events: Any = engine.run(plan, save_results=False)
    try:
        with closing(events):
            for event in events:
                if isinstance(event, Notice):
                    write_err(event.message)
                elif isinstance(event, JobFinished | JobFaulted):
                    add_job(event)
    except Fault as fault:
        add("given up", first_reason(str(fault)))
    return jobs, issues


def pack_reference(definition: Definition) -> Solution:
    """Make a solution from a reference. The source stays the same if `run` takes the inputs in order."""
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
