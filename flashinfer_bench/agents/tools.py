"""Nsight Compute and compute-sanitizer for a model: the same as `flashinfer-bench inspect`, with text as the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flashinfer_bench.data import Solution, TraceSet, Workload
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect.ncu import ask_ncu, list_metrics, plan_ncu, read_profile, render_profile
from flashinfer_bench.examine.inspect.sanitizer import check_types, plan_sanitizer, read_findings, render_findings
from flashinfer_bench.examine.inspect.tool_runs import Inspected, ToolStep, find_gpu, find_tool, plain, run_tool

PAGES: Final = ("details", "raw", "source", "session")


def flashinfer_bench_list_ncu_options(ncu_path: str = "ncu") -> str:
    """List the sets and sections that Nsight Compute can collect here.

    Args:
        ncu_path: name or path of the program.

    Returns:
        Both lists as ncu prints them, or a text that begins with ERROR.
    """
    flags = ("--list-sets", "--list-sections")
    return _answer(lambda: "\n".join(ask_ncu(find_tool("ncu", ncu_path), flag) for flag in flags))


def flashinfer_bench_run_ncu(
    solution: Solution | str,
    workload: Workload | str,
    *,
    device: str = "cuda:0",
    trace_set_path: str | None = None,
    set: str = "detailed",  # noqa: A002 - scripts use this name
    sections: list[str] | None = None,
    kernel_name: str | None = None,
    page: str = "details",
    ncu_path: str = "ncu",
    timeout: int = 60,
    tmpdir: str | None = None,
    max_lines: int | None = None,
) -> str:
    """Profile one call of a solution with Nsight Compute.

    Args:
        solution: a solution, its name in the trace set, or the path of its JSON file.
        workload: a workload, its uuid, or the path of its JSON file.
        device: the GPU, such as cuda:0.
        trace_set_path: the folder of the trace set; default: FIB_DATASET_PATH.
        set: the set of sections to collect, such as basic, detailed or full.
        sections: further sections to collect.
        kernel_name: only kernels of this name, or regex:EXPRESSION.
        page: the page of the report to return: details, raw, source or session.
        ncu_path: name or path of the program.
        timeout: limit of the profiling, in seconds.
        tmpdir: a folder for temporary files.
        max_lines: largest number of lines of the result.

    Returns:
        A summary of each kernel and then the page of the report, or a text that begins with ERROR.
    """

    def profile() -> str:
        if page not in PAGES:
            raise FlashInferBenchError(f"page {page!r} is unknown; known: {', '.join(PAGES)}")
        program = find_tool("ncu", ncu_path)
        plan = plan_ncu(
            program,
            list_metrics(program),
            set=set,
            sections=sections or (),
            kernel_name=kernel_name,
            page=page,
            timeout=timeout,
        )
        document, text = read_profile(_inspect(plan, solution, workload, device, trace_set_path, tmpdir))
        return f"{render_profile(document)}\n{text}"

    return _answer(profile, max_lines)


def flashinfer_bench_run_sanitizer(
    solution: Solution | str,
    workload: Workload | str,
    *,
    device: str = "cuda:0",
    trace_set_path: str | None = None,
    sanitizer_types: list[str] | None = None,
    sanitizer_path: str = "compute-sanitizer",
    timeout: int = 300,
    tmpdir: str | None = None,
    max_lines: int | None = None,
) -> str:
    """Check one call of a solution with compute-sanitizer.

    Args:
        solution: a solution, its name in the trace set, or the path of its JSON file.
        workload: a workload, its uuid, or the path of its JSON file.
        device: the GPU, such as cuda:0.
        trace_set_path: the folder of the trace set; default: FIB_DATASET_PATH.
        sanitizer_types: any of memcheck, racecheck, initcheck and synccheck; default: all.
        sanitizer_path: name or path of the program.
        timeout: limit of each check, in seconds.
        tmpdir: a folder for temporary files.
        max_lines: largest number of lines of the result.

    Returns:
        The findings with file and line, then the output of compute-sanitizer; or a text that begins with ERROR.
    """

    def check() -> str:
        plan = plan_sanitizer(find_tool("compute-sanitizer", sanitizer_path), check_types(sanitizer_types), timeout)
        inspected = _inspect(plan, solution, workload, device, trace_set_path, tmpdir)
        said = "\n".join(f"{step.name}:\n{step.text}" for step in inspected.steps)
        return f"{render_findings(read_findings(inspected))}\n{said}"

    return _answer(check, max_lines)


def _inspect(
    steps: list[ToolStep],
    solution: Solution | str,
    workload: Workload | str,
    device: str,
    trace_set_path: str | None,
    tmpdir: str | None,
) -> Inspected:
    gpu = find_gpu(device)
    trace_set = TraceSet.from_path(trace_set_path)
    return run_tool(trace_set, solution, workload, steps, gpu, temporary=tmpdir)


def _answer(work: Callable[[], str], max_lines: int | None = None) -> str:
    """Return the result of a function, or its error, cut to `max_lines` lines. The last line then says how many lines
    were cut."""
    try:
        lines = plain(work()).splitlines()
    except (FlashInferBenchError, OSError, ValueError, TypeError) as error:
        return f"ERROR: {error}"
    if max_lines is not None and len(lines) > max_lines:
        kept = max(0, max_lines - 1)
        lines = [*lines[:kept], f"[{len(lines) - kept} more lines]"]
    return "\n".join(lines)
