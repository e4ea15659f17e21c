"""What a worker gives up before it meets a solution: its session, its descriptors, its environment, its core files,
its capabilities, its view of processes that it did not start and the calls that would reach them.

What is not taken away (a hostile driver) is listed in docs/architecture.md.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from flashinfer_bench.worker.call_filter import install_filter
from flashinfer_bench.worker.linux import PR_SET_NO_NEW_PRIVS, ancestors, die_with_parent, prctl
from flashinfer_bench.worker.privileges import drop_capabilities, enter_own_domain

RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)


def confine(
    *, keep_fd: int, out_fd: int, err_fd: int, home: Path, environment: dict[str, str], guard: socket.socket
) -> None:
    """Turn this fresh fork into a worker's shell: own session, two pipes for output, one socket, its own folder.

    Args:
        guard: the guard is sent what it answers filtered calls by.
    """
    os.setsid()
    die_with_parent(signal.SIGKILL)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    signal.set_wakeup_fd(-1)
    for number in RESET_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out_fd, 1), (err_fd, 2)):
        os.dup2(source, target)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what is printed before a crash is what one wants to read
    drop_capabilities()
    enter_own_domain()
    listener = install_filter(ancestors(os.getpid()))
    if listener is not None:
        socket.send_fds(guard, [b"x"], [listener])
    guard.detach()
    os.closerange(3, keep_fd)
    os.closerange(keep_fd + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(home)
