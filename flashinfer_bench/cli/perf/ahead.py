"""Compiles the kernels that a testlist needs before anything is timed, many at once.

A child process calls each library solution once (`routines.ahead.call_once`). Children use the devices in turn, and the
folder of compiled kernels that workers use. A child may fail or take too long: the case itself then tells why.
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

from flashinfer_bench.base.host import usable_cores, usable_memory
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.bench.runner.environments import ahead_environment
from flashinfer_bench.cli.perf.cases import Request
from flashinfer_bench.data import Definition, Solution, Workload
from flashinfer_bench.env import cache_root
from flashinfer_bench.routines.case.spec import TORCH
from flashinfer_bench.sandbox.process_tree import kill_session, session_members

MODULE: Final = "flashinfer_bench.routines.ahead.call_once"
LIMIT_S: Final = 900.0
"""Longest time that one child may take. Compiling a large attention kernel takes minutes."""
MOST_PARALLEL: Final = 32
"""Most children at once where --jit_jobs is not given. Each child holds the inputs of its case on the device."""
LAST_BYTES: Final = 4096
"""Bytes read from the end of what a failed child wrote. The last line is told."""
END_S: Final = 10.0
"""Longest wait for a killed child to end."""
SHARE_EVERY_S: Final = 5.0
"""Time between two looks at how the children share the cores."""
MANY_COMPILERS: Final = 3
"""A child that runs this many compilers gets a lower priority where compilers wait for a core."""
LOWER_PRIORITY: Final = 10
"""The nice value of such a child's processes."""
BYTES_PER_COMPILER: Final = 2 << 30
"""Approximate memory that a compiler needs for one of the library's larger files."""


@dataclass(frozen=True)
class AheadCall:
    """A solution to call once."""

    definition: Definition
    solution: Solution
    workload: Workload

    def to_json(self) -> str:
        """Return what a child reads."""
        parts = {"definition": self.definition, "solution": self.solution, "workload": self.workload}
        return json.dumps({name: json.loads(part.to_json()) for name, part in parts.items()})


@dataclass(frozen=True)
class AheadSite:
    """Where solutions are called ahead."""

    root: Path
    """The folder of the workloads' blobs."""
    devices: Sequence[Device]
    """The children use them in turn."""
    for_walls: bool = False
    """Workers have walls: they read what the children compile, and write none of it."""


def list_calls(requests: Iterable[Request]) -> list[AheadCall]:
    """Return one call for each module that the cases need. A second call would wait for the same compiler."""
    calls: dict[tuple[str, ...], AheadCall] = {}
    for request in requests:
        if request.material is not None and request.routine is not None:
            material, module = request.material, request.routine.module
            for backend in [backend for backend in request.backends if backend != TORCH]:
                solution = material.solutions[backend]
                key = (module, backend) if module else (material.definition.name, solution.name)
                calls.setdefault(key, AheadCall(material.definition, solution, material.workload))
    return list(calls.values())


def usual_parallel(cores: int | None = None) -> int:
    """Return how many children to run at once on this number of cores (default: those that this process may use)."""
    return max(4, min(MOST_PARALLEL, cores or usable_cores()))


def compilers_each(parallel: int, *, cores: int | None = None, memory: int | None = None) -> int:
    """Return how many compilers a child may run where `parallel` children run, by the cores and the bytes of memory."""
    room = memory or usable_memory()
    return max(2, min(cores or usable_cores(), room // BYTES_PER_COMPILER // max(1, parallel)))


def compile_ahead(
    calls: Sequence[AheadCall],
    site: AheadSite,
    *,
    parallel: int,
    start: Callable[[list[str], Mapping[str, str], str], str] | None = None,
    tell: Callable[[int, AheadCall, str], None] = lambda _done, _call, _problem: None,
) -> int:
    """Run a child for each call; return how many ended well. An exception or an interrupt ends the children too.

    Args:
        calls: what to call.
        site: where they run.
        parallel: children at once.
        start: runs a command in an environment with a text to read, and returns what went wrong, or "" (default: a
            child process).
        tell: called when a child ends, with the number of children that have ended, its call, and what went wrong.
    """
    children = _Children()
    run = start or children.run
    compilers = os.environ.get("MAX_JOBS", str(compilers_each(min(parallel, len(calls)))))
    root_of_kernels = cache_root(os.environ).resolve()
    views = [
        ahead_environment(os.environ, device, root_of_kernels, for_walls=site.for_walls) for device in site.devices
    ]
    environments = [{**view, "MAX_JOBS": compilers} for view in views]
    good, is_over = 0, threading.Event()
    pool = ThreadPoolExecutor(max_workers=max(1, parallel))
    threading.Thread(target=_share_cores, args=(children, is_over), daemon=True).start()
    try:
        futures = {
            pool.submit(run, [sys.executable, "-m", MODULE, str(site.root)], environment, call.to_json()): call
            for call, environment in zip(calls, cycle(environments), strict=False)
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
    """Lower the priority of sessions with many compilers where more compilers run than there are cores; return those.

    On many cores the library's longest file takes as long as all other files together. If it had a third of a core
    only, everything would wait for it.
    """
    members = session_members(sessions)
    working = {session: sum(state == "R" for state in found.values()) for session, found in members.items()}
    if sum(working.values()) <= cores:
        return []
    wide = [session for session, count in working.items() if count >= MANY_COMPILERS]
    for pid in [pid for session in wide for pid in members[session]]:
        with suppress(OSError):  # it has ended, or its priority is lower already
            os.setpriority(os.PRIO_PROCESS, pid, LOWER_PRIORITY)
    return wide


class _Children:
    """The children that run now. Each is a session of processes, because it starts compilers of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._ended = False

    def run(self, command: list[str], environment: Mapping[str, str], text: str) -> str:
        """Run a child to its end or its time limit; return the last line that it wrote where it failed, else ""."""
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
        """Return the process ids of the children, which are the ids of their sessions too."""
        with self._lock:
            return [child.pid for child in self._running]

    def end(self) -> None:
        """Kill all children, and start no more."""
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
