"""Judges the calls of a job that had inputs of other regimes: by the reference, where it stays finite."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.evaluators.compare.packed import is_packed
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected
from flashinfer_bench.bench.evaluators.inputs.regimes import Regimes
from flashinfer_bench.bench.evaluators.integrity.norms import says_something
from flashinfer_bench.bench.runner.session.job import JobContext
from flashinfer_bench.bench.runner.workers.timed.regime_calls import RegimeCall
from flashinfer_bench.errors import DefinitionFault

PATIENCE_S: Final = 1.0
"""No more calls are judged after the reference has taken so long for them together; the first is always judged."""


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
    block = job.block
    told: dict[str, Any] = {}
    spent_s = 0.0
    for call in calls:
        if spent_s > PATIENCE_S:
            told[call.regime] = "left out: the reference is slow"
            continue
        start = time.monotonic()
        try:
            expected = block.reference(call.inputs)
        except DefinitionFault:
            told[call.regime] = "left out: the reference fails"
            continue
        finally:
            spent_s += time.monotonic() - start
        nonfinite = count_nonfinite(expected)
        if nonfinite and nonfinite > max(map(count_nonfinite, baseline.outputs)):
            told[call.regime] = "left out: the reference is not finite"
            continue
        judged = JudgedCall(call.inputs, call.outputs, expected)
        verdict = block.evaluator.judge_regime(block.definition, call.regime, judged, job.config, context)
        has_norms = isinstance(verdict, Rejected) or any(map(says_something, expected))
        told[call.regime] = "judged" if has_norms else "left out: nothing but zeros is expected"
        if isinstance(verdict, Rejected):
            break
    else:
        verdict = None
    if told:
        job.notes["regimes"] = told
    return verdict if isinstance(verdict, Rejected) else None


def count_nonfinite(outputs: Sequence[torch.Tensor]) -> int:
    """Count the elements of float outputs that are nan or infinite, with one wait for the device."""
    floats = [output.float() for output in outputs if output.dtype.is_floating_point and not is_packed(output.dtype)]
    counts = [(value - value).count_nonzero() for value in floats]  # of a finite number nothing is left
    return int(torch.stack(counts).sum()) if counts else 0
