"""Judges the calls of a job that had inputs of other regimes: by the reference, where it stays finite."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.memory import bytes_of
from flashinfer_bench.bench.evaluators.inputs.regimes import Regimes
from flashinfer_bench.bench.evaluators.integrity.norms import says_something
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeCall
from flashinfer_bench.errors import DefinitionFault, WorkloadFault

PATIENCE_S: Final = 1.0
"""No more calls are judged after the reference has taken so long for them together; the first is always judged."""
TOGETHER_BYTES: Final = 1 << 24
"""Calls whose outputs take no more are looked at together: what is expected of all of them is held meanwhile."""
JUDGED: Final = "judged"
ZEROS: Final = "left out: nothing but zeros is expected"


def plan_regimes(job: JobContext) -> Regimes | None:
    """Return what changes inputs of a job's calls; None where its evaluator judges usual inputs only."""
    block = job.block
    if not block.evaluator.takes_regimes(block.definition, job.config):
        return None
    return Regimes(block.definition, job.workload, job.order.seed)


def judge_regimes(
    job: JobContext, calls: Sequence[RegimeCall], baseline: Baseline, context: JudgeContext
) -> Rejected | None:
    """Return the first verdict that rejects; the notes get which regimes were judged, and which were not and why."""
    told: dict[str, Any] = {}
    is_small = bytes_of(baseline.outputs[0]) <= TOGETHER_BYTES
    most = len(calls) if is_small else 1
    wrong: Rejected | None = None
    for found in _expect_together(job, calls, told, most):
        wrong = _judge_together(job, found, baseline, context, told)
        if wrong is not None:
            break
    if told:
        job.notes["regimes"] = {call.regime: told[call.regime] for call in calls if call.regime in told}
    return wrong


def _expect_together(
    job: JobContext, calls: Sequence[RegimeCall], told: dict[str, Any], most: int
) -> Iterator[list[tuple[str, JudgedCall]]]:
    """Give the calls, at most so many together, with what the reference gives for them, as long as it is not slow."""
    spent_s = 0.0
    found: list[tuple[str, JudgedCall]] = []
    for call in calls:
        if spent_s > PATIENCE_S:
            told[call.regime] = "left out: the reference is slow"
            continue
        start = time.monotonic()
        try:
            expected = job.block.reference(call.inputs)
        except DefinitionFault:
            told[call.regime] = "left out: the reference fails"
            continue
        except WorkloadFault:  # what is wrong already is told in its place
            if found:
                yield found
            raise
        finally:
            spent_s += time.monotonic() - start
        found.append((call.regime, JudgedCall(call.inputs, call.outputs, expected)))
        if len(found) == most:
            yield found
            found = []
    if found:
        yield found


def _judge_together(
    job: JobContext,
    found: Sequence[tuple[str, JudgedCall]],
    baseline: Baseline,
    context: JudgeContext,
    told: dict[str, Any],
) -> Rejected | None:
    """Judge calls, by one look at all of them where they surely pass; tell of each what became of it."""
    block = job.block
    sure = block.evaluator.regimes_surely_pass(block.definition, [call for _, call in found], job.config)
    if sure is not None:
        told |= {regime: JUDGED if says else ZEROS for (regime, _), says in zip(found, sure, strict=True)}
        return None
    for regime, call in found:
        nonfinite = count_nonfinite(call.expected)
        if nonfinite and nonfinite > max(map(count_nonfinite, baseline.outputs)):
            told[regime] = "left out: the reference is not finite"
            continue
        verdict = block.evaluator.judge_regime(block.definition, regime, call, job.config, context)
        has_norms = isinstance(verdict, Rejected) or any(map(says_something, call.expected))
        told[regime] = JUDGED if has_norms else ZEROS
        if isinstance(verdict, Rejected):
            return verdict
    return None


def count_nonfinite(outputs: Sequence[torch.Tensor]) -> int:
    """Count the elements of float outputs that are nan or infinite, with one wait for the device."""
    floats = [output.float() for output in outputs if output.dtype.is_floating_point and not is_packed(output.dtype)]
    counts = [(value - value).count_nonzero() for value in floats]  # of a finite number nothing is left
    return int(torch.stack(counts).sum()) if counts else 0
