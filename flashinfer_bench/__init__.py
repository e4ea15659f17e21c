"""Check honestly and fast whether a GPU kernel is correct, and measure its speed.

The names below are public. Each name is imported at its first access, so importing the package is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.agents import FFI_PROMPT, FFI_PROMPT_SIMPLE
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig
    from flashinfer_bench.bench.engine import Engine
    from flashinfer_bench.bench.engine_state import EngineLimits, EngineState
    from flashinfer_bench.bench.task import Task
    from flashinfer_bench.data import (
        AxisConst,
        AxisExpr,
        AxisVar,
        BuildSpec,
        CompileOptions,
        Correctness,
        CustomInput,
        Definition,
        Environment,
        Evaluation,
        EvaluationStatus,
        GeneratedInput,
        Performance,
        RandomInput,
        SafetensorsInput,
        ScalarInput,
        Solution,
        SourceFile,
        SupportedBindings,
        SupportedLanguages,
        TensorSpec,
        Trace,
        TraceSet,
        Workload,
        WorkloadCost,
        WorkloadTolerance,
    )

__version__ = "0.1.0"
"""The version, which the build and `--version` read. It is written into every trace."""
__version_tuple__ = (0, 1, 0)
"""The version as a tuple, for comparisons."""

__all__ = [
    "__version__", "__version_tuple__",
    "Benchmark", "BenchmarkConfig", "EvalConfig",
    "Engine", "EngineLimits", "EngineState", "Task",
    "AxisConst", "AxisExpr", "AxisVar", "Definition", "TensorSpec",
    "BuildSpec", "CompileOptions", "Solution", "SourceFile", "SupportedBindings", "SupportedLanguages",
    "CustomInput", "GeneratedInput", "RandomInput", "SafetensorsInput", "ScalarInput",
    "Workload", "WorkloadCost", "WorkloadTolerance",
    "Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance", "Trace", "TraceSet",
    "FFI_PROMPT", "FFI_PROMPT_SIMPLE",
]  # fmt: skip

LEFT_OUT: Final = ("apply", "enable_apply", "disable_apply", "enable_tracing", "disable_tracing", "integration")
LEFT_OUT_PREFIXES: Final = ("ApplyConfig", "TracingConfig")
"""Classes whose names begin with these prefixes are left out."""


def _why_left_out(name: str) -> str | None:
    if name not in LEFT_OUT and not name.startswith(LEFT_OUT_PREFIXES):
        return None
    return (
        "this package judges and times kernels. It neither puts kernels into a running program nor records its calls. "
        "docs/migration.md describes the alternatives"
    )


__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    {
        "bench.benchmark": ["Benchmark"],
        "bench.config": ["BenchmarkConfig", "EvalConfig"],
        "agents": ["FFI_PROMPT", "FFI_PROMPT_SIMPLE"],
        "bench.engine": ["Engine"],
        "bench.engine_state": ["EngineLimits", "EngineState"],
        "bench.task": ["Task"],
        "data": __all__,
    },
    left_out=_why_left_out,
)
