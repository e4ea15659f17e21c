"""The folder of artifacts on disk: made in a staging folder, moved in place whole, checked again before every use.

    $FIB_CACHE_PATH/artifacts/<first two of digest>/<digest>/…      default root: ~/.cache/flashinfer_bench/cache

A killed build leaves a staging folder that nobody trusts; the next build of anything removes those that are a day
old.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

CACHE_VARIABLE: Final = "FIB_CACHE_PATH"
STAGING_PREFIX: Final = ".staging-"
STAGING_AGE_S: Final = 24 * 3600.0


def cache_root(environment: Mapping[str, str]) -> Path:
    """Return the cache's folder: $FIB_CACHE_PATH, else one below the home directory."""
    configured = environment.get(CACHE_VARIABLE)
    return Path(configured) if configured else Path.home() / ".cache" / "flashinfer_bench" / "cache"


def stored(root: Path, digest: str, *, fill: Callable[[Path], None], is_whole: Callable[[Path], bool]) -> Path:
    """Return the folder of an artifact, made by `fill` unless a whole one is there already.

    Args:
        root: the cache's folder.
        digest: what the artifact is made of, as a hex string.
        fill: writes the artifact's files into an empty folder; what it raises comes through and leaves nothing.
        is_whole: says whether a folder holds what it should, byte for byte.
    """
    shelf = root / "artifacts" / digest[:2]
    target = shelf / digest
    if target.is_dir() and is_whole(target):
        return target
    shelf.mkdir(parents=True, exist_ok=True)
    _sweep(shelf)
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=shelf))
    try:
        fill(staging)
        _move_in_place(staging, target, is_whole)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _move_in_place(staging: Path, target: Path, is_whole: Callable[[Path], bool]) -> None:
    for _ in range(3):
        try:
            os.rename(staging, target)  # noqa: PTH104 - Path.rename hides that a folder is never replaced
        except OSError:
            if target.is_dir() and is_whole(target):
                return  # somebody built it meanwhile
            shutil.rmtree(target, ignore_errors=True)  # what was there is not what it should be
        else:
            return
    raise OSError(f"cannot move the artifact to {target}; remove that folder and run again")


def _sweep(shelf: Path) -> None:
    for entry in shelf.glob(STAGING_PREFIX + "*"):
        try:
            old = time.time() - entry.stat().st_mtime > STAGING_AGE_S
        except OSError:
            continue  # another build removed it
        if old:
            shutil.rmtree(entry, ignore_errors=True)
