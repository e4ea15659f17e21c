"""The process that runs one compiler and then ends. Called by `building.py`; `answer` takes a request.

    request   {"argv": command, "memory_bytes", "file_bytes": limits of each process that it starts,
               "readable": [path], "writable": [path]}
    response  {"code", "output", "seconds"}

The process gives up the network and, if the kernel has Landlock, all files except those in the request. It runs by its
path without site-packages (`base/isolated.py`), and so imports no heavy package.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from flashinfer_bench.base.bounded_log import BoundedLog
from flashinfer_bench.sandbox import landlock, process_tree
from flashinfer_bench.sandbox.namespaces import enter_own_network

HEAD_BYTES: Final = 49_152
TAIL_BYTES: Final = 16_384
"""Bytes kept of each end of a compiler's output; the middle is cut."""
NICENESS: Final = 10
"""Niceness of compilers, so that they yield to a measurement on the same machine."""


def answer(order: dict[str, Any]) -> dict[str, Any]:
    """Confine this process, and run the command of a request."""
    if sys.platform == "linux":
        confine(order["readable"], order["writable"])
    os.nice(NICENESS)
    limits = {
        resource.RLIMIT_AS: order["memory_bytes"],
        resource.RLIMIT_FSIZE: order["file_bytes"],
        resource.RLIMIT_CORE: 0,
    }
    process_tree.limit_resources(limits)
    log, start = BoundedLog(head_bytes=HEAD_BYTES, tail_bytes=TAIL_BYTES), time.monotonic()
    with subprocess.Popen(
        order["argv"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None  # it was started with a pipe
        while data := os.read(process.stdout.fileno(), 1 << 16):
            log.add(data)
    return {"code": process.returncode, "output": log.take(), "seconds": time.monotonic() - start}


def confine(readable: list[str], writable: list[str]) -> None:
    """Deny this process and its children the network and every file except the given ones, as far as the kernel can."""
    process_tree.prctl(process_tree.PR_SET_NO_NEW_PRIVS, 1)
    with suppress(OSError):
        enter_own_network()
    rules = [(path, landlock.READING) for path in readable] + [(path, landlock.OWNING) for path in writable]
    with suppress(OSError):
        landlock.restrict_files([*rules, (os.devnull, landlock.USING)])
