"""Steps to a verdict: check count, shape and dtype of the outputs, decide, sum up trials.

The device session has already made tensors of a worker's outputs, and checked their form. This module checks the form
again, because an evaluator accepts any runnable that returns tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.evaluator import Accepted, Rejected, Verdict
from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus

INFINITE_ERRORS: Final = dict.fromkeys(("max_absolute_error", "max_relative_error"), math.inf)
"""Errors of values that cannot be compared."""
UNWRITTEN: Final = "unwritten"
"""Rule: a solution writes every element of an output, even if the right value is NaN."""


def decide(problem: str | None, correctness: Correctness, integrity: Mapping[str, Any] | None = None) -> Verdict:
    """Return the verdict on values: accepted if there is no problem."""
    if problem is None:
        return Accepted(correctness)
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem, correctness, integrity)


def read_parameter(cfg: ResolvedEvalConfig, key: str, default: float) -> float:
    """Return a number of `cfg.extra`, or its default. The plan has checked the number."""
    value: Any = cfg.extra.get(key, default)
    return float(value)


def check_form(
    definition: Definition, returned: Any, expected: Sequence[torch.Tensor]
) -> list[torch.Tensor] | Rejected:
    """Return the outputs of a call as a list, or the verdict on outputs of a wrong count, shape or dtype.

    A bool output may be a uint8 tensor of its bytes. Elements whose right value is NaN must be written, too.
    """
    outputs = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    names = list(definition.outputs)
    if len(outputs) != len(names):
        message = f"returned {len(outputs)} outputs, the definition has {len(names)} ({', '.join(names)})"
        return Rejected(EvaluationStatus.INCORRECT_SHAPE, message)
    for name, output, wanted in zip(names, outputs, expected, strict=True):
        if output.shape != wanted.shape:
            message = f"output {name!r} has shape {list(output.shape)}, expected {list(wanted.shape)}"
            return Rejected(EvaluationStatus.INCORRECT_SHAPE, message)
        if output.dtype not in (wanted.dtype, torch.uint8 if wanted.dtype == torch.bool else wanted.dtype):
            message = f"output {name!r} is {output.dtype}, expected {wanted.dtype}"
            return Rejected(EvaluationStatus.INCORRECT_DTYPE, message)
        count = count_unwritten(wanted, output)
        if count:
            message = (
                f"output {name!r} was not written: {count} of {output.numel()} elements, which are nan by right, hold "
                "what lay there before the call; write nan there"
            )
            integrity = {"rule": UNWRITTEN, "evidence": {"output": name, "elements": count}}
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, Correctness(**INFINITE_ERRORS), integrity)
    return outputs


def summarise(trials: Sequence[Correctness]) -> Correctness:
    """Merge accepted trials: the largest errors of all trials, and `extra` of the trial with the largest relative
    error.

    If the trials have records of their outputs, the worst record of each output is kept.
    """
    worst = max(trials, key=lambda trial: trial.max_relative_error)
    extra = {**(worst.extra or {}), "trials": len(trials)}
    if "outputs" in extra:
        result = [trial.extra or {} for trial in trials]
        extra["matched_ratio"] = min(each["matched_ratio"] for each in result)
        extra["outputs"] = {
            name: min(
                (each["outputs"][name] for each in result),
                key=lambda record: (record["matched_ratio"], -record["max_absolute_error"]),
            )
            for name in extra["outputs"]
        }
    largest = max(trial.max_absolute_error for trial in trials)
    return Correctness(max_relative_error=worst.max_relative_error, max_absolute_error=largest, extra=extra)
