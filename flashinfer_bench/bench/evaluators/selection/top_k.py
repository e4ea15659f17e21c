"""The TopK evaluator: the k largest scores of each row, in any order.

With ties, several answers are right, so indices are judged by the scores that they select (`choices`), without a
margin. An index may be a column, an entry of the row's page table, or a column plus the row's offset. The names of the
inputs decide which kind of index is expected.
"""

from __future__ import annotations

from typing import Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import RECORDS
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Rejected, Verdict
from flashinfer_bench.bench.evaluators.selection.choices import PADDING, Offer, judge_choice
from flashinfer_bench.bench.evaluators.verdict import decide
from flashinfer_bench.data import Definition

BEYOND: Final = 2**62
"""Fills the entries of a page table beyond a row's length. No index is this large."""


class TopKEvaluator(DefaultEvaluator):
    """Takes op type top_k: input scores [rows, columns], output indices [rows, k] and maybe values [rows, k]."""

    record = RECORDS["TopKEvaluator"]
    own_rule = "select the largest scores"

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Judge the indices by the scores that they select, and the values by the indices."""
        given = dict(zip(definition.inputs, trial.inputs, strict=True))
        made = dict(zip(definition.outputs, trial.got, strict=True))
        scores, indices, lengths = given["scores"], made["indices"].long(), given.get("lengths")
        (rows, columns), device = scores.shape, scores.device
        lengths = torch.full((rows,), columns, device=device) if lengths is None else lengths.long()
        tokens, offered = torch.arange(columns, device=device), scores
        if "offsets" in given:
            tokens = tokens + given["offsets"].long()[:, None]
        elif "src_page_table" in given:
            table, of_rows = given["src_page_table"].long(), given.get("row_to_batch")
            table = (table if of_rows is None else table[of_rows.long()])[:, :columns]
            inside = tokens[: table.shape[1]] < lengths[:, None]
            tokens, order = torch.where(inside, table, BEYOND).sort(dim=1, stable=True)
            offered = scores.gather(1, order)
        result = judge_choice(Offer(tokens, offered.float(), lengths), indices, name="indices")
        if isinstance(result, Rejected) or "values" not in made:
            return result
        positions = torch.searchsorted(tokens.contiguous(), indices).clamp(max=columns - 1)
        differs = (made["values"] != offered.gather(1, positions)) & (indices != PADDING)
        for row, position in differs.nonzero()[:1].tolist():
            what = f"the value at [{row}, {position}] is {float(made['values'][row, position]):.9g}"
            return decide(f"{what}, not the score that its index points to", result.correctness)
        return result
