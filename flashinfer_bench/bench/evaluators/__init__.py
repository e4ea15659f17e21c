"""The judge: evaluators decide whether a solution is right. Evaluators run in the device session, never in a worker.

The names below are for scripts that debug in their own process, without isolation. Each name is imported at its first
use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.bench.evaluators.default import DefaultEvaluator
    from flashinfer_bench.bench.evaluators.evaluator import Evaluator
    from flashinfer_bench.bench.evaluators.lowbit import LowBitEvaluator
    from flashinfer_bench.bench.evaluators.sampling.evaluator import SamplingEvaluator
    from flashinfer_bench.bench.evaluators.utils import (
        DsaSparseAttentionEvaluator,
        DsaTopkIndexerEvaluator,
        resolve_evaluator,
    )

__all__ = [
    "DefaultEvaluator", "DsaSparseAttentionEvaluator", "DsaTopkIndexerEvaluator", "Evaluator", "LowBitEvaluator",
    "SamplingEvaluator", "resolve_evaluator",
]  # fmt: skip

_HOMES = {
    "default": ("DefaultEvaluator",),
    "evaluator": ("Evaluator",),
    "lowbit": ("LowBitEvaluator",),
    "sampling.evaluator": ("SamplingEvaluator",),
    "utils": ("DsaSparseAttentionEvaluator", "DsaTopkIndexerEvaluator", "resolve_evaluator"),
}
__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)
