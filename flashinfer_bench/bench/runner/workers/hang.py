"""Finds out whether and where a call hangs, by the worker's Python stack, its child processes and its compilers' files.

A first call may compile for a minute. A call hangs if for some seconds no child process ran, no compiler file changed,
and the stack stayed in the solution's own code. The stack is reported by the worker. A forged stack costs only the
solution's own time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from flashinfer_bench.bench.runner.workers.worker_handle import WorkerProcess
from flashinfer_bench.sandbox.process_tree import cpu_ticks, descendants
from flashinfer_bench.worker.errors import describe_frame
from flashinfer_bench.worker.protocol import STACK_FILE

CHECK_S: Final = 0.5
"""Least number of seconds between two checks of a first call. Long limits have fewer checks: CPython 3.11 may crash, in
rare cases, while it writes its stack."""
CHECKS: Final = 10
"""Number of checks of a call before it counts as hung."""
MOST_FILES: Final = 20_000
"""Largest number of compilers' files that are checked."""
MOST_FRAMES: Final = 12
OURS: Final = re.compile(r"/flashinfer_bench/worker/")
WAITS_FOR_GPU: Final = re.compile(r"/torch/cuda/(__init__|streams)\.py$")
"""Files of torch in which a call waits for a GPU. Frames in these files are skipped to find the waiting function."""


class StackFrame(NamedTuple):
    """A Python frame of a worker."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return describe_frame(self.file, self.line, self.function)


@dataclass
class CallWatch:
    """Watches the calls of one solution in one worker.

    Args:
        worker: makes the calls.
        quiet_s: a first call counts as hung if only the solution's own code runs for this many seconds.
    """

    worker: WorkerProcess
    quiet_s: float
    compiling_s: float = 0.0
    """Seconds in which child processes ran or files of compilers changed."""
    _state: Any = None
    _checked_s: float = field(default_factory=time.monotonic)
    _quiet_since_s: float = field(default_factory=time.monotonic)

    def begin(self) -> None:
        """Start watching a call."""
        self._state = None  # forget the compilers of the previous call
        self._checked_s = self._quiet_since_s = time.monotonic()

    def is_stuck(self) -> bool:
        """Return whether the running call has only run its own code for `quiet_s` seconds."""
        now = time.monotonic()
        if now < self._checked_s + max(CHECK_S, self.quiet_s / CHECKS):
            return False
        state = self._read_state()
        is_compiling = self._state is not None and state != self._state
        self.compiling_s += now - self._checked_s if is_compiling else 0.0
        if is_compiling or not self._is_in_own_code():
            self._quiet_since_s = now
        self._state, self._checked_s = state, now
        return now - self._quiet_since_s >= self.quiet_s

    def find_stack(self) -> list[str]:
        """Return the solution's frames, innermost first. If the worker waits for the GPU, the first line says so."""
        stack = read_stack(self.worker)
        waits = ["waiting for the GPU"] if stack and WAITS_FOR_GPU.search(stack[0].file) else []
        frames = [frame for frame in stack if frame.file.startswith(self._own)]
        own = [frame._replace(file=frame.file.removeprefix(self._own)) for frame in frames[:MOST_FRAMES]]
        return [*waits, *map(str, own)]

    @property
    def _own(self) -> str:
        return f"{self.worker.solution_folder}/"

    def _is_in_own_code(self) -> bool:
        inner = (frame for frame in read_stack(self.worker) if not WAITS_FOR_GPU.search(frame.file))
        innermost = next(inner, None)
        return innermost is not None and bool(innermost.file.startswith(self._own) or OURS.search(innermost.file))

    def _read_state(self) -> tuple[Any, Any]:
        """Return the state that changes during compilation: work of child processes, and files of compilers."""
        root = self.worker.supervisor_pid
        children = [pid for pid in descendants(root) if pid != self.worker.pid] if root is not None else []
        files = islice(_files_below(self.worker.compiles_to), MOST_FILES)
        return [(pid, cpu_ticks(pid)) for pid in children], max(files, default=0)


def read_stack(worker: WorkerProcess) -> list[StackFrame]:
    """Return the Python stack of a worker's main thread, innermost frame first; empty if it is not reported."""
    matches = re.findall(r'^\s+File "(.*)", line (\d+) in (.*)$', worker.read_stack(), re.MULTILINE)
    return [StackFrame(file, int(line), function) for file, line, function in matches]


def _files_below(folders: Iterable[Path]) -> Iterable[int]:
    """Yield the modification time of each folder and file below some folders, in nanoseconds."""
    for folder in folders:
        for root, _, files in os.walk(folder):
            for name in (".", *files):
                with suppress(OSError):
                    yield 0 if name == STACK_FILE else Path(root, name).lstat().st_mtime_ns
