"""Only one run at a time measures on a GPU: all users of the machine share a lock file, named by the GPU's UUID."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.locks import try_lock
from flashinfer_bench.base.files.writing import open_folder
from flashinfer_bench.bench.machine import Device
from flashinfer_bench.errors import DeviceFault

WAIT_LIMIT_S: Final = 3600.0
"""Seconds to wait for another run to end before this run fails."""
POLL_S: Final = 0.2


def lock_path(device: Device) -> Path:
    """Return the lock file of a GPU."""
    return Path(tempfile.gettempdir()) / "flashinfer-bench-locks" / f"{device.uuid}.lock"


def open_lock(path: Path) -> int:
    """Open a file that every user of the machine can lock. Create the file and its folder if they are missing."""
    before = os.umask(0)
    try:
        with open_folder(path.parent, path.parent, mode=0o1777) as folder:  # follows no link to another file
            # Linux may refuse O_CREAT for another user's file (fs.protected_regular).
            makes = os.O_CREAT if folder.find(path.name) is None else 0
            return folder.open(path.name, os.O_RDWR | makes)
    finally:
        os.umask(before)


def ask_for_device(device: Device, held: ExitStack, *, limit_s: float = WAIT_LIMIT_S) -> Iterator[str | None]:
    """Try to take a GPU's lock, without waiting. Yield None while another run holds it; end when this run holds it.

    A CPU has no lock. A message for the user is yielded once, before the first None.

    Args:
        held: releases the lock when it is closed.
        limit_s: seconds after which DeviceFault is raised.

    Raises:
        DeviceFault: the lock was not free in time.
    """
    if device.kind == "cpu":
        return
    path = lock_path(device)
    try:
        fd = open_lock(path)
    except OSError as error:
        raise DeviceFault(f"{device.label} cannot be locked: {path}: {error.strerror}; remove that file") from error
    held.callback(os.close, fd)
    deadline, reported = time.monotonic() + limit_s, False
    while not try_lock(fd):
        if not reported:
            holder = os.pread(fd, 64, 0).decode("ascii", "replace").strip() or "unknown"
            yield f"{device.label} is in use by another run (process {holder}); waiting for it"
            reported = True
        if time.monotonic() >= deadline:
            raise DeviceFault(f"{device.label} was not free within {limit_s:g} s; its lock is {path}")
        yield None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
