"""The DSA evaluator, for DeepSeek's sparse attention over a paged cache.

Attention is compared element by element, output and, where the definition has one, lse: what is -inf for a token that
sees nothing has to be -inf. The indices of a top-k indexer are judged by the scores that they select: `dsa_indices`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.built_in import DSA
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator, build_baseline, check_elements, check_reference
from flashinfer_bench.bench.evaluators.evaluator import (
    Accepted,
    Baseline,
    JudgeContext,
    Rejected,
    SolutionRunnable,
    Verdict,
)
from flashinfer_bench.bench.evaluators.reference import Reference
from flashinfer_bench.bench.evaluators.selection.indexer import IndexerRoles, find_roles, read_problem
from flashinfer_bench.bench.evaluators.selection.indices import DEFAULT_TOLERANCE, judge_indices
from flashinfer_bench.bench.evaluators.verdict import check_form, read_parameter, resolve_tolerance
from flashinfer_bench.bench.extra_keys import DSA_TOLERANCE
from flashinfer_bench.data import Correctness, Definition, Workload
from flashinfer_bench.errors import DefinitionFault


class DSAEvaluator(DefaultEvaluator):
    """Takes op type dsa_paged, also spelt dsa-paged."""

    revision = DSA.revision

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Take sparse attention and its indexer."""
        return DSA.takes(definition)

    @classmethod
    def build_baseline(
        cls,
        definition: Definition,
        workload: Workload,
        cfg: ResolvedEvalConfig,
        device: torch.device,
        *,
        context: JudgeContext,
    ) -> Baseline:
        """As Default; an indexer's reference has to pass by the scores that a solution is judged by."""
        baseline = build_baseline(definition, workload, cfg, device, context=context)
        roles = find_roles(definition)
        if roles is None:
            check_reference(definition, baseline, resolve_tolerance(cfg, default_ratio=1.0), context=context)
        else:
            _check_indexer(definition, roles, baseline, read_tolerance(cfg), context.reference)
        return baseline

    @classmethod
    def check_correctness(
        cls,
        definition: Definition,
        sol_runnable: SolutionRunnable,
        inputs: list[list[Any]],
        ref_outputs: list[list[torch.Tensor]],
        cfg: ResolvedEvalConfig,
        *,
        context: JudgeContext,
    ) -> Verdict:
        """Compare attention; judge indices by the scores that they select."""
        del context
        roles = find_roles(definition)
        if roles is None:
            tolerance = resolve_tolerance(cfg, default_ratio=1.0)
            return check_elements(definition, sol_runnable, inputs, ref_outputs, tolerance=tolerance)
        share, done = read_tolerance(cfg), []
        for trial, (trial_inputs, expected) in enumerate(zip(inputs, ref_outputs, strict=True)):
            got = check_form(definition, sol_runnable(*trial_inputs), expected)
            if isinstance(got, Rejected):
                return got
            verdict = judge_indices(
                read_problem(definition, roles, trial_inputs), got[0], share, name=next(iter(definition.outputs))
            )
            if isinstance(verdict, Rejected):
                which = f" (trial {trial + 1} of {len(inputs)})" if len(inputs) > 1 else ""
                return Rejected(verdict.status, f"{verdict.message}{which}", verdict.correctness)
            done.append(verdict.correctness)
        return Accepted(_worst_of(done))


def read_tolerance(cfg: ResolvedEvalConfig) -> float:
    """Give the share of a score's magnitude that it may be off by.

    Raises:
        WorkloadFault: it is out of range.
    """
    return read_parameter(cfg, DSA_TOLERANCE, DEFAULT_TOLERANCE)


def _check_indexer(
    definition: Definition,
    roles: IndexerRoles,
    baseline: Baseline,
    tolerance: float,
    reference: Any,
) -> None:
    """Hold the reference's indices, and those of a second call, against the scores.

    Raises:
        DefinitionFault: they do not fit, so that the scores are not this definition's.
    """
    name = next(iter(definition.outputs))

    def find_problem(first: Sequence[torch.Tensor], second: Sequence[torch.Tensor]) -> str | None:
        del first
        verdict = judge_indices(read_problem(definition, roles, baseline.inputs[0]), second[0], tolerance, name=name)
        return verdict.message if isinstance(verdict, Rejected) else None

    wrong = find_problem([], baseline.outputs[0])
    if wrong is not None:
        rule = "the DSA evaluator's scores, weight * relu(query . key) summed over heads"
        raise DefinitionFault(f"the reference of {definition.name} does not choose by {rule}: {wrong}")
    if isinstance(reference, Reference):
        reference.check_repeats(baseline.inputs[0], baseline.outputs[0], find_problem)


def _worst_of(trials: Sequence[Correctness]) -> Correctness:
    worst = max(trials, key=lambda trial: trial.max_relative_error)
    return Correctness(
        max_relative_error=worst.max_relative_error,
        max_absolute_error=max(trial.max_absolute_error for trial in trials),
        extra={"trials": len(trials), **(worst.extra or {})},
    )
