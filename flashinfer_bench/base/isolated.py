"""Starts a process of our own that answers one request and leaves nothing behind.

    run_isolated("package.module", request, limit_s=60) -> response

The child imports the module and calls its `answer(request)`. Request and response are JSON values. The child leads a
session of its own. The session is killed with all its processes when the child ends, at the deadline, and when the
parent ends. The child's output goes into its log, so no print can pass for a response. The child is no sandbox: if a
module needs a sandbox, its `answer` must enter one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from ctypes import CDLL, c_ulong
from importlib import import_module
from pathlib import Path
from runpy import run_path
from typing import Any, Final

PR_SET_PDEATHSIG: Final = 1
LOG_BYTES: Final = 4096
"""Bytes kept of the end of a log."""


class IsolatedFailure(Exception):
    """The process ended without a response.

    Args:
        code: the exit code. Negative: the number of the signal that ended the process. None: it was killed at the
            deadline.
        log: the end of its output.
    """

    def __init__(self, code: int | None, log: str) -> None:
        super().__init__(log)
        self.code = code
        self.log = log


class Isolated:
    """A process that works on one request. A context manager that ends it.

    Args:
        module: full name of a module; or a file, which runs without site-packages and imports no heavy package.
        environment: its variables; None for the variables of this process.
        folder: its working folder; None for the folder of this process.
    """

    def __init__(
        self,
        module: str | Path,
        request: Any,
        *,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> None:
        start = ["-I", "-S", __file__] if isinstance(module, Path) else ["-m", __name__]
        self._request = json.dumps(request).encode()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            [sys.executable, *start, str(module), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env=environment,
            start_new_session=True,
        )
        self.pid: Final = self._process.pid

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def wait(self, limit_s: float) -> Any:
        """Return the response; call it once.

        Args:
            limit_s: seconds until the deadline.

        Raises:
            IsolatedFailure: the process ended without a response, or took too long.
        """
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            said, _ = self._process.communicate(self._request, timeout=limit_s)
            code = self._process.returncode
            if code == 0:
                return json.loads(said)
        raise IsolatedFailure(code, self.read_log())

    def read_log(self) -> str:
        """Return the end of the process's output so far."""
        file = self._log.fileno()
        begin = max(0, os.fstat(file).st_size - LOG_BYTES)
        return os.pread(file, LOG_BYTES, begin).decode("utf-8", "replace").strip()  # the process shares the position

    def signal(self, number: int) -> None:
        """Send a signal to the process and to all that it has started."""
        with contextlib.suppress(ProcessLookupError):  # they have ended
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Kill the process with all that it has started."""
        self.signal(signal.SIGKILL)
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                if file is not None:
                    file.close()


def run_isolated(module: str, request: Any, *, limit_s: float, environment: Mapping[str, str] | None = None) -> Any:
    """Run a module's `answer` to a request in a new process, and return its response.

    Args:
        module: full name of the module.
        limit_s: seconds until the deadline.
        environment: variables of the process; None for the variables of this process.

    Raises:
        IsolatedFailure: the process ended without a response, or took too long.
    """
    with Isolated(module, request, environment=environment) as process:
        return process.wait(limit_s)


def end_with_parent(parent: int) -> None:
    """End this process and its whole group when its parent ends."""

    def end(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    if sys.platform == "linux":
        CDLL(None).prctl(PR_SET_PDEATHSIG, c_ulong(signal.SIGTERM), 0, 0, 0)
    if os.getppid() != parent:
        end()


def main(module: str, parent: str) -> None:
    """Answer the request on stdin."""
    end_with_parent(int(parent))
    response = os.dup(1)
    os.dup2(2, 1)
    if module.endswith(".py"):
        sys.path.append(str(Path(__file__).parents[2]))
    result = run_path(module) if module.endswith(".py") else vars(import_module(module))
    text = json.dumps(result["answer"](json.load(sys.stdin)))
    with os.fdopen(response, "w") as pipe:
        pipe.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
