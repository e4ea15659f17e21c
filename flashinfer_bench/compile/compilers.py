"""Runs the steps of one build in a throw-away process (`step_runner.py`), with limits, a hold and an end.

The thread of a build calls `Compilers.run` and waits. Any other thread may hold its compilers still, or cancel them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.isolated import Isolated, IsolatedFailure
from flashinfer_bench.compile.flags import limit_threads
from flashinfer_bench.compile.recipe import BuildStep
from flashinfer_bench.errors import BuildFault

RUNNER: Final = Path(__file__).with_name("step_runner.py")
SYSTEM_FOLDERS: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/urandom")
"""Paths that every compiler may read, if the kernel has Landlock."""
PASSED_ON: Final = ("PATH", "LD_LIBRARY_PATH")
"""The only variables of the environment that a compiler sees. So no variable adds a flag or a folder of headers."""


@dataclass(frozen=True)
class StepLimits:
    """The time, memory and disk that one build may take."""

    seconds: float
    """Wall time of all its steps together. A build that takes longer is ended."""
    memory_bytes: int
    """Address space of each compiler."""
    file_bytes: int = 4 << 30
    """Size of each file that a compiler writes."""


@dataclass(frozen=True)
class StepReport:
    """How one command ended."""

    name: str
    code: int
    """Its exit code; negative for the signal that ended it."""
    output: str
    seconds: float


class Compilers:
    """The compilers of one build."""

    def __init__(self, limits: StepLimits) -> None:
        self.limits = limits
        self.seconds = 0.0
        """Seconds that they have run, without those for which they were held still."""
        self._changed = threading.Condition()
        self._process: Isolated | None = None
        self._is_cancelled = False
        self._held_since: float | None = None
        self._held_s = 0.0

    def run(
        self,
        stages: Sequence[Sequence[BuildStep]],
        folder: Path,
        seconds: float,
        *,
        parallel: int = 1,
        readable: Sequence[Path] = (),
    ) -> list[StepReport] | None:
        """Run steps, and return how each ended that was begun; None if they took too long. After a failure none begins.

        Args:
            stages: the commands. Those of one stage may run at once.
            folder: the build's own folder with `src`, `obj`, `files`, `tmp`; commands run in `src`.
            seconds: the wall time that they may take.
            parallel: number of steps of a stage at once. Flags that ask for more cores are cut to that, too.
            readable: folders that compilers may read beside the system's.

        Raises:
            BuildFault: the process that runs them failed, or they were cancelled.
        """
        private = str(folder / "tmp")
        order = {
            "parallel": parallel,
            "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes,
            "cpu_s": int(seconds) + 1,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *map(str, readable)],
            "writable": [str(folder)],
            "stages": [_describe(stage, max(1, parallel // max(1, len(stage)))) for stage in stages],
        }
        environment = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
        environment |= {"LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": private, "TMPDIR": private}
        with self._changed:
            self._changed.wait_for(lambda: self._is_cancelled or self._held_since is None)
            self.check()
            started = self._now()
            process = self._process = Isolated(RUNNER, order, environment=environment, folder=folder / "src")
        try:
            return [StepReport(**step) for step in process.wait(seconds, self._now)]
        except IsolatedFailure as failure:
            self.check()
            if failure.code is None:
                return None
            raise BuildFault(f"the process that runs the compilers failed:\n{failure.log}") from None
        finally:
            with self._changed:
                self._process = None
                process.end()
                self.seconds += self._now() - started

    def check(self) -> None:
        """Raise BuildFault if they were cancelled."""
        if self._is_cancelled:
            raise BuildFault("its build was cancelled")

    def hold(self) -> None:
        """Stop the compilers, not the process that runs them: that one has to hear when this process ends.

        Call it again from time to time: the process may have started another one meanwhile.
        """
        with self._changed:
            self._held_since = self._held_since or time.monotonic()
            if self._process is not None:
                self._process.signal(signal.SIGSTOP)
                os.kill(self._process.pid, signal.SIGCONT)

    def release(self) -> None:
        """Let the compilers go on."""
        with self._changed:
            if self._held_since is not None:
                self._held_s += time.monotonic() - self._held_since
                self._held_since = None
                if self._process is not None:
                    self._process.signal(signal.SIGCONT)
                self._changed.notify_all()

    def cancel(self) -> None:
        """End the compilers, and let none start."""
        with self._changed:
            self._is_cancelled = True
            if self._process is not None:
                self._process.signal(signal.SIGKILL)
            self._changed.notify_all()

    def _now(self) -> float:
        """Return the seconds of a clock that stands still while they do."""
        return (time.monotonic() if self._held_since is None else self._held_since) - self._held_s


def _describe(stage: Sequence[BuildStep], cores: int) -> list[dict[str, Any]]:
    """Return a stage's commands, each for at most this number of cores."""
    return [{"name": step.name, "argv": limit_threads(step.argv, cores)} for step in stage]
