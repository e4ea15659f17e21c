"""The LowBit evaluator: as Default, but a small share of the elements may miss the tolerance.

Kernels that quantise on the way round differently from the reference, and a near tie may send a token to another
expert. What may be wrong is bounded: see `comparison`. Blanks on both sides do not count: scales in tiles are mostly
padding where there are few rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluators.built_in import LOWBIT
from flashinfer_bench.bench.evaluators.compare.rule import Tolerance
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator, build_baseline, check_elements, check_reference
from flashinfer_bench.bench.evaluators.evaluator import Baseline, JudgeContext, SolutionRunnable, Verdict
from flashinfer_bench.bench.evaluators.verdict import resolve_tolerance
from flashinfer_bench.data import Definition, Workload

DEFAULT_MATCHED_RATIO: Final = 0.95
"""Share of elements that must match where the configuration leaves it open."""


class LowBitEvaluator(DefaultEvaluator):
    """Takes op type lowbit, and moe with inputs of 8 bits or fewer."""

    revision = LOWBIT.revision

    @classmethod
    def can_evaluate(cls, definition: Definition) -> bool:
        """Take low-bit definitions and quantised moe."""
        return LOWBIT.takes(definition)

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
        """As Default; the reference too may differ from itself in a near tie."""
        baseline = build_baseline(definition, workload, cfg, device, context=context)
        check_reference(definition, baseline, _tolerance(cfg), context=context)
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
        """Compare the solution's outputs with the reference's; the matched ratio stands in the trace."""
        del context
        return check_elements(definition, sol_runnable, inputs, ref_outputs, tolerance=_tolerance(cfg))


def _tolerance(cfg: ResolvedEvalConfig) -> Tolerance:
    return replace(resolve_tolerance(cfg, default_ratio=DEFAULT_MATCHED_RATIO), leaves_blanks_out=True)
