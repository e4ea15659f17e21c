"""The trace-set format and the set on disk: definitions, solutions, workloads, traces. No torch at import.

The names below are public. Each name is imported at its first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.data.definition import AxisConst, AxisExpr, AxisSpec, AxisVar, Definition, TensorSpec
    from flashinfer_bench.data.evaluation import Correctness, Environment, Evaluation, EvaluationStatus, Performance
    from flashinfer_bench.data.issue import LoadIssue
    from flashinfer_bench.data.json_utils import (
        append_jsonl_file,
        load_json_file,
        load_jsonl_file,
        save_json_file,
        save_jsonl_file,
    )
    from flashinfer_bench.data.sets.scores import SpeedupMetrics, TraceSetSummary
    from flashinfer_bench.data.solution import (
        BuildSpec,
        CompileOptions,
        Solution,
        SourceFile,
        SupportedBindings,
        SupportedLanguages,
    )
    from flashinfer_bench.data.trace import Trace
    from flashinfer_bench.data.trace_set import TraceSet
    from flashinfer_bench.data.workload import (
        CustomInput,
        GeneratedInput,
        InputSpec,
        RandomInput,
        SafetensorsInput,
        ScalarInput,
        Workload,
        WorkloadCost,
        WorkloadTolerance,
    )

__all__ = [
    "AxisConst", "AxisExpr", "AxisSpec", "AxisVar", "Definition", "TensorSpec",
    "BuildSpec", "CompileOptions", "Solution", "SourceFile", "SupportedBindings", "SupportedLanguages",
    "CustomInput", "GeneratedInput", "InputSpec", "RandomInput", "SafetensorsInput", "ScalarInput",
    "Workload", "WorkloadCost", "WorkloadTolerance",
    "Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance", "Trace",
    "LoadIssue", "SpeedupMetrics", "TraceSet", "TraceSetSummary",
    "append_jsonl_file", "load_json_file", "load_jsonl_file", "save_json_file", "save_jsonl_file",
]  # fmt: skip

_HOMES = {
    "definition": ("AxisConst", "AxisExpr", "AxisSpec", "AxisVar", "Definition", "TensorSpec"),
    "solution": ("BuildSpec", "CompileOptions", "Solution", "SourceFile", "SupportedBindings", "SupportedLanguages"),
    "workload": (
        "CustomInput",
        "GeneratedInput",
        "InputSpec",
        "RandomInput",
        "SafetensorsInput",
        "ScalarInput",
        "Workload",
        "WorkloadCost",
        "WorkloadTolerance",
    ),
    "evaluation": ("Correctness", "Environment", "Evaluation", "EvaluationStatus", "Performance"),
    "trace": ("Trace",),
    "issue": ("LoadIssue",),
    "trace_set": ("TraceSet",),
    "sets.scores": ("SpeedupMetrics", "TraceSetSummary"),
    "json_utils": ("append_jsonl_file", "load_json_file", "load_jsonl_file", "save_json_file", "save_jsonl_file"),
}
__getattr__, __dir__ = lazy_names(__name__, __all__, _HOMES)
