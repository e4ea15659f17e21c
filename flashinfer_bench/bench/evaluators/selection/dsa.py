"""The DSA evaluator, for DeepSeek's sparse attention over a paged cache.

Attention is compared element by element: the output and, if the definition has one, the lse. Where a token sees
nothing, the reference's lse is -inf, and the solution's has to be -inf. The indices of a top-k indexer are judged by
the scores that they select: see `choices`.
"""

from __future__ import annotations

from typing import Final

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import EvaluatorRecord, ExtraKey, is_number
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import JudgedCall, Verdict
from flashinfer_bench.bench.evaluators.selection.indexer import DSA_TOLERANCE, find_roles, judge_indices, read_problem
from flashinfer_bench.bench.evaluators.verdict import read_parameter
from flashinfer_bench.data import Definition

DEFAULT_TOLERANCE: Final = 2e-3
"""How far off a score may be, as a share of its magnitude. Rounding the scaled keys to bfloat16 changes the worst of
some hundred scores by this share. Scores differ from each other by about a hundred times as much."""


class DSAEvaluator(DefaultEvaluator):
    """Takes op type dsa_paged, also spelt dsa-paged."""

    record = EvaluatorRecord(
        revision=5,
        op_types=("dsa_paged",),
        extra_keys={
            "dsa_score_tolerance": ExtraKey(
                "a number from 0 to 1, 1 excluded", lambda value: is_number(value) and 0 <= value < 1
            )
        },
    )
    own_rule = "choose by the DSA evaluator's scores, weight * relu(query . key) summed over heads"

    @classmethod
    def judge_trial(cls, definition: Definition, trial: JudgedCall, cfg: ResolvedEvalConfig) -> Verdict:
        """Compare attention; judge an indexer's choice by the scores that it selects."""
        roles = find_roles(definition)
        if roles is None:
            return super().judge_trial(definition, trial, cfg)
        tolerance = read_parameter(cfg, DSA_TOLERANCE, DEFAULT_TOLERANCE)
        problem = read_problem(definition, roles, trial.inputs)
        return judge_indices(problem, trial.got[0], tolerance, name=next(iter(definition.outputs)))

    @classmethod
    def compares_elements(cls, definition: Definition) -> bool:
        """Attention is compared element by element, an indexer's choice is not."""
        return find_roles(definition) is None
