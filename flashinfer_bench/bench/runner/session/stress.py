"""Judges the calls of a job that had inputs of stress cases: by the reference, in the rows where it stays finite.

Floats are judged by norms. Outputs that are the same on all usual inputs are judged by whether they change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.stress import (
    FOR_CONSTANTS_ALONE,
    StressPlan,
    count_affordable,
    why_no_stress,
)
from flashinfer_bench.bench.evaluators.integrity.norms import says_something
from flashinfer_bench.bench.evaluators.stress_checks import (
    Constants,
    StressChecks,
    differs,
    find_constants,
    keep_finite,
)
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.bounds import add_flags
from flashinfer_bench.bench.runner.workers.timed.stress_calls import StressCall
from flashinfer_bench.errors import DefinitionFault, WorkloadFault

PATIENCE_S: Final = 4.0
"""A reference that was not timed is called no more after so long, and so is one that turns out to be far slower."""
TOGETHER_BYTES: Final = 1 << 24
"""Calls whose outputs take no more are looked at together: what is expected of all of them is held meanwhile."""
JUDGED: Final = "judged"
IN_PART: Final = "judged where the reference is finite"
SLOW: Final = "left out: the reference or the calls are slow, or large"
ZEROS: Final = "left out: nothing but zeros is expected"
THE_SAME: Final = "left out: nothing else than on usual inputs is expected"


def plan_stress(job: JobContext, baseline: Baseline | None = None) -> StressPlan | None:
    """Return which stress cases a job has; None where its evaluator judges usual inputs only.

    The notes get the reason where no floats are judged on other inputs.

    Args:
        job: the job.
        baseline: what the reference gives for usual inputs, and its latency.
    """
    definition, evaluator = job.block.definition, job.block.evaluator
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
    return StressPlan(definition, job.workload, job.order.seed, has_constants=has_constants, most=most)


def judge_stress(
    job: JobContext,
    calls: Sequence[StressCall],
    baseline: Baseline,
    context: JudgeContext,
    planned: Sequence[str] = (),
) -> Rejected | None:
    """Return the first verdict that rejects; the notes get which cases were judged, and which were not and why.

    Args:
        job: the job.
        calls: those that were made.
        baseline: what is expected of usual inputs.
        context: the evaluator's.
        planned: the cases that the job would have if its calls and the reference were quick.
    """
    judging = _Judging(job, baseline, context, find_constants(baseline.outputs))
    is_small = bytes_of(baseline.outputs[0]) <= TOGETHER_BYTES
    wrong: Rejected | None = None
    for found in judging.expect(calls, len(calls) if is_small else 1):
        wrong = judging.judge(found)
        if wrong is not None:
            break
    told = judging.told
    missing = {name: SLOW for name in planned if told.get(name) is SLOW or not any(call.case == name for call in calls)}
    if told or missing:
        made = dict.fromkeys(call.case for call in calls if call.case in told)
        job.notes["regimes"] = {name: told[name] for name in made} | missing
    measurement = job.notes.get("measurement")
    if wrong is None and isinstance(measurement, dict):
        add_flags(measurement, constant_output=judging.has_constant_output, regimes_left_out=bool(missing))
    return wrong


Found = list[tuple[str, JudgedCall]]
"""Calls with what is expected of them, each with its case."""


@dataclass
class _Judging:
    """Judges a job's calls on inputs of stress cases.

    Args:
        job: the job.
        baseline: what is expected of usual inputs.
        context: the evaluator's.
        constants: the outputs that are the same on these.
    """

    job: JobContext
    baseline: Baseline
    context: JudgeContext
    constants: Constants
    told: dict[str, Any] = field(default_factory=dict)
    """Case → what became of its calls."""
    _changed: set[int] = field(default_factory=set)
    """Those of the constants that are others on inputs of a case."""

    def __post_init__(self) -> None:
        """Ask the evaluator what it judges."""
        self._checks = self.job.block.evaluator.stress_checks(self.job.block.definition, self.job.config)

    @property
    def has_constant_output(self) -> bool:
        """Whether an output was the same on all inputs, of which there were several."""
        is_known = len({id(outputs) for outputs in self.baseline.outputs}) > 1 or bool(self.told)
        return is_known and bool(self.constants.keys() - self._changed)

    def expect(self, calls: Sequence[StressCall], most: int) -> Iterator[Found]:
        """Give the calls, at most so many together, with what the reference gives for them."""
        found: Found = []
        deadline = time.monotonic() + PATIENCE_S
        for call in calls:
            if time.monotonic() > deadline:
                self._tell(call.case, SLOW)
                continue
            try:
                expected = call.expected or self.job.block.reference(call.inputs)
            except DefinitionFault:
                self._tell(call.case, "left out: the reference fails")
                continue
            except WorkloadFault:  # what is wrong already is told in its place
                if found:
                    yield found
                raise
            found.append((call.case, JudgedCall(call.inputs, call.outputs, expected)))
            if len(found) == most:
                yield found
                found = []
        if found:
            yield found

    def judge(self, found: Found) -> Rejected | None:
        """Judge calls; tell of each what became of it."""
        wrong = self._judge_constants(found)
        if wrong is None and self._checks is not None and self._checks.judges_floats:
            wrong = self._judge_norms(self._checks, [one for one in found if one[0] not in FOR_CONSTANTS_ALONE])
        return wrong

    def _judge_constants(self, found: Found) -> Rejected | None:
        for case, call in found if self.constants else []:
            changed = {at for at, usual in self.constants.items() if bool(differs(call.expected[at], usual).any())}
            self._changed |= changed
            self._tell(case, JUDGED if changed else THE_SAME)
            if not changed or self._checks is None:
                continue
            usual = {at: self.constants[at] for at in changed}
            verdict = self._checks.judge_constants(case, call, usual, self.context)
            if isinstance(verdict, Rejected):
                return verdict
        return None

    def _judge_norms(self, checks: StressChecks, found: Found) -> Rejected | None:
        """Judge floats, by one look at all calls where they surely pass."""
        sure = checks.surely_pass([call for _, call in found])
        if sure is not None:
            for (case, _), says in zip(found, sure, strict=True):
                self._tell(case, JUDGED if says else ZEROS)
            return None
        for case, call in found:
            part = keep_finite(call, self.context, self.baseline.outputs)
            judged, context = part or (call, self.context)
            verdict = checks.judge(case, judged, context)
            has_norms = isinstance(verdict, Rejected) or any(map(says_something, judged.expected))
            self._tell(case, _describe(has_norms=has_norms, in_part=part is not None))
            if isinstance(verdict, Rejected):
                more = "" if part is None else "; rows that are not finite are left out and not counted"
                return replace(verdict, message=f"{verdict.message}{more}")
        return None

    def _tell(self, case: str, what: str) -> None:
        """Note what became of a call, unless another of its case, or another output, was judged."""
        before = self.told.get(case)
        if before != JUDGED and (before != IN_PART or what == JUDGED):
            self.told[case] = what


def _describe(*, has_norms: bool, in_part: bool) -> str:
    """Say what became of a call whose norms were looked at."""
    if in_part:
        return IN_PART if has_norms else "left out: the reference is not finite"
    return JUDGED if has_norms else ZEROS
