"""The LowBit evaluator: as Default, but a small share of the elements may miss the tolerance.

A kernel that quantises its intermediate values rounds differently from the reference. In a near tie, such a difference
may send a token to another expert. `compare.tolerance` limits the errors of the elements that miss. The share of these
elements must also be small if elements that are zero in both outputs do not count. With few rows, scales in tiles are
mostly zero padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from flashinfer_bench.bench.config import ResolvedEvalConfig
from flashinfer_bench.bench.evaluator_record import RECORDS
from flashinfer_bench.bench.evaluators.compare.tolerance import Tolerance
from flashinfer_bench.bench.evaluators.default import DefaultEvaluator

DEFAULT_MATCHED_RATIO: Final = 0.95
"""Share of elements that must match if the configuration gives no matched ratio."""


class LowBitEvaluator(DefaultEvaluator):
    """Takes op type lowbit, and moe with inputs of 8 bits or fewer."""

    record = RECORDS["LowBitEvaluator"]

    @classmethod
    def tolerance(cls, cfg: ResolvedEvalConfig) -> Tolerance:
        """Return a tolerance that a share of the elements may miss, also in the reference's second call."""
        ratio = DEFAULT_MATCHED_RATIO if cfg.required_matched_ratio is None else cfg.required_matched_ratio
        return replace(super().tolerance(cfg), required_matched_ratio=ratio, ignores_shared_zeros=True)
