"""The engine: configuration, plan, runner, judge. Running a trace set starts at `Benchmark`.

The names below are public. Each name is imported at its first use, so the configuration needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, ResolvedEvalConfig

__all__ = ["Benchmark", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    {"benchmark": ["Benchmark"], "config": ["BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]},
)
