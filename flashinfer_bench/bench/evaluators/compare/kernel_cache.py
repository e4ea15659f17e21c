"""Where Triton keeps the kernels that judge: in a folder that the sessions of a machine share, or in one of the moment.

A kernel that judges must not come from a folder that solutions write to. So sessions share one only where workers have
walls, and where the folder is of this user and nobody else writes to it. Its name has the versions that decide what is
compiled; Triton's own keys have the rest.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.held_folders import temporary_folder

JUDGE_FOLDER: Final = "judge"
"""Below the cache's root. No worker reads or writes it."""
VARIABLE: Final = "TRITON_CACHE_DIR"
HELPERS: Final = "*/cuda_utils*.so"
"""Modules of Triton's driver in a cache: what they are made of is part of their folder's name."""
HELPER_MODE: Final = 0o644
"""Mode of a lent module: the worker, which may be of another user, reads it."""
_shared: Path | None = None
_log = logging.getLogger(__name__)


def share_kernels(cache_root: Path) -> None:
    """Keep what this process compiles for later sessions; workers are walled out of the cache."""
    global _shared
    _shared = shared_folder(cache_root)


def shared_folder(cache_root: Path) -> Path | None:
    """Make and return the folder of these versions; None where it cannot be had, or is open to others."""
    names = ("triton", "torch")
    versions = [f"{name}-{_version(name)}" for name in names] + [f"python-{platform.python_version()}"]
    folder = cache_root / JUDGE_FOLDER / "_".join(versions)
    try:
        cache_root.mkdir(parents=True, exist_ok=True)
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, exist_ok=True)
        there = [part.lstat() for part in (folder, folder.parent)]
    except OSError:
        return None
    is_ours = all(stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() for found in there)
    return folder if is_ours and not any(found.st_mode & 0o022 for found in there) else None


def build_helpers() -> None:
    """Have Triton's driver compile its own helpers now, and into the folder of kernels that judge. It uses a GPU.

    It does so once a process, at the first look at its driver: anywhere else it would use the user's own cache.
    """
    try:
        with own_kernels():
            driver = importlib.import_module("triton.runtime.driver").driver
            _ = driver.active
    except Exception as error:  # whatever the reason, comparisons will meet it and do without
        _log.info("Triton's helpers were not compiled: %s", error)


def lend_helpers(folder: Path) -> list[Path]:
    """Copy what Triton compiles once a process, whatever is launched, into a new cache; return what was made there.

    A solution with a cache of its own would compile it anew at its first launch.

    Args:
        folder: of a solution's Triton; nobody else may have written there yet.
    """
    made: list[Path] = []
    for helper in sorted(_shared.glob(HELPERS)) if _shared is not None else ():
        target = folder / helper.parent.name / helper.name
        for part in (folder, target.parent):
            if not part.exists():
                part.mkdir()
                made.append(part)
        shutil.copyfile(helper, target)
        target.chmod(HELPER_MODE)
        made.append(target)
    return made


@contextmanager
def own_kernels() -> Iterator[None]:
    """Let Triton compile the kernels of a block into the shared folder, or into a new one where none is shared."""
    if _shared is not None:
        with _compile_into(_shared):
            yield
        return
    with temporary_folder("kernels") as folder, _compile_into(folder):
        yield


@contextmanager
def _compile_into(folder: Path) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"
