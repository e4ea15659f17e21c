"""What a verdict is, and the steps to one: check count, shape and dtype of the outputs, compare values, sum up trials.

The process boundary has checked count, shape and dtype before. They are checked here again, because an evaluator takes
any runnable.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.compare.outputs import compare
from flashinfer_bench.bench.evaluators.compare.pattern import describe_pattern
from flashinfer_bench.bench.evaluators.compare.rule import Comparison, Tolerance
from flashinfer_bench.bench.evaluators.inputs.fills import count_unwritten
from flashinfer_bench.bench.extra_keys import MAX_ABSOLUTE_ERROR, MAX_ERROR_CAP, SUMMED_TOLERANCE, why_wrong
from flashinfer_bench.data import Correctness, Definition, EvaluationStatus
from flashinfer_bench.errors import WorkloadFault

MAX_RECORDED_OUTPUTS: Final = 16
"""A trace has a record of each output, of this many outputs at most."""
_NUMBERS_FOR: Final = {"float": (float, int), "int": (int,), "bool": (bool,)}


@dataclass(frozen=True)
class Accepted:
    """The solution is right."""

    correctness: Correctness


@dataclass(frozen=True)
class Rejected:
    """The solution is wrong."""

    status: EvaluationStatus
    message: str
    """Says what is wrong, where, and how far off; the trace's log shows it."""
    correctness: Correctness | None = None
    """How far off the values are; None where no values were compared."""
    integrity: Mapping[str, Any] | None = None
    """`rule` and `evidence` where a rule beside the user's tolerance decided; the trace has it in `extra`."""


Verdict = Accepted | Rejected


def decide(problem: str | None, correctness: Correctness) -> Verdict:
    """Give the verdict on values: accepted where there is no problem."""
    if problem is None:
        return Accepted(correctness)
    return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, problem, correctness)


def read_parameter(cfg: ResolvedEvalConfig, key: str, default: float) -> float:
    """Read a number from `cfg.extra`.

    Raises:
        WorkloadFault: the number is out of range.
    """
    value: Any = cfg.extra.get(key, default)
    reason = why_wrong(key, value)
    if reason is not None:
        raise WorkloadFault(reason)
    return float(value)


def resolve_tolerance(cfg: ResolvedEvalConfig, *, default_ratio: float) -> Tolerance:
    """Give the tolerance that a configuration asks for.

    Args:
        cfg: the resolved configuration; `extra["max_error_cap"]` and `extra["max_absolute_error"]` are caps on the
            largest error; `extra["summed_tolerance"]` adds atol and rtol up.
        default_ratio: the required matched ratio where the configuration gives none.
    """
    ratio = default_ratio if cfg.required_matched_ratio is None else cfg.required_matched_ratio
    cap = read_parameter(cfg, MAX_ERROR_CAP, Tolerance.max_error_cap)
    largest = read_parameter(cfg, MAX_ABSOLUTE_ERROR, Tolerance.max_absolute_error)
    is_sum = bool(cfg.extra.get(SUMMED_TOLERANCE, False))
    return Tolerance(cfg.rtol, cfg.atol, ratio, cap, max_absolute_error=largest, is_sum=is_sum)


def check_form(
    definition: Definition, returned: Any, expected: Sequence[torch.Tensor]
) -> list[torch.Tensor] | Rejected:
    """Check count, shapes and dtypes of what a solution returned; give its outputs as a list of tensors.

    A Python number is taken as a 0-d tensor of its kind. A bool output may be given as its bytes, in uint8. Elements
    that are NaN by right have to be written, too.
    """
    values = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    names = list(definition.outputs)
    if len(values) != len(names):
        message = f"returned {len(values)} outputs, the definition has {len(names)} ({', '.join(names)})"
        return Rejected(EvaluationStatus.INCORRECT_SHAPE, message)
    for name, value, wanted in zip(names, values, expected, strict=True):
        shape = list(value.shape) if isinstance(value, torch.Tensor) else []
        if _is_value(value) and shape != list(wanted.shape):
            message = f"output {name!r} has shape {shape}, expected {list(wanted.shape)}"
            return Rejected(EvaluationStatus.INCORRECT_SHAPE, message)
    for name, value, wanted in zip(names, values, expected, strict=True):
        if not _fits_dtype(value, wanted.dtype):
            kind = value.dtype if isinstance(value, torch.Tensor) else f"a Python {type(value).__name__}"
            message = f"output {name!r} is {kind}, expected {wanted.dtype}"
            return Rejected(EvaluationStatus.INCORRECT_DTYPE, message)
    outputs = [
        value if isinstance(value, torch.Tensor) else torch.tensor(value, dtype=wanted.dtype, device=wanted.device)
        for value, wanted in zip(values, expected, strict=True)
    ]
    for name, output, wanted in zip(names, outputs, expected, strict=True):
        count = count_unwritten(wanted, output)
        if count:
            message = (
                f"output {name!r} was not written: {count} of {output.numel()} elements, which are nan by right, hold "
                "what lay there before the call; write nan there"
            )
            wrong = Correctness(max_relative_error=math.inf, max_absolute_error=math.inf)
            return Rejected(EvaluationStatus.INCORRECT_NUMERICAL, message, wrong)
    return outputs


def compare_outputs(
    definition: Definition, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: Tolerance
) -> list[Comparison]:
    """Compare each output with the expected one."""
    return [
        compare(wanted, value, tolerance, output=name)
        for name, value, wanted in zip(definition.outputs, got, expected, strict=True)
    ]


def describe_problems(comparisons: Iterable[Comparison]) -> str | None:
    """Give one line for each wrong output; None where all outputs are right."""
    problems = [problem for comparison in comparisons if (problem := comparison.problem()) is not None]
    return "\n".join(problems) if problems else None


def judge_elements(
    definition: Definition, got: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], tolerance: Tolerance
) -> Verdict:
    """Compare every element of every output of one trial."""
    comparisons = compare_outputs(definition, got, expected, tolerance)
    correctness = Correctness(
        max_relative_error=max((comparison.max_rel_error for comparison in comparisons), default=0.0),
        max_absolute_error=max((comparison.max_abs_error for comparison in comparisons), default=0.0),
        extra={
            "trials": 1,
            "matched_ratio": min((comparison.matched_ratio for comparison in comparisons), default=1.0),
            "outputs": {each.output: each.to_record() for each in comparisons[:MAX_RECORDED_OUTPUTS]},
        },
    )
    seen = [
        found if found.problem() is None else replace(found, pattern=describe_pattern(wanted, value, tolerance))
        for found, value, wanted in zip(comparisons, got, expected, strict=True)
    ]
    return decide(describe_problems(seen), correctness)


def summarise(trials: Sequence[Correctness]) -> Correctness:
    """Sum up accepted trials: the largest errors of all, and the other findings of the trial with the largest error.

    Where trials have a record of each output, the worst record of each output is kept.
    """
    worst = max(trials, key=lambda trial: trial.max_relative_error)
    extra = {**(worst.extra or {}), "trials": len(trials)}
    if "outputs" in extra:
        found = [trial.extra or {} for trial in trials]
        outputs = [each["outputs"] for each in found]
        extra["matched_ratio"] = min(each["matched_ratio"] for each in found)
        extra["outputs"] = {name: min((each[name] for each in outputs), key=_rank) for name in outputs[0]}
    return Correctness(
        max_relative_error=worst.max_relative_error,
        max_absolute_error=max(trial.max_absolute_error for trial in trials),
        extra=extra,
    )


def _rank(record: dict[str, Any]) -> tuple[float, float]:
    return (record["matched_ratio"], -record["max_absolute_error"])


def _is_value(value: Any) -> bool:
    return isinstance(value, (torch.Tensor, bool, int, float))


def _fits_dtype(value: Any, dtype: torch.dtype) -> bool:
    if isinstance(value, torch.Tensor):
        return value.dtype == dtype or (dtype == torch.bool and value.dtype == torch.uint8)
    kind = "bool" if dtype == torch.bool else "float" if dtype.is_floating_point else "int"
    return type(value) in _NUMBERS_FOR[kind]
