"""Real worker processes for tests, forked from a template that lives in an interpreter of its own."""

import os
import select
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

SCRIPT = """
import os, socket, sys
import encodings.idna, fcntl, mmap, multiprocessing.synchronize, resource, shutil, signal, subprocess
import tempfile, threading
from pathlib import Path
import torch
from flashinfer_bench.worker.fork_server import run_fork_server
exec(sys.argv[4])
if user := int(sys.argv[3]):
    os.setgroups([]); os.setgid(user); os.setuid(user)
run_fork_server(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
"""
"""An ordinary user may not be able to read the interpreter's folder: what attacks need is imported before."""
ROOT = Path(__file__).parents[2]


@contextmanager
def running_template(run_directory: Path, user: int = 0, *, before: str = ""):
    """Yield the socket of a template; when the block ends no process of it is left.

    Args:
        run_directory: where its workers' folders are.
        user: who it is; 0 for whoever runs the tests.
        before: code that it runs first.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-c", SCRIPT, str(theirs.fileno()), str(run_directory), str(user), before]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    environment["PYTHONPATH"] = str(ROOT)
    process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=environment)
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.wait(60)


def wait_ready(worker):
    """Wait until a worker is ready; it has run no solution code yet."""
    deadline = time.monotonic() + 60
    while not worker.poll(deadline):
        select.select([worker], [], [], 1.0)


def worker_order(**changes):
    """Return a spawn order for a CPU worker."""
    order = {"environment": {"PATH": "/usr/bin:/bin"}, "device": "cpu", "threads": 1, "memory_limit_bytes": 2 << 30}
    order["timing"] = {"l2_cache": "cold", "clock": "auto", "image": ""}
    return {**order, **changes}
