"""The jobs of a run: definition by solution by workload; and what is skipped and why. Nothing is built or started here.

Names are checked first (selection.py). Workloads whose stored inputs are missing are set aside, and solutions that
cannot run here (suitability.py). Then come jobs that are recorded already (resume.py). The order of the jobs is the
set's: by definition, solution, workload.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import find_wrong_extras
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.resume import (
    FULL,
    PROTOCOL,
    Decision,
    JobLimits,
    RecordedJobs,
    fingerprint,
    is_same,
    read_fingerprint,
)
from flashinfer_bench.bench.planning.selection import Selected, select, set_missing_aside
from flashinfer_bench.bench.planning.suitability import why_not_here
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.sets.latest import in_order_of_time
from flashinfer_bench.data.solution import Solution
from flashinfer_bench.data.store.drafts.draft import is_kept_draft
from flashinfer_bench.data.store.layout import SOLUTIONS, WORKLOADS
from flashinfer_bench.data.store.ownership import is_of_first_root
from flashinfer_bench.data.store.trace_lines import AnyTrace, to_trace
from flashinfer_bench.data.trace import Trace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import ConfigError

# The same words for all definitions: skips are told together by reason.
NO_DEFINITIONS: Final = "nothing was run: the set has no definitions"
NO_WORKLOADS: Final = f"it has no workloads; write them to {WORKLOADS}/<op_type>/<definition>.jsonl, one a line"
KEPT_DRAFT: Final = "`run --solution FILE` keeps it as a draft; --solution NAME or --author me runs it"
NO_SOLUTIONS: Final = (
    f"it has no solutions; write them to {SOLUTIONS}/<author>/<op_type>/<definition>/<solution>.json, one a file"
)
FOREIGN_CODE: Final = (
    "its custom inputs are made by code that is not the first set's own; --trust-definitions lets it run, as freely as "
    "a reference"
)


@dataclass(frozen=True)
class Job:
    """One solution on one workload of its definition."""

    index: int
    """Position in the plan; of a resident engine, a number that no other of its jobs ever has."""
    definition: Definition
    workload: Workload
    solution: Solution
    config: ResolvedEvalConfig
    fingerprint: Mapping[str, str]
    """What decides the verdict, as digests; it is recorded with the verdict."""

    @cached_property
    def solution_key(self) -> str:
        """What tells its solution from all others: the name is not enough, since two submitters may use one."""
        digest = self.fingerprint.get("solution")
        return self.solution.name if digest is None else f"{self.solution.name}@{digest}"


@dataclass(frozen=True)
class Skip:
    """Something selected that is not run."""

    definition: str
    solution: str | None
    """None when the whole definition is skipped."""
    workload: str | None
    """The uuid; None when all workloads are skipped, or those that the reason tells of."""
    reason: str
    is_fault: bool = False
    """Whether the data set lacks what it would take: then the run has failed, whatever else it judged."""


@dataclass(frozen=True)
class PlanRow:
    """The jobs of one solution, for a table."""

    definition: str
    op_type: str
    solution: str
    author: str
    workloads: int
    """How many of them are to be run."""


@dataclass(frozen=True)
class Plan:
    """What a run is going to do."""

    jobs: tuple[Job, ...]
    skips: tuple[Skip, ...] = ()
    resumed: int = 0
    """Jobs left out because an equal one is recorded."""
    recorded: tuple[Job, ...] = ()
    """These jobs."""
    redone: int = 0
    """Jobs that are recorded and yet in the plan: something changed."""
    redone_reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason → how many jobs: "solution changed", "timed out"."""
    plug_in_keys: frozenset[str] = frozenset()
    """Keys of `extra` that evaluators from outside declare: these are not misspelt."""

    def with_jobs(self, jobs: Iterable[Job]) -> Plan:
        """Return the plan with some of its jobs, numbered anew."""
        return replace(self, jobs=tuple(_numbered(jobs)))

    def rows(self) -> list[PlanRow]:
        """Return one row per definition and solution, with the number of workloads to run."""
        counts = Counter(
            (job.definition.name, job.definition.op_type, job.solution.name, job.solution.author) for job in self.jobs
        )
        return [PlanRow(*names, workloads) for names, workloads in counts.items()]


def make_plan(
    trace_set: TraceSet,
    config: BenchmarkConfig,
    machine: Machine,
    *,
    recorded: RecordedJobs | None = None,
    evaluators: Mapping[str, str] | None = None,
) -> Plan:
    """Return the plan of a run; with `recorded`, without the jobs that are recorded and unchanged.

    Args:
        trace_set: what is run.
        config: what is chosen of it, and how it is judged.
        machine: where.
        recorded: what a resumed run need not do again.
        evaluators: definition → fingerprint of the evaluator that judges it.

    Raises:
        ConfigError: the configuration names what the set does not have, its filters together leave nothing, or a
            parameter of a built-in evaluator has a wrong value.
    """
    selected, missing = set_missing_aside(select(trace_set, config), trace_set)
    wrong = find_wrong_extras(config.resolve_eval_config(item.definition) for item in selected)
    if wrong:
        raise ConfigError("\n".join(wrong))
    selected, skips = set_foreign_aside(selected, trace_set, config)
    jobs: list[Job] = []
    left_out: list[Job] = []
    redone: Counter[str] = Counter()
    for item in selected:
        name = item.definition.name
        if (reason := why_no_jobs(item)) is not None:
            skips.append(Skip(name, None, None, reason))
            continue
        maker = JobMaker.of(item, config, machine, trace_set, evaluators or {})
        for solution in item.solutions:
            reason = why_not_here(solution, machine, interpret=config.interpret)
            if config.solutions is None and config.authors is None and is_kept_draft(solution):
                reason = KEPT_DRAFT
            if reason is not None:
                skips.append(Skip(name, solution.name, None, reason))
                continue
            for job in maker.jobs_of(solution):
                decision = decide(job, config, recorded)
                (left_out if decision.action == "skip" else jobs).append(job)
                redone.update([decision.reason] if decision.action == "redo" else [])
    return Plan(
        jobs=tuple(_numbered(jobs)),
        skips=(*(Skip(name, None, None, reason, is_fault=True) for name, reason in missing.items()), *skips),
        resumed=len(left_out),
        recorded=tuple(left_out),
        redone=redone.total(),
        redone_reasons=dict(redone),
    )


def describe_nothing(plan: Plan) -> str:
    """Say why a plan has no jobs: each reason with how many definitions, solutions or workloads it holds for."""
    reasons = Counter(skip.reason for skip in plan.skips)
    lines = [f"{reason} ({number} skipped)" for reason, number in reasons.items()]
    return "\n  ".join(["nothing was run, since everything was skipped:", *lines]) if lines else NO_DEFINITIONS


def find_resumed(jobs: Iterable[Job], traces: Iterable[AnyTrace]) -> list[Trace]:
    """Return the recorded trace of each job that a resumed run leaves out: the latest, with a baseline if any has one.

    They count in the table of the run, and for --require-passed.
    """
    wanted = {(job.definition.name, job.solution.name, job.workload.uuid): job for job in jobs}
    names = {name for name, _, _ in wanted}
    found: dict[tuple[str, str, str], AnyTrace] = {}
    for trace in in_order_of_time(trace for trace in traces if trace.definition in names):
        key = (trace.definition, trace.solution or "", trace.workload.uuid)
        if key not in wanted or trace.evaluation is None:
            continue
        lacks_baseline = key in found and _has_baseline(found[key]) and not _has_baseline(trace)
        if is_same(read_fingerprint(trace.evaluation), wanted[key].fingerprint) and not lacks_baseline:
            found[key] = trace
    return [to_trace(found[key]) for key in wanted if key in found]


def _has_baseline(trace: AnyTrace) -> bool:
    performance = trace.evaluation.performance if trace.evaluation is not None else None
    return performance is not None and performance.reference_latency_ms > 0


def set_foreign_aside(
    selected: Iterable[Selected], trace_set: TraceSet, config: BenchmarkConfig
) -> tuple[list[Selected], list[Skip]]:
    """Set workloads aside whose inputs would be made by code of another set than the first, unless that is trusted."""
    kept, skips = [], []
    for item in selected:
        name = item.definition.name
        foreign = [
            workload
            for workload in item.workloads
            if workload.has_custom_inputs and not is_of_first_root(trace_set, name, workload.uuid)
        ]
        if config.trust_definitions or not foreign:
            kept.append(item)
        elif len(foreign) == len(item.workloads):
            skips.append(Skip(name, None, None, FOREIGN_CODE))
        else:
            kept.append(replace(item, workloads=tuple(one for one in item.workloads if one not in foreign)))
            skips += [Skip(name, None, workload.uuid, FOREIGN_CODE) for workload in foreign]
    return kept, skips


def why_no_jobs(selected: Selected, *, needs_solutions: bool = True) -> str | None:
    """Return why a definition has no jobs at all; None if it has some."""
    definition = selected.definition
    if not definition.is_runnable:
        return definition.not_runnable_reason or "its reference cannot be run"
    if not selected.workloads:
        return NO_WORKLOADS
    if needs_solutions and not selected.solutions:
        return NO_SOLUTIONS
    return None


@dataclass(frozen=True)
class JobMaker:
    """Makes the jobs of a definition's solutions; what they share is digested once."""

    definition: Definition
    workloads: tuple[tuple[Workload, ResolvedEvalConfig, Mapping[str, str]], ...]
    """Each with its settings, and what a fingerprint says of both."""
    shared: Mapping[str, str | int | None]
    """What all fingerprints of the definition have."""

    @classmethod
    def of(
        cls,
        selected: Selected,
        config: BenchmarkConfig,
        machine: Machine,
        trace_set: TraceSet,
        evaluators: Mapping[str, str],
    ) -> JobMaker:
        """Make it of a definition and its selected workloads, of which some may say something of their own."""
        definition = selected.definition
        resolved = config.resolve_eval_config(definition)
        digest = resolved.digest()
        workloads = []
        for workload in selected.workloads:
            tolerance = own_tolerance(trace_set, definition.name, workload)
            own = resolved if tolerance is None else config.resolve_eval_config(definition, tolerance)
            marks = {"workload": workload.digest(), "config": digest if own is resolved else own.digest()}
            workloads.append((workload, own, marks))
        shared = {
            "definition": definition.digest(),
            "hardware": machine.hardware,
            "evaluator": evaluators.get(definition.name),
            "timing": config.timing_mark(),
            "assurance": FULL if config.assurance == FULL else None,
            "protocol": PROTOCOL,
            "sandbox": machine.sandbox,
            "seed": config.seed,
        }
        return cls(definition, tuple(workloads), shared)

    def jobs_of(self, solution: Solution) -> Iterator[Job]:
        """Yield a solution's jobs, not numbered yet."""
        common = fingerprint(**self.shared, solution=solution.digest(), workload="", config="")
        for workload, own, marks in self.workloads:
            yield Job(0, self.definition, workload, solution, own, {**common, **marks})


def _numbered(jobs: Iterable[Job]) -> Iterator[Job]:
    return (replace(job, index=index) for index, job in enumerate(jobs))


def decide(job: Job, config: BenchmarkConfig, recorded: RecordedJobs | None) -> Decision:
    """Say whether a job has to be done, as far as is recorded."""
    if recorded is None:
        return Decision("new")
    key = (job.definition.name, job.solution.name, job.workload.uuid)
    limits = JobLimits(config.timeout_seconds, config.worker_memory_gb)
    return recorded.decide(key, job.fingerprint, needs_baseline=config.profile_baseline, limits=limits)
