"""The throw-away process that runs compilers: `python -I -S step_runner.py`, an Order on stdin, a report on stdout.

    stdin    {"parent": pid, "parallel": n, "memory_bytes", "file_bytes", "cpu_s": limits of each compiler,
              "readable": [path], "writable": [path], "stages": [[{"name", "argv"}]]}
    stdout   [{"name", "code", "output", "seconds"}], the steps that were begun

Steps of one stage may run at once; stages follow one another. After a step that fails nothing more is started. The
process gives up the network and, where the kernel has Landlock, all files but those in the order. When its parent ends,
it ends too, with all that it started. Of this package it imports the sandbox alone, which needs the standard library.
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # it is run by its path
    sys.path.insert(0, str(Path(__file__).parents[2]))

from flashinfer_bench.sandbox import landlock, processes
from flashinfer_bench.sandbox.namespaces import enter_own_network

HEAD_BYTES = 49_152
TAIL_BYTES = 16_384
"""Bytes that are kept of the begin and of the end of a compiler's output; the middle is cut."""
MAX_OUTPUT_BYTES = 64 << 20
"""Bytes of output after which a compiler is ended."""
NICENESS = 10
"""Compilers run at this niceness, so that they give way to a measurement on the same machine."""


class Running:
    """One compiler that was started; keeps the head and the tail of what it says."""

    def __init__(self, step: dict[str, Any]) -> None:
        self.name = step["name"]
        self.head, self.tail, self.total = bytearray(), bytearray(), 0
        self.start = time.monotonic()
        self.process = subprocess.Popen(
            step["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def fileno(self) -> int:
        """Return the descriptor of its output."""
        assert self.process.stdout is not None  # it was started with a pipe
        return self.process.stdout.fileno()

    def pump(self) -> bool:
        """Read once; False at the end of its output."""
        data = os.read(self.fileno(), 1 << 16)
        self.total += len(data)
        room = HEAD_BYTES - len(self.head)
        self.head += data[:room]
        self.tail = (self.tail + data[room:])[-TAIL_BYTES:] if len(data) > room else self.tail
        if self.total > MAX_OUTPUT_BYTES:
            self.process.kill()
        return bool(data)

    def report(self) -> dict[str, Any]:
        """Wait for its end and say what came of it."""
        code = self.process.wait()
        is_endless = self.total > MAX_OUTPUT_BYTES  # then it was ended here, and nobody else has killed it
        cut = self.total - len(self.head) - len(self.tail)
        middle = f"\n[... {cut} bytes cut ...]\n".encode() if cut else b""
        output = bytes(self.head) + middle + bytes(self.tail)
        seconds = time.monotonic() - self.start
        if is_endless:
            code, output = 1, output + b"\nerror: the compiler printed too much, and was ended"
        return {"name": self.name, "code": code, "output": output.decode("utf-8", "replace"), "seconds": seconds}


def main() -> None:
    """Read the order, shut the doors, run the steps, report."""
    order = json.loads(sys.stdin.buffer.read())
    die_with_parent(order["parent"])
    if sys.platform == "linux":
        confine(order["readable"], order["writable"])
    os.nice(NICENESS)
    for limit, value in (
        (resource.RLIMIT_AS, order["memory_bytes"]),
        (resource.RLIMIT_FSIZE, order["file_bytes"]),
        (resource.RLIMIT_CPU, order["cpu_s"]),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(limit)[1]
        wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (wanted, wanted))
    steps: list[dict[str, Any]] = []
    for stage in order["stages"]:
        steps += run_stage(stage, order["parallel"])
        if any(step["code"] != 0 for step in steps):
            break
    json.dump(steps, sys.stdout)


def run_stage(stage: list[dict[str, Any]], parallel: int) -> list[dict[str, Any]]:
    """Run the steps, at most `parallel` at once; return their reports in the order in which they end."""
    waiting, reports, failed = list(stage), [], False
    with selectors.DefaultSelector() as selector:
        while selector.get_map() or (waiting and not failed):
            while waiting and not failed and len(selector.get_map()) < parallel:
                selector.register(Running(waiting.pop(0)), selectors.EVENT_READ)
            for key, _ in selector.select():
                running = key.fileobj
                assert isinstance(running, Running)  # nothing else is registered
                if not running.pump():
                    selector.unregister(running)
                    reports.append(running.report())
                    failed = failed or reports[-1]["code"] != 0
    return reports


def die_with_parent(parent: int) -> None:
    """End this process and its whole group when its parent ends."""

    def end(*_: object) -> None:
        os.killpg(0, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    processes.die_with_parent(signal.SIGTERM)
    if os.getppid() != parent:
        end()


def confine(readable: list[str], writable: list[str]) -> None:
    """Deny this process, and all it starts, the network and every file but the named ones, as far as the kernel can."""
    processes.prctl(processes.PR_SET_NO_NEW_PRIVS, 1)
    with suppress(OSError):
        enter_own_network()
    rules = [(path, landlock.READING) for path in readable] + [(path, landlock.OWNING) for path in writable]
    with suppress(OSError):
        landlock.restrict_files([*rules, (os.devnull, landlock.USING)])


if __name__ == "__main__":
    main()
