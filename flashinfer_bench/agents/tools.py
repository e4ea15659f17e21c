"""Nsight Compute and compute-sanitizer for a model: as `flashinfer-bench inspect`, with text as the answer."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.data import Solution, TraceSet, Workload
from flashinfer_bench.errors import FlashInferBenchError
from flashinfer_bench.examine.inspect.ncu import NcuOptions, list_metrics, plan_ncu, read_profile
from flashinfer_bench.examine.inspect.sanitizer import TYPES, find_problems, plan_sanitizer, read_findings
from flashinfer_bench.examine.inspect.start import InspectSite, look
from flashinfer_bench.examine.inspect.subject import resolve_subject
from flashinfer_bench.examine.inspect.summary import (
    findings_document,
    plain,
    profile_document,
    render_findings,
    render_profile,
)
from flashinfer_bench.examine.inspect.tools import NCU, SANITIZER, find_gpu, find_tool

ERROR: Final = "ERROR"
LIST_LIMIT_S: Final = 60.0
PAGES: Final = ("details", "raw", "source", "session")
LISTS: Final = ("--list-sets", "--list-sections")


def flashinfer_bench_list_ncu_options(ncu_path: str = "ncu") -> str:
    """List the sets and sections that Nsight Compute can collect here.

    Args:
        ncu_path: the program, as a name or a path.

    Returns:
        Both lists as ncu prints them, or a text that begins with ERROR.
    """
    return _answer(lambda: "\n".join(_list(find_tool(NCU, ncu_path), flag) for flag in LISTS), None)


def flashinfer_bench_run_ncu(
    solution: Solution | str,
    workload: Workload | str,
    *,
    device: str = "cuda:0",
    trace_set_path: str | None = None,
    set: str = "detailed",  # noqa: A002 - scripts give it by this name
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
        trace_set_path: the folder of the trace set; FIB_DATASET_PATH where it is left out.
        set: the set of sections to collect, such as basic, detailed or full.
        sections: further sections to collect.
        kernel_name: only kernels of this name, or regex:EXPRESSION.
        page: what of the report to return: details, raw, source or session.
        ncu_path: the program, as a name or a path.
        timeout: seconds that profiling may take.
        tmpdir: a folder for temporary files.
        max_lines: the answer has at most so many lines.

    Returns:
        A summary of each kernel and then the page of the report, or a text that begins with ERROR.
    """

    def profile() -> str:
        if page not in PAGES:
            raise FlashInferBenchError(f"page {page!r} is unknown; known: {', '.join(PAGES)}")
        program, gpu = find_tool(NCU, ncu_path), find_gpu(device)
        subject = resolve_subject(TraceSet.from_path(trace_set_path), solution, workload)
        options = NcuOptions(
            set=set, sections=sections or (), kernel_name=kernel_name, page=page, timeout_s=float(timeout)
        )
        done = look(
            subject, plan_ncu(program, options, list_metrics(program)), InspectSite(gpu, temporary=_folder(tmpdir))
        )
        kernels, text = read_profile(done)
        return f"{render_profile(profile_document(subject, gpu, kernels, done))}\n{text}"

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
        trace_set_path: the folder of the trace set; FIB_DATASET_PATH where it is left out.
        sanitizer_types: of memcheck, racecheck, initcheck and synccheck; all where it is left out.
        sanitizer_path: the program, as a name or a path.
        timeout: seconds that each of them may take.
        tmpdir: a folder for temporary files.
        max_lines: the answer has at most so many lines.

    Returns:
        The findings with file and line, and then what compute-sanitizer printed; or a text that begins with ERROR.
    """

    def check() -> str:
        types = sanitizer_types or list(TYPES)
        unknown = [one for one in types if one not in TYPES]
        if unknown:
            raise FlashInferBenchError(f"unknown sanitizer types {', '.join(unknown)}; known: {', '.join(TYPES)}")
        program, gpu = find_tool(SANITIZER, sanitizer_path), find_gpu(device)
        subject = resolve_subject(TraceSet.from_path(trace_set_path), solution, workload)
        plan = plan_sanitizer(program, types, float(timeout))
        done = look(subject, plan, InspectSite(gpu, temporary=_folder(tmpdir)))
        findings = read_findings(done, [source.path for source in subject.solution.sources])
        document = findings_document(subject, gpu, findings, find_problems(done, findings), done)
        said = "\n".join(f"{step.name}:\n{step.text}" for step in done.steps)
        return f"{render_findings(document, findings)}\n{said}"

    return _answer(check, max_lines)


def _answer(work: Callable[[], str], max_lines: int | None) -> str:
    """Return the text of some work, or of its error."""
    try:
        lines = [plain(line) for line in work().splitlines()]
    except (FlashInferBenchError, OSError, ValueError, TypeError) as error:
        return f"{ERROR}: {error}"
    return "\n".join(cut(lines, max_lines))


def cut(lines: Sequence[str], most: int | None) -> list[str]:
    """Return at most so many lines; the last one tells how many are left out."""
    if most is None or len(lines) <= most:
        return list(lines)
    kept = max(0, most - 1)
    return [*lines[:kept], f"[{len(lines) - kept} more lines]"]


def _folder(named: str | None) -> Path | None:
    if named is None:
        return None
    if not Path(named).is_dir():
        raise ValueError(f"tmpdir {named} is no folder")
    return Path(named).absolute()


def _list(program: Path, flag: str) -> str:
    try:
        done = subprocess.run(
            [str(program), flag],
            capture_output=True,
            text=True,
            timeout=LIST_LIMIT_S,
            env=dict(os.environ),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FlashInferBenchError(f"{program} {flag} did not end within {LIST_LIMIT_S:g} s") from None
    if done.returncode != 0:
        raise FlashInferBenchError(f"{program} {flag} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout
