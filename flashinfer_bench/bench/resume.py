"""What a resumed run need not do again: a job's fingerprint, and the recorded jobs that it is looked up in.

The fingerprint stands in a trace under `evaluation.extra["run"]["fingerprint"]`: digests of the definition, the
solution, the workload and the eval config, the hardware's name, the evaluator's class with its revision (of a plug-in
the digest of its source too), the timing where it is not the usual one (a warm L2, CUDA events, no graphs), and the
seed where the user gave one. A trace that carries none (another engine's) proves
nothing, nor does one from before evaluators had revisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from flashinfer_bench.data.evaluation import Evaluation, EvaluationStatus
from flashinfer_bench.data.trace import Trace

FINGERPRINT_KEYS: Final = ("definition", "solution", "workload", "config", "hardware", "evaluator", "timing", "seed")
JobKey = tuple[str, str, str]
"""Names of definition and solution, and the workload's uuid."""


def fingerprint(
    *,
    definition: str,
    solution: str,
    workload: str,
    config: str,
    hardware: str,
    evaluator: str | None = None,
    timing: str | None = None,
    seed: int | None = None,
) -> dict[str, str]:
    """Return what decides a verdict: digests and a name; the evaluator; an unusual timing; a seed that was given."""
    marks = {
        "definition": definition,
        "solution": solution,
        "workload": workload,
        "config": config,
        "hardware": hardware,
    }
    further = {"evaluator": evaluator, "timing": timing, "seed": None if seed is None else str(seed)}
    return {**marks, **{name: mark for name, mark in further.items() if mark is not None}}


def is_same(recorded: Mapping[str, str] | None, wanted: Mapping[str, str]) -> bool:
    """Tell whether a recorded fingerprint is the wanted one. Where no seed is asked for, any will do."""
    if recorded is None:
        return False
    return {key: mark for key, mark in recorded.items() if key != "seed" or key in wanted} == dict(wanted)


@dataclass(frozen=True)
class Decision:
    """Whether a resumed run does a job."""

    action: Literal["skip", "redo", "new"]
    reason: str = ""
    """Why a recorded job is done again: "solution changed", "timed out"."""


@dataclass(frozen=True)
class RecordedJob:
    """What one trace says about the job that it records."""

    fingerprint: Mapping[str, str] | None
    timed_out: bool
    has_baseline: bool
    """False for a PASSED trace whose reference was not timed."""


@dataclass(frozen=True)
class RecordedJobs:
    """The jobs that a trace set has verdicts of."""

    by_key: Mapping[JobKey, list[RecordedJob]] = field(default_factory=dict)
    retry_timeouts: bool = False
    """Do a job again whose verdict was TIMEOUT."""

    @classmethod
    def from_traces(cls, traces: Iterable[Trace], *, retry_timeouts: bool = False) -> RecordedJobs:
        """Read traces in the order in which they were recorded; workload lines are passed over."""
        by_key: dict[JobKey, list[RecordedJob]] = {}
        for trace in traces:
            if trace.solution is None or trace.evaluation is None:
                continue
            key = (trace.definition, trace.solution, trace.workload.uuid)
            by_key.setdefault(key, []).append(_read_record(trace.evaluation))
        return cls(by_key, retry_timeouts)

    def decide(self, key: JobKey, wanted: Mapping[str, str], *, needs_baseline: bool) -> Decision:
        """Say whether a job with this fingerprint is recorded, has changed since, or is new."""
        records = self.by_key.get(key)
        if not records:
            return Decision("new")
        same = [record for record in records if is_same(record.fingerprint, wanted)]
        if not same:
            return Decision("redo", _what_changed(records[-1].fingerprint, wanted))
        if self.retry_timeouts and same[-1].timed_out:
            return Decision("redo", "timed out")
        if needs_baseline and not any(record.has_baseline for record in same):
            return Decision("redo", "baseline was not measured")
        return Decision("skip")


def _read_record(evaluation: Evaluation) -> RecordedJob:
    performance = evaluation.performance
    return RecordedJob(
        fingerprint=read_fingerprint(evaluation.extra),
        timed_out=evaluation.status is EvaluationStatus.TIMEOUT,
        has_baseline=performance is None or performance.reference_latency_ms > 0,
    )


def read_fingerprint(extra: Mapping[str, Any] | None) -> dict[str, str] | None:
    """Return the fingerprint that stands in the `extra` of a verdict, with the seed of its run; None if none does."""
    run = (extra or {}).get("run")
    found = run.get("fingerprint") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(found, Mapping):
        return None
    seed = {"seed": run["seed"]} if isinstance(run.get("seed"), int) else {}
    return {str(key): str(value) for key, value in {**seed, **found}.items()}


def _what_changed(recorded: Mapping[str, str] | None, wanted: Mapping[str, str]) -> str:
    if recorded is None:
        return "recorded without a fingerprint"
    kept = [key for key in FINGERPRINT_KEYS if key != "seed" or key in wanted]
    changed = [key for key in kept if recorded.get(key) != wanted.get(key)]
    return f"{' and '.join(changed)} changed" if changed else "fingerprint of another form"
