"""The TopK evaluator: the k largest scores of each row, in any order.

Ties make several answers right, so indices are judged by the scores that they select. Each index has to be in range and
may be there once. There must be k of them, or as many as the row has scores; the rest is -1. Their sorted scores must
equal the largest ones bit by bit. An index may be a column, an entry of the row's page table, or a column plus the
row's offset; the names of the inputs say which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import EvaluatorRecord
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, JudgedCall
from flashinfer_bench.bench.evaluators.verdict import Verdict, decide
from flashinfer_bench.data import Correctness, Definition
from flashinfer_bench.errors import WorkloadFault

NOTHING: Final = -1
"""The index that fills a row with too few scores; it selects no score."""


class TopKEvaluator(DefaultEvaluator):
    """Takes op type top_k: input scores [rows, columns], output indices [rows, k] and maybe values [rows, k]."""

    record = EvaluatorRecord(
        revision=1,
        op_types=("top_k",),
        takes=lambda definition: "scores" in definition.inputs and "indices" in definition.outputs,
    )

    @classmethod
    def check_reference(
        cls, definition: Definition, baseline: Baseline, cfg: ResolvedEvalConfig, context: JudgeContext
    ) -> None:
        """Judge the reference's outputs of each trial as those of a solution.

        Raises:
            WorkloadFault: they are wrong.
        """
        del cfg, context
        for inputs, outputs in zip(baseline.inputs, baseline.outputs, strict=True):
            problem = find_problem(definition, inputs, outputs)
            if problem is not None:
                raise WorkloadFault(f"the reference of {definition.name} does not select the largest scores: {problem}")

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Judge the indices by the scores that they select, and the values by the indices."""
        del cfg
        problem = find_problem(definition, trial.inputs, trial.got)
        error = 0.0 if problem is None else 1.0
        return decide(problem, Correctness(max_relative_error=error, max_absolute_error=error))


def find_problem(definition: Definition, inputs: Sequence[Any], outputs: Sequence[torch.Tensor]) -> str | None:
    """Say what is wrong with a selection; None where it is right."""
    given = dict(zip(definition.inputs, inputs, strict=True))
    made = dict(zip(definition.outputs, outputs, strict=True))
    scores, indices = given["scores"], made["indices"].long()
    rows, columns = scores.shape
    lengths = given.get("lengths")
    length = torch.full((rows,), columns, device=scores.device) if lengths is None else lengths.long()
    column, is_known = _to_columns(indices, given)
    is_empty = indices == NOTHING
    inside = is_empty | (is_known & (column >= 0) & (column < length[:, None]))
    if not bool(inside.all()):
        row, place = (int(i) for i in (~inside).nonzero()[0])
        return f"index {int(indices[row, place])} in row {row} points to no score; the row has {int(length[row])}"
    wanted = length.clamp(max=indices.shape[1])
    counts = (~is_empty).sum(dim=1)
    if not torch.equal(counts, wanted):
        row = int((counts != wanted).nonzero()[0])
        return f"row {row} has {int(counts[row])} indices; there should be {int(wanted[row])}, and -1 for the rest"
    ordered = torch.where(is_empty, -1 - torch.arange(indices.shape[1], device=indices.device), column).sort(dim=1)
    twice = (ordered.values[:, 1:] == ordered.values[:, :-1]).any(dim=1)
    if bool(twice.any()):
        return f"row {int(twice.nonzero()[0])} has an index twice"
    return _compare_scores(scores, column, is_empty, length) or _compare_values(made.get("values"), scores, column)


def _to_columns(indices: torch.Tensor, given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Turn indices into columns, and tell which of the indices have a column."""
    if "offsets" in given:
        return indices - given["offsets"].long()[:, None], torch.ones_like(indices, dtype=torch.bool)
    if "src_page_table" not in given:
        return indices, torch.ones_like(indices, dtype=torch.bool)
    table = given["src_page_table"].long()
    rows = given.get("row_to_batch")
    table = table if rows is None else table[rows.long()]
    ordered = table.sort(dim=1)
    place = torch.searchsorted(ordered.values, indices.contiguous()).clamp(max=table.shape[1] - 1)
    return ordered.indices.gather(1, place), ordered.values.gather(1, place) == indices


def _compare_scores(
    scores: torch.Tensor, column: torch.Tensor, is_empty: torch.Tensor, length: torch.Tensor
) -> str | None:
    lowest = float("-inf")
    allowed = torch.arange(scores.shape[1], device=scores.device) < length[:, None]
    inside = torch.where(allowed, scores.float(), lowest)
    chosen = torch.where(is_empty, lowest, inside.gather(1, torch.where(is_empty, 0, column)))
    kept = min(chosen.shape[1], scores.shape[1])
    best = inside.topk(kept, dim=1).values
    got = chosen.sort(dim=1, descending=True).values[:, :kept]
    differs = got != best
    if not bool(differs.any()):
        return None
    row, rank = (int(i) for i in differs.nonzero()[0])
    where = f"the score of rank {rank} in row {row} should be {float(best[row, rank]):.9g}"
    return f"{where}, the chosen one is {float(got[row, rank]):.9g}; {int(differs.any(dim=1).sum())} rows are wrong"


def _compare_values(values: torch.Tensor | None, scores: torch.Tensor, column: torch.Tensor) -> str | None:
    if values is None:
        return None
    differs = values != scores.gather(1, column)
    if not bool(differs.any()):
        return None
    row, place = (int(i) for i in differs.nonzero()[0])
    return f"the value at [{row}, {place}] is {float(values[row, place]):.9g}, not the score that its index points to"
