"""The throw-away process that runs compilers. It gets an order and reports the steps that it began (`answer`).

    order     {"parallel": n, "memory_bytes", "file_bytes", "cpu_s": limits of each compiler,
               "readable": [path], "writable": [path], "stages": [[{"name", "argv"}]]}
    response  [{"name", "code", "output", "seconds"}]

Steps of one stage may run at once; stages follow one another. After a step that fails nothing more is started. The
process gives up the network and, if the kernel has Landlock, all files but those in the order. It runs by its path
without site-packages (`base/isolated.py`), and so imports no heavy package.
"""

from __future__ import annotations

import os
import resource
import selectors
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.sandbox import landlock, processes
from flashinfer_bench.sandbox.namespaces import enter_own_network

HEAD_BYTES: Final = 49_152
TAIL_BYTES: Final = 16_384
"""Bytes kept of the beginning and of the end of a compiler's output; the middle is cut."""
MAX_OUTPUT_BYTES: Final = 64 << 20
"""Bytes of output after which a compiler is ended."""
NICENESS: Final = 10
"""Compilers give way to a measurement on the same machine."""


def answer(order: dict[str, Any]) -> list[dict[str, Any]]:
    """Confine this process, and run the steps of an order."""
    if sys.platform == "linux":
        confine(order["readable"], order["writable"])
    os.nice(NICENESS)
    limits = {
        resource.RLIMIT_AS: order["memory_bytes"],
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_CPU: order["cpu_s"],
        resource.RLIMIT_CORE: 0,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (wanted, wanted))
    steps: list[dict[str, Any]] = []
    for stage in order["stages"]:
        steps += run_stage(stage, order["parallel"])
        if any(step["code"] != 0 for step in steps):
            break
    return steps


class Running:
    """One compiler that was started."""

    def __init__(self, step: dict[str, Any]) -> None:
        self._name = step["name"]
        self._log, self._bytes = BoundedLog(head_bytes=HEAD_BYTES, tail_bytes=TAIL_BYTES), 0
        self._start = time.monotonic()
        self._process = subprocess.Popen(
            step["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert self._process.stdout is not None  # it was started with a pipe
        self.fileno = self._process.stdout.fileno

    def pump(self) -> bool:
        """Read once; return False at the end of the output."""
        data = os.read(self.fileno(), 1 << 16)
        self._log.add(data)
        self._bytes += len(data)
        if self._bytes > MAX_OUTPUT_BYTES:
            self._process.kill()
        return bool(data)

    def report(self) -> dict[str, Any]:
        """Wait for the end, and return the report."""
        code, output = self._process.wait(), self._log.take()
        if self._bytes > MAX_OUTPUT_BYTES:
            code, output = 1, f"{output}\nerror: the compiler printed too much, and was ended"
        return {"name": self._name, "code": code, "output": output, "seconds": time.monotonic() - self._start}


def run_stage(stage: list[dict[str, Any]], parallel: int) -> list[dict[str, Any]]:
    """Run the steps, at most `parallel` at once; return their reports in the order in which they end."""
    waiting, reports, failed = list(stage), [], False
    with selectors.DefaultSelector() as selector:
        while selector.get_map() or (waiting and not failed):
            while waiting and not failed and len(selector.get_map()) < parallel:
                running = Running(waiting.pop(0))
                selector.register(running, selectors.EVENT_READ, running)
            for key, _ in selector.select():
                if not key.data.pump():
                    selector.unregister(key.fileobj)
                    reports.append(key.data.report())
                    failed = failed or reports[-1]["code"] != 0
    return reports


def confine(readable: list[str], writable: list[str]) -> None:
    """Deny this process, and all it starts, the network and every file but the named ones, as far as the kernel can."""
    processes.prctl(processes.PR_SET_NO_NEW_PRIVS, 1)
    with suppress(OSError):
        enter_own_network()
    rules = [(path, landlock.READING) for path in readable] + [(path, landlock.OWNING) for path in writable]
    with suppress(OSError):
        landlock.restrict_files([*rules, (os.devnull, landlock.USING)])
