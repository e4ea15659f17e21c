"""The checks of `validate` that judge: `baseline` each reference on its workloads, `benchmark` one author's solutions.

Both go through the engine: sessions call references, and workers run solutions in their sandbox. A reference is judged
as a solution too, against itself: an input or output that does not fit shows before any solution is judged by it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.bench.benchmark import Benchmark
from flashinfer_bench.bench.config import BenchmarkConfig
from flashinfer_bench.bench.events import Event, JobFaulted, JobFinished, Notice
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.progress import RunProgress
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


class JudgedSet:
    """What a check that judges has found: `jobs` as in its report, and issues.

    Args:
        check: "baseline" or "benchmark".
        trace_set: has the definitions, and the solutions of the author in question.
        author: whose solutions `benchmark` judges.
        cpu_only: use no GPU.
    """

    def __init__(self, check: str, trace_set: TraceSet, *, author: str, cpu_only: bool) -> None:
        self.check = check
        self.jobs: list[dict[str, Any]] = []
        self.issues: list[LoadIssue] = []
        self._set = trace_set
        self._is_on_cpu = False
        solutions = {
            name: [pack_reference(item)] if check == "baseline" else [one for one in group if one.author == author]
            for name, item in trace_set.definitions.items()
            for group in (trace_set.solutions.get(name, []),)
            if trace_set.workloads.get(name) and (item.is_runnable or check != "baseline")
        }
        solutions = {name: group for name, group in solutions.items() if group}
        definitions = {name: trace_set.definitions[name] for name in solutions}
        if solutions:
            # Against itself a reference shows nothing on other scales, or with more draws.
            rules = {"regimes_rule": False, "power_rule": False} if check == "baseline" else {}
            settings: dict[str, Any] = {**QUICKLY, **rules, "devices": ["cpu"] if cpu_only else None}
            judged = replace(trace_set, definitions=definitions, solutions=solutions, traces={})
            self._judge(judged, BenchmarkConfig.default(**settings))

    def _judge(self, trace_set: TraceSet, config: BenchmarkConfig) -> None:
        """Judge what is in a set, and stop when the check has taken its time."""
        try:
            engine = Benchmark(trace_set, config)
            self._is_on_cpu = all(device.kind == "cpu" for device in engine.machine.devices)
            engine.config.timeout_seconds = CPU_JOB_LIMIT_S if self._is_on_cpu else JOB_LIMIT_S
            plan = engine.plan()
        except ConfigError as error:  # what the set says of its tolerances: the check `definition` tells where
            for line in str(error).splitlines():
                self._add("not judged", line)
            return
        for skip in plan.skips:
            self._add(skip.definition, f"not judged: {skip.reason}", "error" if skip.is_fault else "warning")
        where = ", ".join(f"{device.label} ({device.name})" for device in engine.machine.devices)
        write_err(f"{self.check}: {count(len(plan.jobs), 'job')} on {where}")
        ends = time.monotonic() + CHECK_LIMIT_S
        events = engine.run(plan, save_results=False)
        try:
            with RunProgress(beats_only=True) as progress:
                for event in events:
                    progress.show(event)
                    self._take(event)
                    if time.monotonic() > ends:
                        break
        except Fault as fault:
            for line in str(fault).splitlines():
                self._add("given up", line)
        finally:
            if isinstance(events, Generator):
                events.close()
        planned = Counter(job.definition.name for job in plan.jobs)
        for name, left in (planned - Counter(job["definition"] for job in self.jobs)).items():
            jobs = f"{left} of {count(planned[name], 'job')}"
            self._add(name, f"{jobs} not judged; a check ends after {CHECK_LIMIT_S:.0f} s", "warning")

    def _take(self, event: Event) -> None:
        """Note what an event tells: a verdict, a fault, or something for people."""
        if isinstance(event, Notice):
            write_err(event.message)
        if not isinstance(event, JobFinished | JobFaulted):
            return
        status, reason, seconds, is_late, is_left_out = NO_VERDICT, "", 0.0, False, False
        if isinstance(event, JobFaulted):
            reason, is_late, is_left_out = first_reason(event.message), event.is_out_of_time, event.is_left_out
        elif (evaluation := event.trace.evaluation) is not None:
            status, reason, seconds = evaluation.status.value, reason_of(evaluation), max(event.seconds, 0.0)
            is_late = status == "TIMEOUT"
        job = event.job
        names = {"definition": job.definition.name, "solution": job.solution.name, "workload": job.workload.uuid}
        self.jobs.append({"check": self.check, **names, "status": status, "seconds": round(seconds, 3)})
        who = "the reference" if self.check == "baseline" else f"solution {job.solution.name!r}"
        where = f"on workload {job.workload.uuid}"
        if is_late and self._is_on_cpu and self.check == "baseline":
            late = f"not judged: {who} takes longer than {CPU_JOB_LIMIT_S:g} s on a CPU, {where}"
            self._add(job.definition.name, f"{late}; that is no fault, a GPU may tell more", "warning")
        elif is_left_out:  # the job that ran out of time has told what is wrong
            self._add(job.definition.name, f"not judged: {who} {where}: {reason}", "warning")
        elif status != PASSED:
            self._add(job.definition.name, f"{who} {where}: {status}: {reason}")

    def _add(self, name: str, reason: str, severity: Severity = "error") -> None:
        file = self._set.definition_files.get(name, self._set.root or Path())
        self.issues.append(LoadIssue(severity, file, None, None, f"{name}: {reason}"))


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
