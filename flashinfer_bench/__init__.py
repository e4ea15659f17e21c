"""Decide, honestly and fast, whether a GPU kernel is right and how fast it is.

The names below are the public ones; each is imported when it is first asked for, so importing the package is cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

_BENCH_NAMES: Final = {"Benchmark": "benchmark", "BenchmarkConfig": "config"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"bench.{_BENCH_NAMES[name]}" if name in _BENCH_NAMES else "data"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
