"""Find every process that a run started, whoever its parent is now: all of them inherit a mark in their environment.

The mark is set before the first test and is never taken back: the process that forks sessions bears it, is used again
by one run after another, and does not count.

An ordinary user cannot read the environment of a process that hides its memory. It has the command line of the process
that forked its session, which names the host: this process, one that it started, or one that is gone.
"""

import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from flashinfer_bench.bench.runner.launcher import _LAUNCHERS, MODULE
from flashinfer_bench.sandbox.process_tree import ancestors, is_alive

VARIABLE = "FIB_TEST_MARK"
MARK = uuid.uuid4().hex
"""Of this process of pytest: what another one starts at the same time bears another."""


def set_mark():
    """Mark all that is started from now on."""
    os.environ[VARIABLE] = MARK


@contextmanager
def marked():
    """Yield a function that lists the marked processes that were started inside the block and are alive."""
    assert os.environ.get(VARIABLE) == MARK
    before = set(all_pids())
    yield lambda: [pid for pid in set(all_pids()) - before - launcher_ids() if is_marked(pid) or is_hidden_session(pid)]


def all_pids():
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def launcher_ids():
    """Return the fork servers of sessions of this process."""
    return {one.process.pid for key, one in _LAUNCHERS.items() if key[0] == os.getpid()}


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
        *command, host, _ = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False
    if MODULE.encode() not in command:
        return False
    return not is_alive(int(host)) or os.getpid() in (int(host), *ancestors(int(host)))


def is_marked(pid):
    try:
        return MARK.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def wait_until_gone(alive, limit_s=30.0):
    """Return the marked processes that are still there after the limit."""
    deadline = time.monotonic() + limit_s
    while (left := alive()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left
