"""Runs compilers for all builds of a farm: a bounded number at once, each confined in a process of its own.

`Compilers.run` is called in the thread of a build, and waits. Any other thread may hold further compilers back, or
cancel all of them. The process is `step_runner.py`.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.base.isolated import Isolated, IsolatedFailure
from flashinfer_bench.compile.artifact import BuildFailure, BuildStep
from flashinfer_bench.errors import BuildFault

RUNNER: Final = Path(__file__).with_name("step_runner.py")
SYSTEM_FOLDERS: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/urandom")
"""Paths that every compiler may read, if the kernel has Landlock."""
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
"""The only variables of the environment that a compiler sees. So no variable adds a flag or a folder of headers."""


@dataclass(frozen=True)
class StepLimits:
    """The time, memory and disk that one compiler may take."""

    seconds: float
    """Wall time. A compiler that takes longer is ended."""
    memory_bytes: int
    """Address space."""
    file_bytes: int = 4 << 30
    """Size of each file that it writes."""


@dataclass(frozen=True)
class StepReport:
    """How one command ended."""

    name: str
    code: int
    """Its exit code; negative for the signal that ended it."""
    output: str
    seconds: float


class Compilers:
    """The compilers of a farm.

    Args:
        most: number of compilers at once.
        limits: of each compiler.
    """

    def __init__(self, most: int, limits: StepLimits) -> None:
        self.limits: Final = limits
        self._most = most
        self._changed = threading.Condition()
        self._running: set[Isolated] = set()
        self.may_start = True
        """Whether compilers may start. `allow` changes it."""
        self._is_cancelled = False

    def allow(self, *, start: bool) -> None:
        """Let compilers start, or start none from now on."""
        with self._changed:
            self.may_start = start
            self._changed.notify_all()

    def cancel(self) -> None:
        """Kill all compilers, and let none start."""
        with self._changed:
            self._is_cancelled = True
            for process in self._running:
                process.signal(signal.SIGKILL)
            self._changed.notify_all()

    def check(self) -> None:
        """Raise BuildFault if they were cancelled."""
        if self._is_cancelled:
            raise BuildFault("its build was cancelled")

    def run(self, step: BuildStep, folder: Path, readable: Iterable[Path]) -> StepReport:
        """Run a command once a core is free, and return how it ended.

        Args:
            step: the command.
            folder: the build's own folder with `src`, `obj`, `tmp`; commands run in `src`.
            readable: folders that compilers may read beside the system's.

        Raises:
            BuildFailure: it took too long.
            BuildFault: the process that runs it failed, or it was cancelled.
        """
        private, limits = str(folder / "tmp"), self.limits
        request = {
            "argv": step.argv,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "cpu_s": int(limits.seconds) + 1,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *map(str, readable)],
            "writable": [str(folder)],
        }
        environment = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
        environment |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": private, "TMPDIR": private}
        with self._start(request, environment, folder / "src") as process:
            try:
                return StepReport(step.name, **process.wait(limits.seconds))
            except IsolatedFailure as failure:
                self.check()
                if failure.code is None:
                    message = f"error: compiling was still going on after {limits.seconds:g} s, and was ended"
                    raise BuildFailure(message) from None
                raise BuildFault(f"the process that runs the compilers failed:\n{failure.log}") from None

    @contextmanager
    def _start(self, request: object, environment: dict[str, str], folder: Path) -> Iterator[Isolated]:
        with self._changed:
            self._changed.wait_for(self._is_free)
            self.check()
            process = Isolated(RUNNER, request, environment=environment, folder=folder)
            self._running.add(process)
        try:
            yield process
        finally:
            with self._changed:
                process.end()
                self._running.discard(process)
                self._changed.notify_all()

    def _is_free(self) -> bool:
        return self._is_cancelled or (self.may_start and len(self._running) < self._most)
