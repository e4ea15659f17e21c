"""Compiles the kernels of a testlist in parallel before timing starts.

A session also compiles ahead, but for each solution separately and on one GPU. Here routines with the same module of
the library share one compilation, and all GPUs are used. For each module, a process (`routines.call_once`) calls one
library solution, which compiles kernels into the workers' folder. After a failure or a timeout of the process, the
timed case reports the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.base.isolated import Isolated, IsolatedFailure
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import ahead_environment
from flashinfer_bench.cli.output import write_err
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.cli.tables import count
from flashinfer_bench.env import cache_root
from flashinfer_bench.report.verdict import to_one_line
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.routines.table import ROUTINES
from flashinfer_bench.sandbox.process_tree import kill_session

MODULE: Final = "flashinfer_bench.routines.call_once"
LIMIT_S: Final = 900.0
"""Seconds that one process can take. Compiling a large attention kernel takes minutes."""
MOST_PARALLEL: Final = 32
"""Maximum number of parallel processes without --jit_jobs. Each process holds the inputs of a case on the device."""
BYTES_PER_COMPILER: Final = 2 << 30
"""Approximate bytes of memory that a compiler needs for a large file of the library."""


def list_calls(requests: Iterable[Request]) -> list[dict[str, Any]]:
    """Return one request for `call_once` per module. A second call would only wait for the compilation of the same
    module."""
    calls: dict[tuple[str, ...], dict[str, Any]] = {}
    for request in requests:
        for backend in [name for name in request.backends if name != TORCH]:
            made, module = request.entry, ROUTINES[request.named].module
            solution = made.solutions[backend]
            parts = {"definition": made.definition, "solution": solution, "workload": made.workload}
            call = {name: part.to_dict() for name, part in parts.items()}
            calls.setdefault((module, backend) if module else (solution.name,), call)
    return list(calls.values())


def compile_ahead(
    requests: Sequence[Request], root: Path, devices: Sequence[Device], *, jobs: int | None, for_sandbox: bool
) -> None:
    """Call one solution of each module, and report progress. The processes end at an exception or an interrupt.

    Args:
        root: the folder with the stored inputs of the cases.
        devices: the devices, which the processes use round-robin.
        jobs: number of parallel processes; None for one per core, but at least 4 and at most `MOST_PARALLEL`.
        for_sandbox: whether workers have a sandbox. Sandboxed workers can only read the compiled kernels.
    """
    calls = list_calls(requests)
    jobs = min(len(calls), max(4, min(MOST_PARALLEL, usable_cores())) if jobs is None else jobs)
    if jobs <= 0:
        return
    fitting = usable_memory() // BYTES_PER_COMPILER // jobs
    compilers = os.environ.get("MAX_JOBS", str(max(2, min(usable_cores(), fitting))))
    kernels = cache_root(os.environ).resolve()
    views = [ahead_environment(os.environ, device, kernels, for_sandbox=for_sandbox) for device in devices]
    running: set[int] = set()

    def call(request: dict[str, Any], view: dict[str, str]) -> str:
        """Return the reason of a failure; empty for a success."""
        with Isolated(MODULE, {"root": str(root), **request}, environment={**view, "MAX_JOBS": compilers}) as process:
            running.add(process.pid)
            try:
                process.wait(LIMIT_S)
            except IsolatedFailure as failure:
                taken = f"it took more than {LIMIT_S:g} s" if failure.code is None else f"exit code {failure.code}"
                return f", which failed: {to_one_line([taken, *failure.log.splitlines()][-1])}"
            finally:
                kill_session(process.pid)  # ninja starts compilers in separate process groups
                running.discard(process.pid)
        return ""

    write_err(f"compiling ahead: {count(len(calls), 'solution')}, {jobs} at once")
    pool = ThreadPoolExecutor(max_workers=jobs)
    try:
        futures = {
            pool.submit(call, request, view): request for request, view in zip(calls, cycle(views), strict=False)
        }
        for done, future in enumerate(as_completed(futures), 1):
            latest = f"{futures[future]['solution']['name']}{future.result()}"
            write_err(f"compiling ahead: {done} of {len(calls)}, the latest {latest}")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for session in tuple(running):
            kill_session(session)
        pool.shutdown()
