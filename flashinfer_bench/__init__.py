"""Decide, honestly and fast, whether a GPU kernel is right and how fast it is.

The names below are the public ones; each is imported when it is first asked for, so importing the package is cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.lazy import lazy_names
from flashinfer_bench.version import __version__

if TYPE_CHECKING:
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.bench.config import BenchmarkConfig
    from flashinfer_bench.data import (
        AxisConst,
        AxisVar,
        BuildSpec,
        Correctness,
        Definition,
        Environment,
        Evaluation,
        EvaluationStatus,
        Performance,
        RandomInput,
        SafetensorsInput,
        Solution,
        SourceFile,
        SupportedLanguages,
        TensorSpec,
        Trace,
        TraceSet,
        Workload,
    )

__all__ = [
    "__version__",
    "Benchmark", "BenchmarkConfig",
    "AxisConst", "AxisVar", "Definition", "TensorSpec",
    "BuildSpec", "Solution", "SourceFile", "SupportedLanguages",
    "RandomInput", "SafetensorsInput", "Workload",
    "Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance", "Trace", "TraceSet",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    {"bench.benchmark": ["Benchmark"], "bench.config": ["BenchmarkConfig"], "data": __all__},
)
