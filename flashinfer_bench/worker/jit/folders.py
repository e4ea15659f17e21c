"""Folders in which compilers of a solution keep what they make while it runs; called in a worker, in its sandbox.

`enter_extensions` removes locks that an ended worker left. While torch builds an extension, a file `lock` lies beside
it, and whoever wants the extension waits until the file is gone. A process that is ended then leaves it behind, and all
later ones would wait for ever. So each worker holds a lock of the kernel's on its solution's folder for as long as it
lives, and one that finds no other worker there removes such files.

`link_modules` lays a solution's folder over FlashInfer's compiled modules: links lead to what was compiled ahead, and
the library writes what it compiles beside them. It keeps a module in
`.cache/flashinfer/<version>/<architectures>/cached_ops/<module>`, and the sources that it made in `generated/<name>`
beside. Its build files name folders by their real paths, so a folder that is a link reads the same in both places, and
ninja finds nothing to do. A module that is not finished, or whose flags name the shared folder, is left out: the
library compiles it again.
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
"""The file that workers hold a lock on."""
LEFT: Final = "*/lock"
PATIENCE_S: Final = 1.0
"""Seconds that a worker waits for the end of others where a lock lies there: the one before may be about to end."""
PAUSE_S: Final = 0.05
LIBRARY: Final = Path(".cache", "flashinfer")
STAMP: Final = ".linked"
MOST_BYTES: Final = 16 << 20
"""Files of more bytes are not read here."""
OF_FILES: Final = ("build ", "default ")
"""How lines begin that name files; others are flags."""


def enter_folders(shared_modules: str | None) -> None:
    """Prepare the folders that this process's environment names, before a solution is imported.

    Args:
        shared_modules: FlashInfer's folder of modules that were compiled ahead; None if there is none.
    """
    if shared_modules is not None:
        link_modules(Path(shared_modules), Path(os.environ["FLASHINFER_WORKSPACE_BASE"]))
    if "TORCH_EXTENSIONS_DIR" in os.environ:
        enter_extensions(Path(os.environ["TORCH_EXTENSIONS_DIR"]))


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


def link_modules(shared: Path, own: Path) -> None:
    """Link what is finished in the shared folder into one's own; what is there already stays.

    Whatever a solution has left in its folder can lead nowhere else, since this is done in its sandbox.
    """
    places = sorted((shared / LIBRARY).glob("*/*/cached_ops"))
    downloads = sorted((shared / LIBRARY / "cubins").glob("*"))
    stamp = "\n".join(f"{place} {place.stat().st_mtime_ns}" for place in (*places, *downloads))
    with suppress(OSError, ValueError):
        if read_whole(own / STAMP, MOST_BYTES).decode() == stamp:
            return
    for target in (*downloads, *(target for place in places for target in _choose(place, shared))):
        link = own / target.relative_to(shared)
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and not link.exists():
            link.unlink()  # what it led to is gone
        with suppress(FileExistsError):
            link.symlink_to(target)
    own.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_new(own / STAMP), "w") as file:
        file.write(stamp)


def _choose(place: Path, shared: Path) -> Iterator[Path]:
    """Yield the modules of a folder to link, and the sources beside it that they name."""
    sources = place.parent / "generated"
    for module in sorted(place.iterdir()):
        build = module / "build.ninja"
        if not (module / f"{module.name}.so").is_file() or not build.is_file():
            continue
        text = read_whole(build, MOST_BYTES).decode(errors="replace")
        if any(str(shared) in line for line in text.splitlines() if not line.startswith(OF_FILES)):
            continue
        yield module
        for name in sorted(set(re.findall(rf"{re.escape(str(sources.resolve()))}/([^/\s]+)/", text))):
            yield sources / name
