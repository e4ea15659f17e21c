"""The first lines of a device session's process: `python -m flashinfer_bench.bench.runner.session.start FD HOST_PID`.

It ties this process to its host before anything slow is imported. So a host that is killed while torch loads leaves no
process behind.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys

from flashinfer_bench.worker.linux import die_with_parent, hide_memory


def start(fd: int, host_pid: int) -> None:
    """Have the kernel end this process with its host, then become the session."""
    die_with_parent(signal.SIGKILL)
    if os.getppid() != host_pid:
        return  # the host ended before the kernel was told
    hide_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host to handle
    importlib.import_module("flashinfer_bench.bench.runner.session.main").serve_host(fd)


if __name__ == "__main__":
    start(int(sys.argv[1]), int(sys.argv[2]))
