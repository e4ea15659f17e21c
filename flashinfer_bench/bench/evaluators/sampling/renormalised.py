"""The Renormalised evaluator: a filter keeps the largest probabilities of a row and scales them to a sum of one.

Nearly all elements are zero, so the share of matching elements says little. A row is judged by the entries that it
keeps. No kept entry may be smaller than a dropped one. Only entries at the boundary may differ from the reference's
choice. The value of a kept entry has to be its input divided by the sum of the kept inputs.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import EvaluatorRecord, find_weights
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.verdict import Verdict, decide
from flashinfer_bench.data import Correctness, Definition
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.errors import WorkloadFault

TIE: Final = 1e-6
"""Inputs whose relative difference is at most this count as equal."""
BOUNDARY_MASS: Final = 1e-3
"""Entries holding up to this share of the kept mass may differ from the reference's, because sums are rounded."""


def renormalises(definition: Definition) -> bool:
    """Tell whether a definition keeps some probabilities of each row and rescales them."""
    weights, outputs = find_weights(definition), list(definition.outputs.values())
    if weights is None or "logits" in weights.lower() or len(outputs) != 1:
        return False
    is_filter = ("top_k" in definition.inputs) != ("top_p" in definition.inputs)
    is_float = DTYPES[outputs[0].dtype].kind == "float"
    return is_filter and is_float and outputs[0].shape == definition.inputs[weights].shape


class RenormalisedEvaluator(DefaultEvaluator):
    """Takes op type sampling with probabilities [rows, entries] and top_k or top_p in, the same shape out."""

    record = EvaluatorRecord(revision=1, op_types=("sampling",), takes=renormalises)

    @classmethod
    def check_reference(
        cls, definition: Definition, baseline: Baseline, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> None:
        """Judge the reference's outputs of each trial as those of a solution.

        Raises:
            WorkloadFault: they are wrong.
        """
        del context
        for inputs, outputs in zip(baseline.inputs, baseline.outputs, strict=True):
            weights, top_k = _given(definition, inputs)
            problem = find_problem(weights, outputs[0], outputs[0], rtol=cfg.rtol, top_k=top_k)
            if problem is not None:
                raise WorkloadFault(f"the reference of {definition.name} does not rescale what it keeps: {problem}")

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Judge which entries each row keeps, and the values of these entries."""
        weights, top_k = _given(definition, trial.inputs)
        got = trial.got[0]
        problem = find_problem(weights, got, trial.expected[0], rtol=cfg.rtol, top_k=top_k)
        error = 1.0
        if problem is None:
            error = float(_errors(weights, got).max()) if got.numel() else 0.0
        return decide(problem, Correctness(max_relative_error=error, max_absolute_error=error))


def find_problem(
    weights: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, *, rtol: float, top_k: Any = None
) -> str | None:
    """Say what is wrong with filtered rows; None where they are right.

    Args:
        weights: the probabilities, [rows, entries].
        got: what a solution made of them, [rows, entries].
        expected: what the reference made of them, [rows, entries].
        rtol: relative error that a kept value may have.
        top_k: number of entries to keep, one for all rows or one for each; None where the filter keeps a mass (top_p).
    """
    if not got.numel():
        return None
    kept, wanted = got > 0, expected > 0
    return (
        _find_bad_value(got)
        or _find_wrong_order(weights, kept)
        or _find_wrong_choice(weights, kept, wanted, top_k)
        or _find_error(weights, got, rtol)
    )


def _given(definition: Definition, inputs: list[Any]) -> tuple[torch.Tensor, Any]:
    """Return the probabilities and top_k; top_k is None where the definition has no such input."""
    given = dict(zip(definition.inputs, inputs, strict=True))
    return given[find_weights(definition) or ""], given.get("top_k")


def _find_bad_value(got: torch.Tensor) -> str | None:
    bad = ~(torch.isfinite(got) & (got >= 0))
    if not bool(bad.any()):
        return None
    row, entry = (int(i) for i in bad.nonzero()[0])
    where = f"the first {float(got[row, entry])} at [{row}, {entry}]"
    return f"{int(bad.sum())} of {got.numel()} values are no probabilities, {where}"


def _find_wrong_order(weights: torch.Tensor, kept: torch.Tensor) -> str | None:
    """Say in which row a kept entry is smaller than a dropped one."""
    least = torch.where(kept, weights, float("inf")).amin(dim=1)
    dropped = torch.where(kept, float("-inf"), weights).amax(dim=1)
    wrong = dropped * (1 - TIE) > least
    if not bool(wrong.any()):
        return None
    row = int(wrong.nonzero()[0])
    return f"row {row} keeps {float(least[row]):.6g} and drops {float(dropped[row]):.6g}, which is larger"


def _find_wrong_choice(weights: torch.Tensor, kept: torch.Tensor, wanted: torch.Tensor, top_k: Any) -> str | None:
    """Say in which row other entries are kept than by the reference.

    Entries that tie with the smallest one that the reference keeps may be kept or dropped.
    """
    edge = torch.where(wanted, weights, float("inf")).amin(dim=1, keepdim=True)
    other = (kept != wanted) & ~((weights - edge).abs() <= TIE * edge)
    if top_k is None:
        mass = _mass(weights, wanted)
        slack = BOUNDARY_MASS * mass
        wrong = (_mass(weights, other) > slack) | (_mass(weights, kept) < mass - slack)
    else:
        count = torch.as_tensor(top_k, device=weights.device).reshape(-1)
        wrong = other.any(dim=1) | (kept.sum(dim=1) < torch.minimum(count, (weights > 0).sum(dim=1)))
    if not bool(wrong.any()):
        return None
    row = int(wrong.nonzero()[0])
    counts = f"{int(kept[row].sum())} entries, the reference {int(wanted[row].sum())}"
    return f"row {row} keeps {counts}; {int(wrong.sum())} of {len(wrong)} rows keep the wrong ones"


def _mass(weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.where(chosen, weights, 0.0).sum(dim=1, dtype=torch.float64)


def _find_error(weights: torch.Tensor, got: torch.Tensor, rtol: float) -> str | None:
    errors = _errors(weights, got)
    wrong = errors > rtol
    if not bool(wrong.any()):
        return None
    row, entry = (int(i) for i in (errors == errors.max()).nonzero()[0])
    share = float(weights[row, entry]) / float(_mass(weights, got > 0)[row])
    return (
        f"{int(wrong.sum())} of {int((got > 0).sum())} kept values are off; worst at [{row}, {entry}]: "
        f"expected {share:.9g}, got {float(got[row, entry]):.9g}, rtol={rtol:g}"
    )


def _errors(weights: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return the relative errors of kept entries, and 0 for the others, [rows, entries]."""
    kept = got > 0
    share = torch.where(kept, weights.double() / _mass(weights, kept)[:, None], 1.0)
    return torch.where(kept, (got.double() - share).abs() / share, 0.0)
