"""Find every process that a run started, whoever its parent is now: all of them inherit a mark in their environment."""

import os
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "FIB_TEST_MARK"


@contextmanager
def marked():
    """Mark what is started inside the block; yields a function that lists the marked processes that are alive."""
    mark = uuid.uuid4().hex
    os.environ[VARIABLE] = mark
    try:
        yield lambda: [
            pid
            for pid in map(int, filter(str.isdigit, (path.name for path in Path("/proc").iterdir())))
            if is_marked(pid, mark)
        ]
    finally:
        del os.environ[VARIABLE]


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
