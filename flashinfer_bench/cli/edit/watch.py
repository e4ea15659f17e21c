"""Waits until somebody saves a file: looks at times and sizes a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.trees import walk_files
from flashinfer_bench.data.manifest import is_passed_over

LOOK_EVERY_S: Final = 0.05
"""Seconds between two looks. It is added to the time from saving to the verdict."""

Stamp = dict[str, tuple[int, int]]
"""Path → time of the last change, and size."""


def take_stamp(paths: Iterable[Path]) -> Stamp:
    """Return what a save changes: of each file, and of each file below each folder."""
    stamp: Stamp = {}
    for path in paths:
        files = walk_files(path, lambda *_: None, passes_over=is_passed_over) if path.is_dir() else [path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue  # an editor replaces it at this moment
            stamp[str(file)] = (status.st_mtime_ns, status.st_size)
    return stamp


def wait_for_change(paths: Iterable[Path], before: Stamp, sleep: Callable[[float], object] = time.sleep) -> Stamp:
    """Return when a file differs from its stamp, and nothing has changed for one more look."""
    watched = list(paths)
    last = before
    while True:
        sleep(LOOK_EVERY_S)
        now = take_stamp(watched)
        if now and now != before and now == last:
            return now
        last = now
