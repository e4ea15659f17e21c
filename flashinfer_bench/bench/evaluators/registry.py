"""The evaluators, in the order in which they are asked; append a class to `_EVALUATORS` to have it asked as well."""

from __future__ import annotations

from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
from flashinfer_bench.bench.evaluators.evaluator import Evaluator
from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
from flashinfer_bench.bench.evaluators.sampling import SamplingEvaluator
from flashinfer_bench.data import Definition

_EVALUATORS: list[type[Evaluator]] = [SamplingEvaluator, LowBitEvaluator]
"""The first that takes a definition judges it; one that none takes is DefaultEvaluator's."""


def find_evaluator(definition: Definition) -> type[Evaluator]:
    """Give the evaluator that judges a definition."""
    return next((evaluator for evaluator in _EVALUATORS if evaluator.can_evaluate(definition)), DefaultEvaluator)
