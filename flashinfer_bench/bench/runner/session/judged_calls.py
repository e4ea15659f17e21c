"""Judges calls besides the evaluator's own calls: timed calls, and calls on inputs of stress cases.

A chain or a batch confirms a latency only if its calls did their work. A solution could compute the sampled calls only,
and skip the work of the chain. So if the reference is slow, calls of the chain and the batch are compared first. If the
reference is too slow even for these calls, the latency is not confirmed. The evaluator compares the outputs.

Calls on inputs of stress cases are compared with the reference, in the rows in which the reference is finite. Floats
are compared by norms. Outputs that are constant on usual inputs are judged by whether they change.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.stress import (
    FOR_CONSTANTS_ALONE,
    StressPlan,
    count_affordable,
    why_no_stress,
)
from flashinfer_bench.bench.evaluators.integrity.norms import says_something
from flashinfer_bench.bench.evaluators.stress_checks import StressChecks, differs, find_constants, keep_finite
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.reported_time import add_flags
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.bench.runner.workers.timed.timed_calls import ReadCall
from flashinfer_bench.data import EvaluationStatus
from flashinfer_bench.errors import DefinitionFault, WorkloadFault
from flashinfer_bench.timing.libraries import COPIES, LibraryCalls

ENOUGH_READS: Final = 9
"""Maximum number of calls of a chain, and of a batch, that are compared if the reference is slow. Without a chain or a
batch, the limit holds for the samples. A solution that skips half of these calls rarely passes. A chain of small calls
keeps fewer calls than this."""
MOST_BYTES: Final = 4 << 30
"""If the reference's outputs exceed this, the calls so far are judged before the reference is called again."""
LONG_S: Final = 0.2
SLOW_S: Final = 1.0
"""After this many seconds in the reference, only needed calls are compared. The limit is LONG_S if ENOUGH_READS calls
were compared, else SLOW_S for each trial."""
MOST_S: Final = 60.0
"""Maximum seconds in the reference for needed calls (`sort_reads`), without the first call. The host's PHASE_GRACE_S is
twice as long."""
TOO_SLOW: Final = "the reference takes too long to compare enough of the calls that it was held against"
PATIENCE_S: Final = 4.0
"""Seconds for the reference's calls on stress cases. The reference needs more seconds only if its time was unknown, or
measured far too short."""
TOGETHER_BYTES: Final = 1 << 24
"""If a call's outputs have at most this many bytes, all stress calls are judged together. In this case the expected
outputs of all stress calls are in memory."""
MOST_NAMED: Final = 3
NAME_CHARS: Final = 80
"""Maximum number of kernels in the message of a refused solution, and of characters of each kernel's name."""
JUDGED: Final = "judged"
IN_PART: Final = "judged where the reference is finite"
SLOW: Final = "left out: the reference or the calls are slow, or large"
ZEROS: Final = "left out: nothing but zeros is expected"
NOT_FINITE: Final = "left out: the reference is not finite"
THE_SAME: Final = "left out: nothing else than on usual inputs is expected"

ReadOf = tuple[int, ReadCall]
"""The index of a trial, and one of its calls."""


def judge_reads(
    job: JobContext, reads: Sequence[Sequence[ReadCall]], baseline: Baseline, context: JudgeContext
) -> Rejected | None:
    """Compare timed calls; return the verdict if it rejects. Note the number of compared calls, and whether they are
    too few.

    Args:
        reads: the chosen calls of each timed trial.
        baseline: expected outputs for the evaluator's own inputs.
        context: the evaluator's context; its notes are not the notes of the job.
    """
    request, evaluator = job.request, job.request.evaluator
    needed, others = sort_reads(reads)
    least_s = (baseline.mean_latency_ms or 0.0) / 1e3  # a GPU may still run when the host continues
    spent_s, longest_s, compared, missed = 0.0, 0.0, 0, 0
    calls: list[JudgedCall] = []
    verdict: Verdict | None = None
    left = [*((True, *found) for found in needed), *((False, *found) for found in others)]
    for at, (is_needed, trial, read) in enumerate(left):
        if read.is_base or not evaluator.needs_expected:
            expected = baseline.outputs[trial]
        else:
            most_s = LONG_S if compared >= ENOUGH_READS else SLOW_S * len(reads)
            if spent_s + longest_s <= MOST_S if is_needed else spent_s <= most_s:  # the first call is always made
                start = time.monotonic()
                expected = read.expected or request.reference(read.inputs)
                took_s = max(time.monotonic() - start, least_s)
                spent_s, longest_s = spent_s + took_s, max(longest_s, took_s)
            else:
                missed += is_needed
                expected = []
        if expected:
            calls.append(JudgedCall(read.inputs, read.outputs, expected))
            compared += 1
        is_last = at + 1 == len(left)
        if calls and (is_last or sum(bytes_of(call.expected) for call in calls) > MOST_BYTES):
            verdict, calls = evaluator.judge_reads(request.definition, calls, job.config, context), []
            if isinstance(verdict, Rejected):
                break
    if verdict is not None:
        job.notes["reads"] = compared
    if isinstance(verdict, Rejected):
        return replace(verdict, message=f"in a call that was timed, mostly on other inputs: {verdict.message}")
    record: Any = job.notes.get("measurement")
    is_bound = isinstance(record, dict) and record.get("bound", "none") != "none"
    if missed and is_bound and "why_unconfirmed" not in record:
        record["why_unconfirmed"] = TOO_SLOW
        add_flags(record, unconfirmed=True)
    return None


def sort_reads(reads: Sequence[Sequence[ReadCall]]) -> tuple[list[ReadOf], list[ReadOf]]:
    """Return the calls that are needed to confirm a latency, and the other calls, both in random order.

    Args:
        reads: the chosen calls of each timed trial.
    """
    found = [(trial, read) for trial, of_trial in enumerate(reads) for read in of_trial]
    random.SystemRandom().shuffle(found)
    modes = {read.mode for _, read in found} & {"chain", "batch"} or {"reading"}
    left = dict.fromkeys(modes, ENOUGH_READS)
    needed: list[ReadOf] = []
    others: list[ReadOf] = []
    for trial, read in found:
        is_needed = left.get(read.mode, 0) > 0 and not read.is_base
        if is_needed:
            left[read.mode] -= 1
        (needed if is_needed else others).append((trial, read))
    return needed, others


def plan_stress(job: JobContext, baseline: Baseline | None = None) -> StressPlan | None:
    """Return the plan of a job's stress cases; None if its evaluator judges usual inputs only.

    If no floats are judged on stress inputs, the notes get the reason.

    Args:
        baseline: the reference's outputs for usual inputs, and its latency.
    """
    definition, evaluator = job.request.definition, job.request.evaluator
    outputs = baseline.outputs if baseline is not None else ()
    checks = evaluator.stress_checks(definition, job.config)
    has_constants = checks is not None and bool(find_constants(outputs))
    if checks is None or not checks.judges_floats:
        why = why_no_stress(definition) or f"{evaluator.__name__} does not compare element by element"
        job.notes["why_no_regimes"] = why if job.config.regimes_rule else "regimes_rule is off"
        if not has_constants:
            return None
    latency_ms = baseline.mean_latency_ms if baseline is not None else None
    device_type = next((value.device.type for value in (*outputs[0],)), "cpu") if outputs else "cpu"
    most = count_affordable(latency_ms, device_type)
    return StressPlan(definition, job.workload, job.requested.seed, has_constants=has_constants, most=most)


def judge_stress(
    job: JobContext,
    calls: Sequence[StressCall],
    baseline: Baseline,
    context: JudgeContext,
    planned: Sequence[str] = (),
) -> Rejected | None:
    """Return the first verdict that rejects. The notes get the judged cases, and the other cases with their reasons.

    Args:
        baseline: expected outputs for usual inputs.
        planned: the cases of a job whose calls and reference are quick.
    """
    judging = _Judging(job, baseline, context)
    is_small = bytes_of(baseline.outputs[0]) <= TOGETHER_BYTES
    wrong, reported = judging.judge(calls, len(calls) if is_small else 1), judging.reported
    made = dict.fromkeys(call.case for call in calls)
    missing = {name: SLOW for name in planned if reported.get(name) is SLOW or name not in made}
    if reported or missing:
        job.notes["regimes"] = {name: reported[name] for name in made if name in reported} | missing
    measurement = job.notes.get("measurement")
    if wrong is None and isinstance(measurement, dict):
        # Flag an output that was the same on all inputs. A single set of inputs without stress cases proves nothing.
        is_known = len({id(outputs) for outputs in baseline.outputs}) > 1 or bool(reported)
        is_constant = is_known and bool(judging.constants.keys() - judging.changed)
        add_flags(measurement, constant_output=is_constant, regimes_left_out=bool(missing))
    return wrong


def judge_library_calls(notes: dict[str, Any], policy: LibraryCalls) -> Rejected | None:
    """Apply the policy to a right solution whose kernels are all a library's: flag its time, or refuse it.

    A refusal says nothing about the outputs, so the status is RUNTIME_ERROR. If kernels are unknown, nothing is
    refused, and a flag says so.

    Args:
        notes: the job's notes; a refusal is noted for resumed runs.
        policy: the run's policy.
    """
    measurement = notes.get("measurement", {})
    whose = measurement.get("library_kernels")
    is_own = whose != "all"
    if policy == "flag":
        add_flags(measurement, library_calls=not is_own)
    if policy == "refuse":
        add_flags(measurement, unknown_kernels=whose == "unknown")
    if is_own or policy != "refuse":
        return None
    names = [name[:NAME_CHARS] for name in measurement["kernels"] if name not in COPIES]
    notes["library_calls"] = "refused"
    message = "library calls are refused, and all kernels of the timed calls are a library's"
    return Rejected(EvaluationStatus.RUNTIME_ERROR, f"{message}: {', '.join(names[:MOST_NAMED])}")


Found = list[tuple[str, JudgedCall]]
"""Calls with their expected outputs, each with its case."""


class _Judging:
    """Judges a job's calls on inputs of stress cases.

    Args:
        baseline: expected outputs for usual inputs.
    """

    def __init__(self, job: JobContext, baseline: Baseline, context: JudgeContext) -> None:
        self._baseline, self._context = baseline, context
        self._reference = job.request.reference
        self._checks = job.request.evaluator.stress_checks(job.request.definition, job.config)
        self.constants = find_constants(baseline.outputs)
        """Index of each output that is the same on all usual inputs → its value."""
        self.changed: set[int] = set()
        """Indices of the constant outputs that change on inputs of a case."""
        self.reported: dict[str, str] = {}
        """Case → result of its calls."""

    def judge(self, calls: Sequence[StressCall], most: int) -> Rejected | None:
        """Judge the calls, at most `most` together; record the result of each case."""
        found: Found = []
        deadline = time.monotonic() + PATIENCE_S
        for call in calls:
            if time.monotonic() > deadline:
                self._record(call.case, SLOW)
                continue
            try:
                expected = call.expected or self._reference(call.inputs)
            except DefinitionFault:
                self._record(call.case, "left out: the reference fails")
                continue
            except WorkloadFault:  # an earlier wrong call is reported first
                if (wrong := self._judge_together(found)) is not None:
                    return wrong
                raise
            found.append((call.case, JudgedCall(call.inputs, call.outputs, expected)))
            if len(found) == most:
                if (wrong := self._judge_together(found)) is not None:
                    return wrong
                found = []
        return self._judge_together(found)

    def _judge_together(self, found: Found) -> Rejected | None:
        wrong = self._judge_constants(found)
        if wrong is None and self._checks is not None and self._checks.judges_floats:
            floats = [one for one in found if one[0] not in FOR_CONSTANTS_ALONE]
            wrong = self._judge_norms(self._checks, floats) if floats else None
        return wrong

    def _judge_constants(self, found: Found) -> Rejected | None:
        for case, call in found if self.constants else []:
            usual = {at: value for at, value in self.constants.items() if bool(differs(call.expected[at], value).any())}
            self.changed |= usual.keys()
            self._record(case, JUDGED if usual else THE_SAME)
            if usual and self._checks is not None:
                verdict = self._checks.judge_constants(case, call, usual, self._context)
                if isinstance(verdict, Rejected):
                    return replace(verdict, call=call)
        return None

    def _judge_norms(self, checks: StressChecks, found: Found) -> Rejected | None:
        """Judge floats. If all calls surely pass, one check of all calls is enough."""
        sure = checks.surely_pass([call for _, call in found])
        if sure is not None:
            for (case, _), says in zip(found, sure, strict=True):
                self._record(case, JUDGED if says else ZEROS)
            return None
        for case, call in found:
            judged, context, full, empty, more = call, self._context, JUDGED, ZEROS, ""
            part = keep_finite(call, context, self._baseline.outputs)
            if part is not None:
                (judged, context), full, empty = part, IN_PART, NOT_FINITE
                more = "; rows that are not finite are left out and not counted"
            verdict = checks.judge(case, judged, context)
            is_wrong = isinstance(verdict, Rejected)
            self._record(case, full if is_wrong or any(map(says_something, judged.expected)) else empty)
            if isinstance(verdict, Rejected):
                return replace(verdict, message=f"{verdict.message}{more}", call=judged)
        return None

    def _record(self, case: str, what: str) -> None:
        """Record the latest result of a case. No result replaces JUDGED, and only JUDGED replaces IN_PART."""
        before = self.reported.get(case)
        if before != JUDGED and (before != IN_PART or what == JUDGED):
            self.reported[case] = what
