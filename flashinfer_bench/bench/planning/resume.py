"""What a resumed run need not do again: a job's fingerprint, and the recorded jobs that it is looked up in.

The fingerprint stands in a trace under `evaluation.extra["run"]["fingerprint"]`: digests of the definition, the
solution, the workload and the eval config, the hardware's name, the evaluator's class with its revision (of a plug-in
the digest of its source too), the timing where it is not the usual one (quick, warm L2, CUDA events, no graphs),
whether workers had walls, the seed where the user gave one, and the assurance where it was full. A trace without a
fingerprint (another engine's) proves nothing, nor does one from before evaluators had revisions.

A quick look is never resumed from; where it failed, its job is done again though a whole verdict is recorded.

Reports show the latest verdict of a job. So a recorded verdict stops counting when a later verdict on the same hardware
was made with a changed solution, definition, workload or evaluator. Later verdicts under other settings change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple

import msgspec

from flashinfer_bench.data.evaluation import EvaluationStatus, says_quick
from flashinfer_bench.data.sets.latest import JUDGED_KEYS, in_order_of_time
from flashinfer_bench.data.store.trace_lines import AnyEvaluation, AnyTrace, decode_run

FINGERPRINT_KEYS: Final = (
    *("definition", "solution", "workload", "config", "hardware", "evaluator", "timing"),
    *("protocol", "sandbox", "seed", "assurance"),
)
PROTOCOL: Final = 15
"""How solutions are called and timed. It is raised when a verdict or its time may change: traces of an older protocol
are judged again. 2: each call has content of its own, and bursts confirm times. 3: calls that draw random numbers are
timed as replays of graphs, too. 4: stored probabilities change their order from call to call; more of the calls that
were timed is judged. 5: calls of more than a millisecond are timed while no context is made; normal inputs are drawn
anew on a CPU, too. 6: calls that wait for the GPU inside take turns with their references. 7: a GPU rests longer before
calls of more than 10 ms; bits of random bytes are flipped; more draws of timed samplers are judged. 8: it rests twice
as long before such calls; bits of stored narrow numbers are flipped; states of mamba and gdn forget at all speeds;
draws of flat rows are tested by themselves. 9: bursts of short calls on a GPU are longer, and less is taken off them
for what waits in the cache; one thread copies results on a CPU, where bursts after relays refuse less. 10: calls on a
GPU are held against relays. 11: random integers fit what the reference does with them; bytes, bools and 8-bit floats
have stress cases, too, and some come because a reference asks for them. 12: stress cases are judged in the rows where
the reference is finite, and in a secret order. 13: secret parts of inputs differ in some calls; calls that wait for the
GPU inside take turns of eight with their references. 14: who makes calls on a GPU leaves slow cores. 15: a gated chain
bounds every latency on a GPU, batches at full assurance alone, and no latency is below the physical floor; nothing
bounds a CPU's; a job's stress cases are settled by its definition and workload; all trials are timed as one; no core is
chosen any more."""
FULL: Final = "full"
"""Mark of this assurance. Its verdicts hold where the standard one is asked for, which has no mark."""
HARDWARE_JOINT: Final = " + "
"""Joins the names of the devices of one run."""
QUICK_ONLY: Final = "it was a quick look"
"""Why a job is done again whose latest verdict is not whole."""
OVER_MEMORY: Final = "more host memory than a worker may"
"""Stands in the log of a worker that was ended because of its memory."""
_TIMEOUT: Final = EvaluationStatus.TIMEOUT  # a look at a member of an Enum takes ten times as long
_RUNTIME_ERROR: Final = EvaluationStatus.RUNTIME_ERROR
JobKey = tuple[str, str, str]
"""Names of definition and solution, and the workload's uuid."""


def fingerprint(**marks: str | int | None) -> dict[str, str]:
    """Return what decides a verdict, by FINGERPRINT_KEYS; a mark that is None is left out."""
    return {key: str(marks[key]) for key in FINGERPRINT_KEYS if marks.get(key) is not None}


def is_same(recorded: Mapping[str, str] | None, wanted: Mapping[str, str]) -> bool:
    """Tell whether a recorded fingerprint is the wanted one, or of a higher assurance.

    Where no seed is asked for, any will do.
    """
    if recorded is None:
        return False
    more = {"seed", "assurance"} - wanted.keys()
    return {key: mark for key, mark in recorded.items() if key not in more} == wanted


class Decision(NamedTuple):
    """Whether a resumed run does a job."""

    action: Literal["skip", "redo", "new"]
    reason: str = ""
    """Why a recorded job is done again: "solution changed", "timed out"."""


class JobLimits(NamedTuple):
    """What a solution may take; None where a run does not say."""

    timeout_seconds: float | None = None
    memory_gb: float | None = None


class RecordedRun(msgspec.Struct, frozen=True, gc=False):
    """What is read of the record of a run."""

    fingerprint: dict[str, str] | None = None
    quick: bool = False
    seed: int | None = None
    timeout_seconds: float | None = None
    worker_memory_gb: float | None = None


_RUN: Final = msgspec.json.Decoder(RecordedRun)


class RecordedJob(NamedTuple):
    """What one trace says about the job that it records."""

    evaluation: AnyEvaluation
    run: RecordedRun

    @property
    def hardware(self) -> str:
        """The device that it ran on."""
        return self.evaluation.environment.hardware

    @property
    def fingerprint(self) -> Mapping[str, str] | None:
        """What decided the verdict, with the seed of its run; None if it does not say."""
        marks, seed = self.run.fingerprint, self.run.seed
        return marks if marks is None or seed is None else {"seed": str(seed), **marks}

    @property
    def timed_out(self) -> bool:
        """Whether the solution took too long."""
        return self.evaluation.status is _TIMEOUT

    @property
    def over_memory(self) -> bool:
        """Whether the worker was ended because of the memory that it took."""
        return self.evaluation.status is _RUNTIME_ERROR and OVER_MEMORY in self.evaluation.log

    @property
    def has_baseline(self) -> bool:
        """False for a PASSED trace whose reference was not timed."""
        performance = self.evaluation.performance
        return performance is None or performance.reference_latency_ms > 0

    def is_plainly(self, wanted: Mapping[str, str]) -> bool:
        """Return whether it is a whole verdict of the wanted fingerprint that no limit of the run had a part in."""
        run = self.run
        return run.fingerprint == wanted and not (run.quick or self.timed_out or self.over_memory) and self.has_baseline


@dataclass(frozen=True)
class RecordedJobs:
    """The jobs that a trace set has verdicts of."""

    by_key: Mapping[JobKey, list[AnyEvaluation]] = field(default_factory=dict)
    """The verdicts on each job, the latest last. What they record is read when somebody asks for the job."""
    retry_timeouts: bool = False
    """Do a job again whose verdict was TIMEOUT."""

    @classmethod
    def from_traces(cls, traces: Iterable[AnyTrace], *, retry_timeouts: bool = False) -> RecordedJobs:
        """Read traces, the latest last; workload lines are passed over."""
        by_key: dict[JobKey, list[AnyEvaluation]] = {}
        for trace in in_order_of_time(traces):
            if trace.solution is None or trace.evaluation is None:
                continue
            key = (trace.definition, trace.solution, trace.workload.uuid)
            by_key.setdefault(key, []).append(trace.evaluation)
        return cls(by_key, retry_timeouts)

    def decide(
        self, key: JobKey, wanted: Mapping[str, str], *, needs_baseline: bool, limits: JobLimits | None = None
    ) -> Decision:
        """Say whether a job with this fingerprint is recorded, has changed since, or is new."""
        evaluations = self.by_key.get(key)
        if not evaluations:
            return _NEW
        devices = _devices_of(wanted.get("hardware", ""))
        last = _read_record(evaluations[-1])
        if last.is_plainly(wanted) and last.hardware in devices:  # as most are: those before it cannot matter
            return _SKIP
        records = [*map(_read_record, evaluations[:-1]), last]
        shown = _newest_alike([record for record in records if record.hardware in devices], wanted)
        same = [record for record in shown if is_same(record.fingerprint, wanted) and not record.run.quick]
        if not same:
            return Decision("redo", QUICK_ONLY if last.run.quick else _what_changed(last.fingerprint, wanted))
        if shown[-1].run.quick and shown[-1].evaluation.status is not EvaluationStatus.PASSED:
            return Decision("redo", "failed in a quick look")
        if self.retry_timeouts and same[-1].timed_out:
            return Decision("redo", "timed out")
        if limits is not None and (reason := _what_was_short(same[-1], limits)):
            return Decision("redo", reason)
        if needs_baseline and not any(record.has_baseline for record in same):
            return Decision("redo", "baseline was not measured")
        return _SKIP


_NEW: Final = Decision("new")
_SKIP: Final = Decision("skip")


@lru_cache(16)
def _devices_of(hardware: str) -> Sequence[str]:
    return hardware.split(HARDWARE_JOINT)


def _newest_alike(records: list[RecordedJob], wanted: Mapping[str, str]) -> list[RecordedJob]:
    """Return the records since the last one that is of another solution, definition, workload or evaluator."""
    judged = list(map(wanted.get, JUDGED_KEYS))
    for index in range(len(records), 0, -1):
        marks = records[index - 1].fingerprint
        if marks is None or list(map(marks.get, JUDGED_KEYS)) != judged:
            return records[index:]
    return records


def _what_was_short(record: RecordedJob, now: JobLimits) -> str | None:
    """Return which limit ended a recorded job and is larger now. No limit of memory leaves it to the machine."""
    then_s, then_gb = record.run.timeout_seconds, record.run.worker_memory_gb
    if record.timed_out and now.timeout_seconds is not None and then_s is not None and now.timeout_seconds > then_s:
        return "timed out under a shorter limit"
    has_more = now.memory_gb != then_gb if now.memory_gb is None or then_gb is None else now.memory_gb > then_gb
    return "ended under a smaller limit of memory" if record.over_memory and has_more else None


def _read_record(evaluation: AnyEvaluation) -> RecordedJob:
    found = decode_run(evaluation, _RUN)
    if found is None:
        run, fingerprint = find_fingerprint(evaluation.extra)
        numbers = {key: _number(run.get(key)) for key in ("timeout_seconds", "worker_memory_gb")}
        found = RecordedRun(
            fingerprint=None if fingerprint is None else {str(key): str(mark) for key, mark in fingerprint.items()},
            quick=says_quick(run),
            seed=seed if isinstance(seed := run.get("seed"), int) else None,
            **numbers,
        )
    return RecordedJob(evaluation, found)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def read_fingerprint(evaluation: AnyEvaluation) -> Mapping[str, str] | None:
    """Return the fingerprint of a verdict, with the seed of its run; None if it has none."""
    return _read_record(evaluation).fingerprint


def find_fingerprint(extra: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Return the record of the run in the `extra` of a verdict, and the fingerprint in it as it stands there."""
    run = (extra or {}).get("run")
    if not isinstance(run, Mapping):
        return {}, None
    found = run.get("fingerprint")
    return run, found if isinstance(found, Mapping) else None


def _what_changed(recorded: Mapping[str, str] | None, wanted: Mapping[str, str]) -> str:
    if recorded is None:
        return "recorded without a fingerprint"
    kept = [key for key in FINGERPRINT_KEYS if key in wanted or key not in ("seed", "assurance")]
    changed = [key for key in kept if recorded.get(key) != wanted.get(key)]
    return f"{' and '.join(changed)} changed" if changed else "fingerprint of another form"
