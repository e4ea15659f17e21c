"""The host's handle on a throw-away process that runs compilers: start it, read its report, end it with all below."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.compile.flags import limit_threads
from flashinfer_bench.compile.recipe import BuildStep

RUNNER: Final = Path(__file__).with_name("step_runner.py")
MAX_REPORT_BYTES: Final = 8 << 20
"""Bytes of a report that are read; the rest is dropped, and then there is no report."""
READ_BYTES: Final = 1 << 16
SESSION_FIELD: Final = 3
"""The place of a process's session in its line of /proc, counted after its name."""
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


@dataclass(frozen=True)
class RunnerReport:
    """What the process that runs compilers reported at its end."""

    steps: tuple[StepReport, ...]
    confined: tuple[str, ...]
    """What it gave up before it started a compiler: "files", "network"."""

    @property
    def failed(self) -> StepReport | None:
        """Return the first step that failed, None where all is well."""
        return next((step for step in self.steps if step.code != 0), None)


class StepProcess:
    """One running process; making the object starts it. Call `end` whatever happens.

    Args:
        stages: the commands.
        folder: the build's own folder with `src`, `obj`, `files`, `tmp`; commands run in `src`.
        limits: the time, memory and disk that it may take.
        parallel: how many steps of a stage run at once; flags that ask for more cores are cut to that, too.
        readable: folders that compilers may read beside the system's.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[BuildStep]],
        folder: Path,
        limits: StepLimits,
        *,
        parallel: int = 1,
        readable: Sequence[Path] = (),
    ) -> None:
        self.started = time.monotonic()
        self._deadline = self.started + limits.seconds
        self._held_since: float | None = None
        order = {
            "parent": os.getpid(),
            "parallel": parallel,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "cpu_s": int(limits.seconds) + 1,
            "readable": [*SYSTEM_FOLDERS, *SYSTEM_FILES, *map(str, readable)],
            "writable": [str(folder)],
            "stages": [_describe(stage, max(1, parallel // max(1, len(stage)))) for stage in stages],
        }
        self._said = bytearray()
        self._errors = (folder / "tmp" / "step_runner.log").open("w+b")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(RUNNER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=folder / "src",
                env=_environment(folder / "tmp"),
                start_new_session=True,
            )
        except BaseException:
            self._errors.close()
            raise
        assert self._process.stdin is not None  # it was started with a pipe
        with contextlib.suppress(BrokenPipeError):  # it ended already; the missing report tells so
            self._process.stdin.write(json.dumps(order).encode())
            self._process.stdin.close()

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        assert self._process.stdout is not None  # it was started with a pipe
        return self._process.stdout.fileno()

    @property
    def left_s(self) -> float:
        """Seconds until its time is over; it does not pass while the compilers are held still."""
        return math.inf if self._held_since is not None else self._deadline - time.monotonic()

    def hold(self) -> None:
        """Stop the compilers, not the process that runs them: that one has to hear when this process ends.

        Call it again from time to time: it may have started another one meanwhile.
        """
        self._held_since = self._held_since or time.monotonic()
        stopped: set[int] = set()
        while new := self._list_compilers() - stopped:
            self._signal(new, signal.SIGSTOP)
            stopped |= new

    def release(self) -> None:
        """Let the compilers go on."""
        if self._held_since is not None:
            held_s, self._held_since = time.monotonic() - self._held_since, None
            self._deadline += held_s
            self.started += held_s
            self._signal(self._list_compilers(), signal.SIGCONT)

    def _list_compilers(self) -> set[int]:
        """Return the processes of its session but itself."""
        found = set()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                fields = path.read_bytes().rpartition(b")")[2].split()
                if int(fields[SESSION_FIELD]) == self._process.pid:
                    found.add(int(path.parent.name))
        return found - {self._process.pid}

    def _signal(self, pids: Iterable[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, number)

    def pump(self) -> bool:
        """Read once; False at the end of what it says. Call it when the descriptor is readable."""
        data = os.read(self.fileno(), READ_BYTES)
        self._said += data[: max(0, MAX_REPORT_BYTES - len(self._said))]
        return bool(data)

    def end(self) -> RunnerReport | None:
        """End it and everything that it started. Return its report; None where it made none."""
        with contextlib.suppress(ProcessLookupError):  # it has ended, with all that it started
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # it never read its order
                    stream.close()
        self._errors.close()
        return read_report(bytes(self._said))


def read_report(said: bytes) -> RunnerReport | None:
    """Return the report in what a process said; None where there is none."""
    try:
        report: dict[str, Any] = json.loads(said)
    except ValueError:
        return None
    return RunnerReport(tuple(StepReport(**step) for step in report["steps"]), tuple(report["confined"]))


def _describe(stage: Sequence[BuildStep], cores: int) -> list[dict[str, Any]]:
    """Return a stage's commands, each for no more cores than this."""
    return [{"name": step.name, "argv": limit_threads(step.argv, cores)} for step in stage]


def _environment(private: Path) -> dict[str, str]:
    kept = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
    return {**kept, "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", "HOME": str(private), "TMPDIR": str(private)}
