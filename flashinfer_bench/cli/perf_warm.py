"""Have what a testlist needs compiled ahead, many kernels at once: see `routines.warm`.

Each library solution is called once in a child process, on the devices in turn, with the folder of compiled kernels
that workers use. A child that fails or takes too long is passed over: the case itself will tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.session_client import session_environment
from flashinfer_bench.cli.perf_cases import Request
from flashinfer_bench.compile.cache import cache_root
from flashinfer_bench.routines.spec import TORCH

MODULE: Final = "flashinfer_bench.routines.warm"
LIMIT_S: Final = 900.0
"""Of one child; a cold build of a large attention kernel takes minutes."""
MOST_JOBS: Final = 8
"""Children at once where nothing else is asked for: each holds its case's inputs on the device."""
Job = tuple[str, str]
"""Names of definition and solution."""


def list_jobs(requests: Iterable[Request]) -> list[Job]:
    """Return the library solutions of all cases, each once."""
    jobs = []
    for request in requests:
        if request.material is not None:
            name = request.material.definition.name
            chosen = [backend for backend in request.backends if backend != TORCH]
            jobs += [(name, request.material.solutions[backend].name) for backend in chosen]
    return list(dict.fromkeys(jobs))


def warm_up(
    jobs: Sequence[Job],
    root: Path,
    devices: Sequence[Device],
    *,
    parallel: int,
    start: Callable[[list[str], Mapping[str, str]], int] | None = None,
) -> int:
    """Run a child for each job; return how many ended well."""
    run = start or _run
    environments = [
        {
            **session_environment(os.environ, device, interpret_triton=False),
            "FLASHINFER_WORKSPACE_BASE": os.environ.get(
                "FLASHINFER_WORKSPACE_BASE", str(cache_root(os.environ).resolve() / "jit")
            ),
        }
        for device in devices
    ]
    commands = [[sys.executable, "-m", MODULE, str(root), *job] for job in jobs]
    with ThreadPoolExecutor(max_workers=max(1, parallel)) as pool:
        codes = list(pool.map(run, commands, cycle(environments)))
    return sum(code == 0 for code in codes)


def _run(command: list[str], environment: Mapping[str, str]) -> int:
    try:
        ended = subprocess.run(command, env=dict(environment), capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1
    return ended.returncode
