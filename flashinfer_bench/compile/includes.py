"""Checks that all included files lie among the sources or belong to the toolchain: by the compiler's own list of files.

No macro hides a file from that list. If the kernel has Landlock, the compiler cannot read other files at all. Also
tells whether a source takes a precompiled header.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.compile.artifact import BuildFailure

LIST: Final = "read.d"
"""The product of a precompiled header that lists the files of which it was made."""
BLANK: Final = rb"\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/"
"""A character of white space, or a comment."""
MOST_LIST_BYTES: Final = 16 << 20
"""A compiler's list of the files that it read is refused if it has more bytes."""


def begins_with(source: bytes, header: str) -> bool:
    """Tell whether the first thing in a source, but for comments, is the include of a header."""
    name = re.escape(header.encode())
    return re.match(rb"(?:%b)*#[ \t]*include[ \t]*(?:<%b>|\"%b\")" % (BLANK, name, name), source) is not None


def check_read_files(dependency_files: Iterable[Path], sources: Path, allowed: Iterable[Path]) -> None:
    """Check the lists of files that the compilers read.

    Args:
        dependency_files: the lists that `-MD -MF` wrote, in make's syntax; paths are relative to `sources`.
        sources: the folder that the compilers ran in.
        allowed: folders of the toolchain.

    Raises:
        BuildFailure: a compiler read a file that is neither the solution's nor the toolchain's.
    """
    roots = [sources.resolve(), *(folder.resolve() for folder in allowed)]
    for dependency_file in dependency_files:
        for name in read_list(dependency_file):
            real = (sources / name).resolve()
            if not any(real.is_relative_to(root) for root in roots):
                raise BuildFailure(f"error: {real} was read, which is neither a source nor part of the toolchain")


def read_list(dependency_file: Path) -> list[str]:
    """Return the files that a compiler read, from the list that it wrote in make's syntax."""
    text = read_whole(dependency_file, MOST_LIST_BYTES).decode(errors="replace").replace("\\\n", " ")
    return [name.replace("\\ ", " ") for name in re.split(r"(?<!\\)\s+", text.partition(":")[2].strip()) if name]
