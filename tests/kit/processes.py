"""Find every process that a run started, whoever its parent is now: all of them inherit a mark in their environment.

The process that forks sessions stays, for the next run; it does not count.

An ordinary user cannot read the environment of a process that hides its memory: one of a session that was not there
before counts as marked.
"""

import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from flashinfer_bench.bench.runner import starting
from flashinfer_bench.bench.runner.session import start

VARIABLE = "FIB_TEST_MARK"


@contextmanager
def marked():
    """Mark what is started inside the block; yields a function that lists the marked processes that are alive."""
    mark = uuid.uuid4().hex
    starting.end_starters()  # one that was started before bears no mark, nor do its sessions
    before = set(all_pids())
    os.environ[VARIABLE] = mark
    try:
        yield lambda: [
            pid
            for pid in set(all_pids()) - starting.starter_ids()
            if is_marked(pid, mark) or (pid not in before and is_hidden_session(pid))
        ]
    finally:
        del os.environ[VARIABLE]


def all_pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def is_hidden_session(pid):
    try:
        Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return is_session(pid)
    except OSError:
        return False
    return False


def is_session(pid):
    try:
        return start.__name__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def is_marked(pid, mark):
    try:
        return mark.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def wait_until_gone(alive, limit_s=30.0):
    """Return the marked processes that are still there after the limit."""
    deadline = time.monotonic() + limit_s
    while (left := alive()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
