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
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.verdict import decide
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
        for inputs, outputs in zip(baseline.inputs, baseline.outputs, strict=True):
            found = cls.judge_trial(definition, JudgedCall(inputs, outputs, outputs), cfg)
            if isinstance(found, Rejected):
                fault = f"the reference of {definition.name} does not rescale what it keeps: {found.message}"
                raise WorkloadFault(fault)

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Judge which entries each row keeps, and the values of these entries."""
        given, got = dict(zip(definition.inputs, trial.inputs, strict=True)), trial.got[0]
        weights, top_k = given[find_weights(definition) or ""], given.get("top_k")
        problem = find_problem(weights, got, trial.expected[0], rtol=cfg.rtol, top_k=top_k)
        error = 1.0 if problem is not None else _errors(weights, got).max().item() if got.numel() else 0.0
        return decide(problem, Correctness(max_relative_error=error, max_absolute_error=error))


def find_problem(
    weights: torch.Tensor, got: torch.Tensor, expected: torch.Tensor, *, rtol: float, top_k: Any = None
) -> str | None:
    """Say what is wrong with filtered rows; None if they are right.

    Args:
        weights: the probabilities, [rows, entries].
        got: what a solution made of them, [rows, entries].
        expected: what the reference made of them, [rows, entries].
        rtol: relative error that a kept value may have.
        top_k: number of entries to keep, one for all rows or one for each; None if the filter keeps a mass (top_p).
    """
    if not got.numel():
        return None
    kept, wanted = got > 0, expected > 0
    bad = ~(torch.isfinite(got) & (got >= 0))
    if bool(bad.any()):
        where = bad.nonzero()[0].tolist()
        first = f"the first {float(got[tuple(where)])} at {where}"
        return f"{int(bad.sum())} of {got.numel()} values are no probabilities, {first}"
    least = torch.where(kept, weights, torch.inf).amin(dim=1)
    dropped = torch.where(kept, -torch.inf, weights).amax(dim=1)
    for row in (dropped * (1 - TIE) > least).nonzero()[:1, 0].tolist():
        return f"row {row} keeps {float(least[row]):.6g} and drops {float(dropped[row]):.6g}, which is larger"
    # Entries that tie with the smallest one that the reference keeps may be kept or dropped.
    edge = torch.where(wanted, weights, torch.inf).amin(dim=1, keepdim=True)
    other = (kept != wanted) & ~((weights - edge).abs() <= TIE * edge)
    if top_k is None:
        mass = _mass(weights, wanted)
        slack = BOUNDARY_MASS * mass
        wrong = (_mass(weights, other) > slack) | (_mass(weights, kept) < mass - slack)
    else:
        k = torch.as_tensor(top_k, device=weights.device).reshape(-1)
        wrong = other.any(dim=1) | (kept.sum(dim=1) < torch.minimum(k, (weights > 0).sum(dim=1)))
    for row in wrong.nonzero()[:1, 0].tolist():
        counts = f"{int(kept[row].sum())} entries, the reference {int(wanted[row].sum())}"
        return f"row {row} keeps {counts}; {int(wrong.sum())} of {len(wrong)} rows keep the wrong ones"
    errors = _errors(weights, got)
    count = int((errors > rtol).sum())
    if not count:
        return None
    row, entry = (errors == errors.max()).nonzero()[0].tolist()
    share = float(weights[row, entry]) / float(_mass(weights, kept)[row])
    return (
        f"{count} of {int(kept.sum())} kept values are off; worst at [{row}, {entry}]: "
        f"expected {share:.9g}, got {float(got[row, entry]):.9g}, rtol={rtol:g}"
    )


def _mass(weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    return torch.where(chosen, weights, 0.0).sum(dim=1, dtype=torch.float64)


def _errors(weights: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    """Return the relative errors of kept entries, and 0 for the others, [rows, entries]."""
    kept = got > 0
    share = torch.where(kept, weights.double() / _mass(weights, kept)[:, None], 1.0)
    return torch.where(kept, (got.double() - share).abs() / share, 0.0)
