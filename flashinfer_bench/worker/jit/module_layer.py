"""A solution's own layer over FlashInfer's compiled modules: a folder of its own with links to those that were compiled
ahead, to which the library writes what it compiles beside them.

The library keeps a module in `.cache/flashinfer/<version>/<architectures>/cached_ops/<module>`, and the sources that it
made in `generated/<name>` beside. Its build files name folders by their real paths, so a folder that is a link reads
the same in both places, and ninja finds nothing to do. A module that is not finished, or whose flags name the shared
folder, is left out: the library compiles it again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.base.files.writing import open_new

LIBRARY: Final = Path(".cache", "flashinfer")
MODULES, SOURCES, BUILD_FILE, DOWNLOADS = "cached_ops", "generated", "build.ninja", "cubins"
STAMP: Final = ".linked"
MOST_BYTES: Final = 16 << 20
"""Files that are read here have at most so many bytes."""
OF_FILES: Final = ("build ", "default ")
"""How lines begin that name files; others are flags."""


def link_modules(shared: Path, own: Path) -> None:
    """Link what is finished in the shared folder into one's own; what is there already stays.

    Called in a worker with its walls, so that whatever a solution has left in its folder can lead nowhere else.
    """
    places = list(_find_places(shared / LIBRARY))
    stamp = "\n".join(f"{place} {place.stat().st_mtime_ns}" for place in places)
    with suppress(OSError, ValueError):
        if read_whole(own / STAMP, MOST_BYTES).decode() == stamp:
            return
    for place in places:
        for target in _choose(place, shared):
            _link(target, own / target.relative_to(shared))
    own.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_new(own / STAMP), "w") as file:
        file.write(stamp)


def _find_places(library: Path) -> Iterator[Path]:
    """Yield the folders that hold modules, and the one of what was downloaded."""
    yield from sorted(library.glob(f"*/*/{MODULES}"))
    if (library / DOWNLOADS).is_dir():
        yield library / DOWNLOADS


def _choose(place: Path, shared: Path) -> Iterator[Path]:
    """Yield what to link of one folder, and of the sources beside it."""
    if place.name == DOWNLOADS:
        yield from sorted(place.iterdir())
        return
    sources = place.parent / SOURCES
    for module in sorted(place.iterdir()):
        build = module / BUILD_FILE
        if not (module / f"{module.name}.so").is_file() or not build.is_file():
            continue
        text = read_whole(build, MOST_BYTES).decode(errors="replace")
        if any(str(shared) in line for line in text.splitlines() if not line.startswith(OF_FILES)):
            continue
        yield module
        for name in sorted(set(re.findall(rf"{re.escape(str(sources.resolve()))}/([^/\s]+)/", text))):
            yield sources / name


def _link(target: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_symlink() and not link.exists():
        link.unlink()  # what it led to is gone
    with suppress(FileExistsError):
        link.symlink_to(target)
