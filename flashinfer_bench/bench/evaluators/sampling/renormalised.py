"""The Renormalised evaluator: a filter keeps the largest probabilities of a row and scales them to a sum of one.

Nearly all elements are zero, so the share of matching elements means little. A row is judged by its kept entries, as
`rules` explains. No kept entry may be smaller than a dropped entry. The value of a kept entry must be its input divided
by the sum of the kept inputs.
"""

from __future__ import annotations

from typing import Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import RECORDS
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.sampling.rules import SamplingProblem, SortedRows, read_problem
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Correctness, Definition

TIE: Final = 1e-6
"""Inputs count as equal if their relative difference is at most this number."""
BOUNDARY_MASS: Final = 1e-3
"""Sums are rounded, so the boundary of top_p may be off by this mass."""


class RenormalisedEvaluator(DefaultEvaluator):
    """Takes op type sampling. Inputs are probabilities [rows, entries] and top_k or top_p; the output has the same
    shape."""

    record = RECORDS["RenormalisedEvaluator"]
    own_rule = "rescale what it keeps"

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Judge which entries each row keeps, and the values of these entries."""
        got = trial.got[0]
        if not got.numel():
            return decide(None, Correctness())
        problem, error = find_problem(read_problem(definition, trial.inputs), got, cfg.rtol)
        return decide(problem, Correctness(max_relative_error=error, max_absolute_error=error))


def find_problem(problem: SamplingProblem, got: torch.Tensor, rtol: float) -> tuple[str | None, float]:
    """Return a description of what is wrong (None if all rows are right), and the largest relative error of a kept
    value.

    Args:
        problem: the probabilities [rows, entries], and the filter.
        got: the solution's output for the problem, [rows, entries].
        rtol: allowed relative error of a kept value.
    """
    weights, kept = problem.probabilities, got > 0
    for at in (~(torch.isfinite(got) & (got >= 0))).nonzero()[:1].tolist():
        return f"values are no probabilities, the first {float(got[tuple(at)])} at {at}", 1.0
    ordered = SortedRows(problem)
    narrow, wide = (ordered.count_kept(slack) for slack in (-BOUNDARY_MASS, BOUNDARY_MASS))
    least = torch.where(kept, weights, torch.inf).amin(dim=1, keepdim=True)
    dropped = torch.where(kept, -torch.inf, weights).amax(dim=1, keepdim=True)
    for row in (dropped * (1 - TIE) > least).nonzero()[:1, 0].tolist():
        return f"row {row} keeps {float(least[row]):.6g} and drops {float(dropped[row]):.6g}, which is larger", 1.0
    few = kept.sum(dim=1, keepdim=True) < narrow
    wrong = few | (least < ordered.value(wide - 1) * (1 - TIE))
    for row in wrong.nonzero()[:1, 0].tolist():
        right = f"{int(narrow[row])} to {int(torch.maximum(narrow, wide)[row])}"
        counts = f"row {row} keeps {int(kept[row].sum())} entries, {right} would be right"
        return f"{counts}; {int(wrong.sum())} of {len(wrong)} rows keep the wrong ones", 1.0
    sums = torch.where(kept, weights, 0.0).sum(dim=1, keepdim=True, dtype=torch.float64)
    share = torch.where(kept, weights.double() / sums, 1.0)
    errors = torch.where(kept, (got.double() - share).abs() / share, 0.0)
    largest, count = float(errors.max()), int((errors > rtol).sum())
    if not count:
        return None, largest
    row, entry = (errors == errors.max()).nonzero()[0].tolist()
    off = f"expected {float(share[row, entry]):.9g}, got {float(got[row, entry]):.9g}, rtol={rtol:g}"
    return f"{count} of {int(kept.sum())} kept values are off; worst at [{row}, {entry}]: {off}", largest
