"""Functions that a model may call while it writes kernels, and texts for its prompt (docs/inspect.md).

The functions take names, objects or paths, and return text. An error is a text that begins with ERROR.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from flashinfer_bench.base.lazy import lazy_names

if TYPE_CHECKING:
    from flashinfer_bench.agents.packing import extract_solution_to_files, pack_solution_from_files
    from flashinfer_bench.agents.prompts import FFI_PROMPT, FFI_PROMPT_SIMPLE
    from flashinfer_bench.agents.schemas import function_to_schema, get_all_tool_schemas
    from flashinfer_bench.agents.tools import (
        flashinfer_bench_list_ncu_options,
        flashinfer_bench_run_ncu,
        flashinfer_bench_run_sanitizer,
    )

__all__ = [
    "pack_solution_from_files", "extract_solution_to_files",
    "flashinfer_bench_list_ncu_options", "flashinfer_bench_run_ncu", "flashinfer_bench_run_sanitizer",
    "function_to_schema", "get_all_tool_schemas",
    "FFI_PROMPT", "FFI_PROMPT_SIMPLE",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(
    __name__,
    __all__,
    {
        "packing": ["pack_solution_from_files", "extract_solution_to_files"],
        "tools": [
            "flashinfer_bench_list_ncu_options",
            "flashinfer_bench_run_ncu",
            "flashinfer_bench_run_sanitizer",
        ],
        "schemas": ["function_to_schema", "get_all_tool_schemas"],
        "prompts": ["FFI_PROMPT", "FFI_PROMPT_SIMPLE"],
    },
)
