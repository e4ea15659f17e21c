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
STAMP: Final = ".linked"
MOST_BYTES: Final = 16 << 20
"""Files of more bytes are not read here."""
OF_FILES: Final = ("build ", "default ")
"""How lines begin that name files; others are flags."""


def link_modules(shared: Path, own: Path) -> None:
    """Link what is finished in the shared folder into one's own; what is there already stays.

    Called in a worker with its walls, so that whatever a solution has left in its folder can lead nowhere else.
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
