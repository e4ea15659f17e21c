"""What a worker gives up before it meets a solution: its session, its descriptors, its environment, its core files,
its capabilities, its view of processes that it did not start and the calls that would reach them; with walls, also
every file and connection but those that it needs.

docs/architecture.md lists what a worker keeps, and what it could do with that.
"""

from __future__ import annotations

import io
import os
import resource
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.worker.filter.call_filter import install_filter
from flashinfer_bench.worker.linux import PR_SET_NO_NEW_PRIVS, ancestors, die_with_parent, prctl
from flashinfer_bench.worker.privileges import drop_capabilities, enter_own_domain
from flashinfer_bench.worker.walls.walls import Walls

RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)
MOST_DESCRIPTORS: Final = 4096
"""A worker's process has at most this many descriptors, and so many are on their way through sockets at the most: the
kernel counts these by user, against the sender's limit."""
LEAST_OOM_SCORE: Final = 500
"""Of 1,000. Where memory runs out the kernel ends a worker, and what that started, before who judges it."""
MOST_FILE_BYTES: Final = 16 << 30
"""A file that a worker writes has at most this many bytes."""


def confine(order: dict[str, Any], fds: Sequence[int], guard: socket.socket) -> None:
    """Turn this fresh fork into a worker's shell: own session, two pipes for output, one socket, its own folder.

    Args:
        order: its `home`, its `environment`, `most_tasks`, threads and processes that its user may have in all, and
            its `walls`, where it has some.
        fds: the socket, and the pipes.
        guard: the guard is sent what it answers filtered calls by.
    """
    keep_fd, out_fd, err_fd = fds
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
            stream.reconfigure(line_buffering=True)  # so that what was printed before a crash arrives
    inherited = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    set_limits(order.get("most_tasks"))
    raise_oom_score()
    above = ancestors(os.getpid())
    if order.get("walls") is None:
        drop_capabilities()
        enter_own_domain()
        listener = install_filter(above)
    else:
        walls = Walls.from_json(order["walls"])
        walls.raise_up()
        die_with_parent(signal.SIGKILL)  # a process that becomes another user forgets it
        listener = install_filter(above, walled=True, has_own_user=walls.user is not None, openings=walls.openings)
    if listener is not None:
        socket.send_fds(guard, [b"x"], [listener])
    guard.detach()
    os.closerange(3, keep_fd)
    os.closerange(keep_fd + 1, inherited)
    os.environ.clear()
    os.environ.update(order["environment"])
    tempfile.tempdir = None  # the session has looked up its own
    os.chdir(order["home"])


def raise_oom_score() -> None:
    """Let the kernel end this process, and its children, sooner than others where memory runs out."""
    file = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):  # then all of them have an equal chance
        if int(file.read_text()) < LEAST_OOM_SCORE:
            file.write_text(str(LEAST_OOM_SCORE))


def set_limits(most_tasks: int | None) -> None:
    """Limit what this process and its children may take. Address space has no limit: CUDA reserves terabytes of it."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: MOST_FILE_BYTES}
    limits[resource.RLIMIT_NOFILE] = MOST_DESCRIPTORS
    if most_tasks is not None:
        limits[resource.RLIMIT_NPROC] = most_tasks
    for limit, wanted in limits.items():
        allowed = [value for value in (*resource.getrlimit(limit), wanted) if value != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min(allowed), min(allowed)))
