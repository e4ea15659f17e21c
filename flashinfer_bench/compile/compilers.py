"""Runs the steps of one build in a throw-away process (`step_runner.py`), and ends it with all that it has started.

The thread of a build calls `Compilers.run` and waits. Any other thread may hold its compilers still, or cancel them.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.compile.flags import limit_threads
from flashinfer_bench.compile.recipe import BuildStep
from flashinfer_bench.errors import BuildFault

RUNNER: Final = Path(__file__).with_name("step_runner.py")
MAX_REPORT_BYTES: Final = 8 << 20
"""Bytes of a report that are read; the rest is dropped, and then there is no report."""
READ_BYTES: Final = 1 << 16
MOST_LOG_BYTES: Final = 64 << 20
"""The log of the process is left out of a message if it has more bytes."""
LEAST_WAIT_S: Final = 0.05
"""Seconds of a wait for the report, at least: while compilers are held still, the time that is left stays the same."""
SYSTEM_FOLDERS: Final = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/opt", "/nix/store", "/gnu/store")
SYSTEM_FILES: Final = ("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/dev/urandom")
"""What every compiler may read, where the kernel has Landlock."""
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
        """How long they have run; the time for which they were held still does not count."""
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
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
        """Run steps, and return how each ended that was begun; None if that took too long. After a failure none begins.

        Args:
            stages: the commands. Those of one stage may run at once.
            folder: the build's own folder with `src`, `obj`, `files`, `tmp`; commands run in `src`.
            seconds: the wall time that they may take.
            parallel: how many steps of a stage run at once; flags that ask for more cores are cut to that, too.
            readable: folders that compilers may read beside the system's.

        Raises:
            BuildFault: the process that runs them failed, or they were cancelled.
        """
        order = {
            "parent": os.getpid(),
            "parallel": parallel,
            "memory_bytes": self.limits.memory_bytes,
            "file_bytes": self.limits.file_bytes,
            "cpu_s": int(seconds) + 1,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *map(str, readable)],
            "writable": [str(folder)],
            "stages": [_describe(stage, max(1, parallel // max(1, len(stage)))) for stage in stages],
        }
        log = folder / "tmp" / "step_runner.log"
        with self._changed:
            self._changed.wait_for(lambda: self._is_cancelled or self._held_since is None)
            self.check()
            started = self._now()
            process = self._process = _start(folder, log)
        try:
            assert process.stdin is not None  # it was started with a pipe
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it ended already; the missing report shows it
                process.stdin.write(json.dumps(order).encode())
            said = self._listen(process, started + seconds)
        finally:
            with self._changed:
                self._process = None
                _end(process)
                self.seconds += self._now() - started
        self.check()
        if said is None:
            return None
        try:
            return [StepReport(**step) for step in json.loads(said)]
        except ValueError:
            text = read_whole(log, MOST_LOG_BYTES).decode(errors="replace").strip()
            raise BuildFault(f"the process that runs the compilers failed:\n{text[-2000:]}") from None

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
                _signal(self._process, signal.SIGSTOP)
                os.kill(self._process.pid, signal.SIGCONT)

    def release(self) -> None:
        """Let the compilers go on."""
        with self._changed:
            if self._held_since is not None:
                self._held_s += time.monotonic() - self._held_since
                self._held_since = None
                if self._process is not None:
                    _signal(self._process, signal.SIGCONT)
                self._changed.notify_all()

    def cancel(self) -> None:
        """End the compilers, and let none start."""
        with self._changed:
            self._is_cancelled = True
            if self._process is not None:
                _signal(self._process, signal.SIGKILL)
            self._changed.notify_all()

    def _now(self) -> float:
        """Return the seconds of a clock that stands still while they do."""
        return (time.monotonic() if self._held_since is None else self._held_since) - self._held_s

    def _listen(self, process: subprocess.Popen[bytes], deadline: float) -> bytes | None:
        """Return what the process says until its end; None once the deadline is over."""
        assert process.stdout is not None  # it was started with a pipe
        said = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while (left := deadline - self._now()) > 0:
                if selector.select(max(LEAST_WAIT_S, left)):
                    data = os.read(process.stdout.fileno(), READ_BYTES)
                    if not data:
                        return bytes(said)
                    said += data[: max(0, MAX_REPORT_BYTES - len(said))]
        return None


def _start(folder: Path, log: Path) -> subprocess.Popen[bytes]:
    private = folder / "tmp"
    kept = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
    with log.open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(RUNNER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=folder / "src",
            env={**kept, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": str(private), "TMPDIR": str(private)},
            start_new_session=True,
        )


def _describe(stage: Sequence[BuildStep], cores: int) -> list[dict[str, Any]]:
    """Return a stage's commands, each for no more cores than this."""
    return [{"name": step.name, "argv": limit_threads(step.argv, cores)} for step in stage]


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything that it started."""
    _signal(process, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None  # it was started with a pipe
    process.stdout.close()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to the process and to all that it started."""
    with contextlib.suppress(ProcessLookupError):  # they have ended
        os.killpg(process.pid, number)
