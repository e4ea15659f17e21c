"""Folders of a solution's run-time compilers; called in a worker, in its sandbox.

`enter_extensions` removes stale locks. While torch builds an extension, a file `lock` lies beside it, and other
processes wait until this file is removed. If the building process is killed, the file stays, and all later processes
would wait for ever. So each worker holds a kernel lock on its solution's folder during its life. A worker that is alone
in the folder removes its `lock` files.

`link_modules` lays a solution's folder over FlashInfer's compiled modules. Links lead to modules compiled ahead, and
the library writes further modules next to them. A module is in
`.cache/flashinfer/<version>/<architectures>/cached_ops/<module>`, and its generated sources are in `generated/<name>`
next to `cached_ops`. The build files of a module contain real paths. So they are valid through the link, too, and ninja
rebuilds nothing. An unfinished module, or a module whose flags name the shared folder, is skipped: the library compiles
it again.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.writing import open_new

IN_USE: Final = ".in_use"
"""The file that workers lock."""
LEFT: Final = "*/lock"
PATIENCE_S: Final = 1.0
"""Seconds that a worker waits for other workers if a lock file exists. An earlier worker may be about to end."""
PAUSE_S: Final = 0.05
LIBRARY: Final = Path(".cache", "flashinfer")
STAMP: Final = ".linked"
MOST_BYTES: Final = 16 << 20
"""Maximum bytes of a file that is read here."""
OF_FILES: Final = ("build ", "default ")
"""Prefixes of lines that name files. Other lines are flags."""


def enter_folders(shared_modules: str | None) -> None:
    """Prepare the folders that this process's environment names, before a solution is imported.

    Args:
        shared_modules: FlashInfer's folder of modules compiled ahead; None if there is none.
    """
    if shared_modules is not None:
        link_modules(Path(shared_modules), Path(os.environ["FLASHINFER_WORKSPACE_BASE"]))
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        enter_extensions(Path(os.environ["TORCH_EXTENSIONS_DIR"]))


def enter_extensions(folder: Path) -> None:
    """Register as a user of an extension folder until this process ends. The first user removes stale locks.

    Several workers of a solution can use it at the same time, one on each device.
    """
    with suppress(OSError):  # a solution that blocks its own folder harms only itself
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


def link_modules(shared: Path, own: Path) -> None:
    """Link finished modules of the shared folder into the private folder; existing files stay.

    This runs in the solution's sandbox, so files of the solution cannot redirect it elsewhere.
    """
    folders = sorted((shared / LIBRARY).glob("*/*/cached_ops"))
    downloads = sorted((shared / LIBRARY / "cubins").glob("*"))
    stamp = "\n".join(f"{folder} {folder.stat().st_mtime_ns}" for folder in (*folders, *downloads))
    with suppress(OSError, ValueError):
        if read_whole(own / STAMP, MOST_BYTES).decode() == stamp:
            return
    for target in (*downloads, *(target for folder in folders for target in _choose(folder, shared))):
        link = own / target.relative_to(shared)
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and not link.exists():
            link.unlink()  # its target was removed
        with suppress(FileExistsError):
            link.symlink_to(target)
    own.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_new(own / STAMP), "w") as file:
        file.write(stamp)


def _choose(folder: Path, shared: Path) -> Iterator[Path]:
    """Yield the modules of a folder to link, and their generated sources."""
    sources = folder.parent / "generated"
    for module in sorted(folder.iterdir()):
        build = module / "build.ninja"
        if not (module / f"{module.name}.so").is_file() or not build.is_file():
            continue
        text = read_whole(build, MOST_BYTES).decode(errors="replace")
        if any(str(shared) in line for line in text.splitlines() if not line.startswith(OF_FILES)):
            continue
        yield module
        for name in sorted(set(re.findall(rf"{re.escape(str(sources.resolve()))}/([^/\s]+)/", text))):
            yield sources / name
