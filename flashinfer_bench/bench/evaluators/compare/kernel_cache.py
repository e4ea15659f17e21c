"""Compiles the helper modules of Triton's driver once per machine, and copies them into the cache of each solution.

Triton's driver compiles its helpers at its first use, which takes seconds. A session compiles them into a folder that
no worker reads or writes, and copies them into new caches of solutions. The folder is used only if it belongs to this
user and no other user can write to it. The folder's name has the versions of Triton, torch and Python.
"""

from __future__ import annotations

import importlib
import logging
import os
import platform
import shutil
import stat
from importlib import metadata
from pathlib import Path
from typing import Final

JUDGE_FOLDER: Final = "judge"
"""A folder below the cache's root. No worker reads or writes it."""
VARIABLE: Final = "TRITON_CACHE_DIR"
HELPERS: Final = "*/cuda_utils*.so"
"""Glob pattern of the helpers in a Triton cache. Triton names their folder by a hash of their source."""
HELPER_MODE: Final = 0o644
"""File mode of a copied helper, so that a worker that runs as another user can read it."""
_shared: Path | None = None
_log = logging.getLogger(__name__)


def share_kernels(cache_root: Path) -> None:
    """Keep helpers below the cache's root for later sessions, in a folder to which workers have no access."""
    global _shared
    _shared = shared_folder(cache_root)


def shared_folder(cache_root: Path) -> Path | None:
    """Make and return the helpers' folder for the installed versions; None if it cannot be made, or others can write to
    it."""
    try:
        versions = [f"{name}-{metadata.version(name)}" for name in ("triton", "torch")]
        folder = cache_root / JUDGE_FOLDER / "_".join([*versions, f"python-{platform.python_version()}"])
        cache_root.mkdir(parents=True, exist_ok=True)
        for part in (folder.parent, folder):
            part.mkdir(mode=0o700, exist_ok=True)
            result = part.lstat()
            if not stat.S_ISDIR(result.st_mode) or result.st_uid != os.geteuid() or result.st_mode & 0o022:
                return None
    except (OSError, metadata.PackageNotFoundError):
        return None
    return folder


def build_helpers() -> None:
    """Have Triton's driver compile its helpers into the shared folder, if there is one. This uses a GPU."""
    if _shared is None:
        return
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = str(_shared)
    try:
        _ = importlib.import_module("triton.runtime.driver").driver.active
    except Exception as error:  # then each solution compiles the helpers
        _log.info("Triton's helpers were not compiled: %s", error)
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def lend_helpers(folder: Path) -> list[Path]:
    """Copy the helpers into a solution's new Triton cache; return the new files and folders.

    Args:
        folder: the cache, in which no worker has written so far.
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
