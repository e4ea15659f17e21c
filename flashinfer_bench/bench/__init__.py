"""The engine: configuration, plan, runner, judge. Running a trace set starts at `Benchmark`.

The names below are the public ones; each is imported when it is first asked for, so the configuration needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flashinfer_bench.bench.benchmark import Benchmark
    from flashinfer_bench.bench.config import BenchmarkConfig, EvalConfig, ResolvedEvalConfig

__all__ = ["Benchmark", "BenchmarkConfig", "EvalConfig", "ResolvedEvalConfig"]

_HOME_OF: Final = {
    "Benchmark": "benchmark",
    "BenchmarkConfig": "config",
    "EvalConfig": "config",
    "ResolvedEvalConfig": "config",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
