"""Removes locks on torch's extensions that nobody holds any more.

While torch builds an extension (`torch.utils.cpp_extension`), a file `lock` lies beside it, and whoever wants the
extension waits until the file is gone. A process that is ended then leaves it behind, and all later ones would wait for
ever. So each worker holds a lock of the kernel's on its solution's folder for as long as it lives, and one that finds
no other worker there removes such files.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

IN_USE: Final = ".in_use"
"""The file that workers hold a lock on."""
LEFT: Final = "*/lock"
PATIENCE_S: Final = 1.0
"""Seconds that a worker waits for the end of others where a lock lies there: the one before may be about to end."""
PAUSE_S: Final = 0.05


def enter_extensions(folder: Path) -> None:
    """Be one of those who use a folder of extensions, until this process ends; the first one removes what was left.

    Several workers of a solution may use it side by side, one on each device.
    """
    with suppress(OSError):  # what a solution has put in the way is its own loss
        folder.mkdir(parents=True, exist_ok=True)
        held = os.open(folder / IN_USE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        left, deadline = list(folder.glob(LEFT)), time.monotonic() + PATIENCE_S
        while left and time.monotonic() < deadline:
            with suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for lock in left:
                    lock.unlink()
                break
            time.sleep(PAUSE_S)
        fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
