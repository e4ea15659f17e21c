"""Plans the jobs of a run, and lists the skipped parts with their reasons. Planning builds no solution and starts no
process.

Names are checked first (selection.py). `prepare` selects the workloads that can be judged: their stored inputs exist,
and no foreign code makes their inputs. Solutions that cannot run here are skipped. A solution's language and the free
text of its target_hardware decide; in doubt the solution runs. Then recorded jobs are skipped (resume.py). The order of
the jobs is the set's: by definition, solution, workload.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from flashinfer_bench.bench.config import BenchmarkConfig, ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import list_extras, why_wrong
from flashinfer_bench.bench.machine import Machine
from flashinfer_bench.bench.planning.resume import FULL, PROTOCOL, Decision, RecordedJobs, fingerprint
from flashinfer_bench.bench.planning.selection import Selected, select
from flashinfer_bench.bench.tolerances import own_tolerance
from flashinfer_bench.data.definition import Definition
from flashinfer_bench.data.solution import Solution, SupportedLanguages
from flashinfer_bench.data.store.blobs import why_missing
from flashinfer_bench.data.store.drafts import is_kept_draft
from flashinfer_bench.data.store.layout import SOLUTIONS, WORKLOADS
from flashinfer_bench.data.store.trace_lines import AnyTrace
from flashinfer_bench.data.trace_set import TraceSet
from flashinfer_bench.data.workload import Workload
from flashinfer_bench.errors import ConfigError

# The same words for all definitions, since skips are reported together by reason.
NO_DEFINITIONS: Final = "nothing was run: the set has no definitions"
NO_WORKLOADS: Final = f"it has no workloads; write them to {WORKLOADS}/<op_type>/<definition>.jsonl, one a line"
KEPT_DRAFT: Final = "it is a draft, which `run --solution FILE` keeps; --drafts runs all drafts, --solution NAME one"
NO_SOLUTIONS: Final = (
    f"it has no solutions; write {SOLUTIONS}/<author>/<op_type>/<definition>/<solution>.json, or `run --solution FILE`"
)
FOREIGN_CODE: Final = (
    "its custom inputs are made by code that is not the first set's own; --trust-definitions lets it run, as freely as "
    "a reference"
)

CPU_WORDS: Final = frozenset({"cpu", "cpus", "x86", "amd64", "arm64", "aarch64", "host"})
GPU_WORDS: Final = frozenset(
    {"gpu", "gpus", "cuda", "nvidia", "rtx", "sm", "ampere", "ada", "hopper", "blackwell", "rubin"}
)
GLUON: Final = re.compile(r"^[ \t]*(?:from|import)[ \t]+triton\.experimental\b", re.MULTILINE)
"""Imports of Gluon, which Triton's interpreter cannot run."""
INTERPRET_HINT: Final = " (--interpret runs it in Triton's interpreter, whose times say nothing)"
GPU_MODEL: Final = re.compile(r"(?:[abhlvt]|gb|gh|rtx|sm|mi)\d{2,4}[a-z]{0,2}")
"""Names of GPUs, for example H100, GB200, L40S, RTX5090, sm90 or MI300X."""


@dataclass(frozen=True)
class Job:
    """One solution on one workload of its definition."""

    index: int
    """Position in the plan; in a resident engine, a number that is unique among its jobs."""
    definition: Definition
    workload: Workload
    solution: Solution
    config: ResolvedEvalConfig
    fingerprint: Mapping[str, str]
    """Names and digests of all that decides the verdict. The verdict's trace records them."""
    assurance: Literal["standard", "full"] | None = None
    """The assurance at which a winner is confirmed; None for the run's assurance."""
    hardware: str | None = None
    """Name of the hardware that may judge the job: a winner is confirmed on the hardware on which it won. None for any
    hardware."""

    @cached_property
    def solution_key(self) -> str:
        """Key of the jobs that one worker may serve: the solution, and the level at which a winner is confirmed.

        The name is not enough, since two submitters may use the same name.
        """
        digest = self.fingerprint.get("solution")
        key = self.solution.name if digest is None else f"{self.solution.name}@{digest}"
        return key if self.assurance is None else f"{key} {self.assurance} {self.hardware or ''}"


@dataclass(frozen=True)
class Skip:
    """A selected definition, solution or workload that is not run, and why."""

    definition: str
    solution: str | None
    """None if the whole definition is skipped."""
    workload: str | None
    """The uuid; None if all workloads are skipped, or if the reason describes them."""
    reason: str
    is_fault: bool = False
    """Whether the data set lacks a required part: then the run has failed, whatever its verdicts are."""


@dataclass(frozen=True)
class PlanRow:
    """The jobs of one solution, for a table."""

    definition: str
    op_type: str
    solution: str
    author: str
    workloads: int
    """Workloads to run."""


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    jobs: tuple[Job, ...]
    skips: tuple[Skip, ...] = ()
    done: tuple[tuple[Job, AnyTrace], ...] = ()
    """The jobs that are skipped because a trace records them, with these traces. A resumed run may confirm the best of
    them."""
    redone_reasons: Mapping[str, int] = field(default_factory=dict)
    """Reason, such as "solution changed" or "timed out" → number of recorded jobs that are judged again for this
    reason."""
    plug_in_keys: frozenset[str] = frozenset()
    """Keys of `extra` that plug-in evaluators declare. These keys are not reported as misspelt."""
    elsewhere: frozenset[tuple[str, str]] = frozenset()
    """Workloads (definition, uuid) whose best solution another run confirms."""

    @property
    def resumed(self) -> int:
        """Number of jobs that are skipped because an equal job is recorded."""
        return len(self.done)

    @property
    def redone(self) -> int:
        """Number of recorded jobs that are judged again, since something changed."""
        return sum(self.redone_reasons.values())

    def with_jobs(self, jobs: Iterable[Job]) -> Plan:
        """Return the plan with only the given jobs, numbered from 0."""
        return replace(self, jobs=tuple(replace(job, index=index) for index, job in enumerate(jobs)))

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
    drafts: bool = False,
) -> Plan:
    """Return the plan of a run. Jobs are skipped if `recorded` has them and they have not changed.

    Args:
        trace_set: the set to run.
        config: selects the jobs, and sets how they are judged.
        machine: runs them.
        recorded: the jobs that a resumed run can skip.
        evaluators: definition → fingerprint of the evaluator that judges it.
        drafts: take drafts, too, if the configuration names neither solutions nor authors.

    Raises:
        ConfigError: the configuration names an unknown entry, the filters select nothing, or a parameter of a built-in
            evaluator has a wrong value.
    """
    selected = select(trace_set, config)
    check_extras((item.definition for item in selected), config)
    jobs: list[Job] = []
    skips: list[Skip] = []
    done: list[tuple[Job, AnyTrace]] = []
    redone: Counter[str] = Counter()
    for item in selected:
        kept, lacks = prepare(item, trace_set, config)
        skips += lacks
        if kept is None:
            continue
        maker = JobMaker(kept, config, machine, trace_set, evaluators or {})
        for solution in item.solutions:
            reason = why_not_here(solution, machine, interpret=config.interpret)
            if not (drafts or config.solutions or config.authors) and is_kept_draft(solution):
                reason = KEPT_DRAFT
            if reason is not None:
                skips.append(Skip(item.definition.name, solution.name, None, reason))
                continue
            for job in maker.jobs_of(solution):
                decision = Decision() if recorded is None else recorded.decide(job, config)
                if decision.trace is not None:
                    done.append((job, decision.trace))
                    continue
                jobs.append(job)
                if decision.reason:
                    redone[decision.reason] += 1
    skips.sort(key=lambda skip: not skip.is_fault)
    return Plan((), tuple(skips), tuple(done), dict(redone)).with_jobs(jobs)


def describe_nothing(plan: Plan) -> str:
    """Return why a plan has no jobs: each reason with its number of definitions, solutions or workloads."""
    reasons = Counter(skip.reason for skip in plan.skips)
    lines = [f"{reason} ({number} skipped)" for reason, number in reasons.items()]
    return "\n  ".join(["nothing was run, since everything was skipped:", *lines]) if lines else NO_DEFINITIONS


def check_extras(definitions: Iterable[Definition], config: BenchmarkConfig) -> None:
    """Check the values of `extra` for built-in evaluators of definitions.

    Raises:
        ConfigError: a known key has a wrong value; all wrong values are listed.
    """
    if wrong := list_extras(map(config.resolve_eval_config, definitions), why_wrong):
        raise ConfigError("\n".join(wrong))


def prepare(
    selected: Selected, trace_set: TraceSet, config: BenchmarkConfig, *, needs_solutions: bool = True
) -> tuple[Selected | None, list[Skip]]:
    """Return the part of a definition that can be judged, or None; and the skipped parts."""
    definition = selected.definition
    name, kept, missing, skips = definition.name, list[Workload](), list[str](), list[Skip]()
    for workload in selected.workloads:
        root = trace_set.blob_root(name, workload.uuid) or Path()
        reasons = (why_missing(root, source.path) for source in workload.stored_inputs.values())
        if (gone := next(filter(None, reasons), None)) is not None:
            missing.append(gone)
        elif workload.has_custom_inputs and not (
            config.trust_definitions or trace_set.is_of_first_root(name, workload.uuid)
        ):
            skips.append(Skip(name, None, workload.uuid, FOREIGN_CODE))
        else:
            kept.append(workload)
    if missing:
        lack = f"{len(missing)} of {len(selected.workloads)} workloads lack their stored inputs"
        reason = f"{lack}: {missing[0]}"
        skips.insert(0, Skip(name, None, None, reason, is_fault=True))
    if not definition.is_runnable:
        skips.append(Skip(name, None, None, definition.not_runnable_reason or "its reference cannot be run"))
    elif not selected.workloads:
        skips.append(Skip(name, None, None, NO_WORKLOADS))
    elif needs_solutions and not selected.solutions:
        skips.append(Skip(name, None, None, NO_SOLUTIONS))
    elif kept:
        return replace(selected, workloads=tuple(kept)), skips
    return None, skips


class JobMaker:
    """Makes the jobs of a definition's solutions; shared values are digested once.

    Args:
        selected: the definition and its workloads, some with settings of their own.
        config: how the jobs are judged.
        machine: the devices for the jobs.
        trace_set: has the tolerances of workloads.
        evaluators: definition → fingerprint of the evaluator that judges it.
    """

    def __init__(
        self,
        selected: Selected,
        config: BenchmarkConfig,
        machine: Machine,
        trace_set: TraceSet,
        evaluators: Mapping[str, str],
    ) -> None:
        self.definition = definition = selected.definition
        resolved = config.resolve_eval_config(definition)
        digest = resolved.digest()
        self._workloads: list[tuple[Workload, ResolvedEvalConfig, Mapping[str, str]]] = []
        """Each workload with its settings, and the fingerprint fields of workload and settings."""
        for workload in selected.workloads:
            tolerance = own_tolerance(trace_set, definition.name, workload)
            own = resolved if tolerance is None else config.resolve_eval_config(definition, tolerance)
            keys = {"workload": workload.digest(), "config": digest if own is resolved else own.digest()}
            self._workloads.append((workload, own, keys))
        self._shared: Mapping[str, str | int | None] = {
            "definition": definition.digest(),
            "hardware": machine.hardware,
            "evaluator": evaluators.get(definition.name),
            "timing": config.timing_key(),
            "assurance": FULL if config.assurance == FULL else None,
            "protocol": PROTOCOL,
            "sandbox": machine.sandbox,
            "seed": config.seed,
        }

    def jobs_of(self, solution: Solution) -> list[Job]:
        """Return a solution's jobs, not numbered yet."""
        common = fingerprint(**self._shared, solution=solution.digest())
        return [
            Job(0, self.definition, workload, solution, own, {**common, **keys})
            for workload, own, keys in self._workloads
        ]


def why_not_here(solution: Solution, machine: Machine, *, interpret: bool = False) -> str | None:
    """Return why a solution cannot run on this machine; None if it can.

    Args:
        solution: the solution to run.
        machine: runs it.
        interpret: whether Triton's interpreter runs GPU kernels without a GPU.
    """
    language = solution.spec.language
    if language.value not in machine.languages:
        return f"language {language.value} has no builder"
    reason = machine.languages[language.value]
    if reason is not None:
        return f"language {language.value} is not available here: {reason}"
    is_gluon = any(GLUON.search(source.content) for source in solution.sources)
    if machine.kind == "cpu" and (language.record.needs_gpu or is_gluon):
        name = "gluon" if is_gluon else language.value
        return f"a {name} solution needs an NVIDIA GPU; the device here is {machine.hardware}"
    kinds = _read_target_kinds(solution.spec.target_hardware)
    if kinds and machine.kind not in kinds:
        is_interpretable = machine.kind == "cpu" and language is SupportedLanguages.TRITON
        if not (is_interpretable and interpret):
            wanted, hint = ", ".join(solution.spec.target_hardware), INTERPRET_HINT if is_interpretable else ""
            return f"target_hardware is {wanted}; the device here is {machine.hardware}{hint}"
    return machine.why_not_buildable(solution)  # last, since installing a package gives no other device


def _read_target_kinds(target_hardware: Iterable[str]) -> frozenset[Literal["cpu", "cuda"]]:
    """Return the kinds of device that the entries name; empty if an entry may mean any device."""
    kinds: set[Literal["cpu", "cuda"]] = set()
    for entry in target_hardware:
        words = set(re.split(r"[^a-z0-9]+", entry.lower()))
        if words & CPU_WORDS:
            kinds.add("cpu")
        elif words & GPU_WORDS or any(GPU_MODEL.fullmatch(word) for word in words):
            kinds.add("cuda")
        else:
            return frozenset()
    return frozenset(kinds)
