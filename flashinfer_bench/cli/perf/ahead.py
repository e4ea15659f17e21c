"""Have what a testlist needs compiled ahead, many kernels at once: see `routines.warm`.

Each library solution is called once in a child process, on the devices in turn, with the folder of compiled kernels
that workers use. A child that fails or takes too long is passed over: the case itself will tell.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import IO, Final

from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import warming_environment
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.compile.cache import cache_root
from flashinfer_bench.data import Definition, Solution, Workload
from flashinfer_bench.host import usable_cores, usable_memory
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.worker.linux import kill_session, session_members

MODULE: Final = "flashinfer_bench.routines.ahead.call_once"
LIMIT_S: Final = 900.0
"""Of one child; a cold build of a large attention kernel takes minutes."""
MOST_JOBS: Final = 32
"""Children at once, at the most, where nothing else is asked for: each holds its case's inputs on the device."""
LAST_BYTES: Final = 4096
END_S: Final = 10.0
"""Time for a killed child to be gone."""
SHARE_EVERY_S: Final = 5.0
MANY_COMPILERS: Final = 3
"""A child with so many at work goes on with others where one waits for a core."""
LOWER_PRIORITY: Final = 10
BYTES_PER_COMPILER: Final = 2 << 30
"""What a compiler of one of the library's larger files takes, about."""


@dataclass(frozen=True)
class Job:
    """A solution to call once."""

    definition: Definition
    solution: Solution
    workload: Workload

    def to_json(self) -> str:
        """Return what a child reads."""
        parts = {"definition": self.definition, "solution": self.solution, "workload": self.workload}
        return json.dumps({name: json.loads(part.to_json()) for name, part in parts.items()})


def list_jobs(requests: Iterable[Request]) -> list[Job]:
    """Return a library solution for each module that the cases need: the others would only wait for its compiler."""
    jobs: dict[tuple[str, ...], Job] = {}
    for request in requests:
        if request.material is not None and request.routine is not None:
            material, module = request.material, request.routine.module
            for backend in [backend for backend in request.backends if backend != TORCH]:
                solution = material.solutions[backend]
                key = (module, backend) if module else (material.definition.name, solution.name)
                jobs.setdefault(key, Job(material.definition, solution, material.workload))
    return list(jobs.values())


def usual_jobs(cores: int | None = None) -> int:
    """Return how many children run at once on so many cores (default: those that this process may use)."""
    return max(4, min(MOST_JOBS, cores or usable_cores()))


def compilers_each(parallel: int, *, cores: int | None = None, memory: int | None = None) -> int:
    """Return how many compilers each of so many children may run, by this machine's cores and bytes of memory."""
    room = memory or usable_memory()
    return max(2, min(cores or usable_cores(), room // BYTES_PER_COMPILER // max(1, parallel)))


def warm_up(
    jobs: Sequence[Job],
    root: Path,
    devices: Sequence[Device],
    *,
    parallel: int,
    for_walls: bool = False,
    start: Callable[[list[str], Mapping[str, str], str], str] | None = None,
    tell: Callable[[int, Job, str], None] = lambda _done, _job, _problem: None,
) -> int:
    """Run a child for each job; return how many ended well. Whatever ends this early ends the children too.

    Args:
        jobs: what to call.
        root: where the workloads' blobs lie.
        devices: shared among the children in turn.
        parallel: children at once.
        for_walls: workers read what is compiled, and write none of it.
        start: runs a command in an environment with a text to read, and says what went wrong, or "" (default: a child
            process).
        tell: called as each child ends, with how many have, its job, and what went wrong.
    """
    children = _Children()
    run = start or children.run
    compilers = os.environ.get("MAX_JOBS", str(compilers_each(min(parallel, len(jobs)))))
    root_of_kernels = cache_root(os.environ).resolve()
    own = {"MAX_JOBS": compilers}
    environments = [
        warming_environment(os.environ, device, root_of_kernels, for_walls=for_walls) | own for device in devices
    ]
    good, is_over = 0, threading.Event()
    pool = ThreadPoolExecutor(max_workers=max(1, parallel))
    threading.Thread(target=_share_cores, args=(children, is_over), daemon=True).start()
    try:
        futures = {
            pool.submit(run, [sys.executable, "-m", MODULE, str(root)], environment, job.to_json()): job
            for job, environment in zip(jobs, cycle(environments), strict=False)
        }
        for done, future in enumerate(as_completed(futures), 1):
            problem = future.result()
            good += not problem
            tell(done, futures[future], problem)
    finally:
        is_over.set()
        pool.shutdown(wait=False, cancel_futures=True)
        children.end()
        pool.shutdown()
    return good


def _share_cores(children: _Children, is_over: threading.Event) -> None:
    while not is_over.wait(SHARE_EVERY_S):
        lower_wide(children.ids(), cores=usable_cores())


def lower_wide(sessions: Iterable[int], *, cores: int) -> list[int]:
    """Where more compilers run than there are cores, have sessions with few of them go first; return the others.

    The library's longest file takes as long as all of the rest on many cores: with a third of a core it would end last.
    """
    members = session_members(sessions)
    working = {session: sum(state == "R" for state in found.values()) for session, found in members.items()}
    if sum(working.values()) <= cores:
        return []
    wide = [session for session, count in working.items() if count >= MANY_COMPILERS]
    for pid in [pid for session in wide for pid in members[session]]:
        with suppress(OSError):  # it has ended, or goes last already
            os.setpriority(os.PRIO_PROCESS, pid, LOWER_PRIORITY)
    return wide


class _Children:
    """Children that run now, each a session of processes, since the library's compilers are their children in turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, command: list[str], environment: Mapping[str, str], text: str) -> str:
        """Run one to its end, or its time limit; return the last line that it said of a failure, or ""."""
        with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as read:
            read.write(text.encode())
            read.seek(0)
            with self._lock:
                if self._ended:
                    return "it was not started"
                nothing = subprocess.DEVNULL
                child = subprocess.Popen(
                    command, env=dict(environment), stdin=read, stdout=nothing, stderr=said, start_new_session=True
                )
                self._running.add(child)
            try:
                code = child.wait(LIMIT_S)
            except subprocess.TimeoutExpired:
                return f"it took more than {LIMIT_S:g} s"
            finally:
                with self._lock:
                    _end_session(child)
                    self._running.remove(child)
            return _read_last_line(said) or f"exit code {code}" if code else ""

    def ids(self) -> list[int]:
        """Return the ids of those that run, which are their sessions' ids, too."""
        with self._lock:
            return [child.pid for child in self._running]

    def end(self) -> None:
        """Kill those that run; start no more."""
        with self._lock:
            self._ended = True
            for child in self._running:
                _end_session(child)


def _read_last_line(said: IO[bytes]) -> str:
    size = said.seek(0, os.SEEK_END)
    said.seek(max(0, size - LAST_BYTES))
    lines = said.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


def _end_session(child: subprocess.Popen[bytes]) -> None:
    kill_session(child.pid)
    with suppress(subprocess.TimeoutExpired):  # one that hangs in the driver is left to the system
        child.wait(END_S)
