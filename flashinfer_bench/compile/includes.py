"""Checks that all included files lie among the sources or belong to the toolchain, before and after compiling.

Before: it reads the directives in the text, which gives a clear message. After: it reads the compiler's own list of
files, from which no macro hides. If the kernel has Landlock, the compiler cannot read other files at all.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from flashinfer_bench.base.files.reading import read_whole
from flashinfer_bench.compile.artifact import BuildFailure

DIRECTIVE: Final = re.compile(
    rb"^[ \t]*#[ \t]*(?:include|include_next|import|embed)[ \t]*[<\"]([^>\"\n]+)[>\"]", re.MULTILINE
)
BLOCK_COMMENT: Final = re.compile(rb"/\*.*?(?:\*/|\Z)", re.DOTALL)
"""A comment without an end goes to the end of the file: looking for the end of each would take quadratic time."""
LIST: Final = "read.d"
"""The product of a precompiled header that lists the files of which it was made."""
BLANK: Final = rb"\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/"
"""A character of white space, or a comment."""
MOST_LIST_BYTES: Final = 16 << 20
"""A compiler's list of the files that it read with more bytes is refused."""
INCBIN: Final = re.compile(rb"\.incbin\b")


def begins_with(source: bytes, header: str) -> bool:
    """Tell whether the first thing in a source, but for comments, is the include of a header."""
    name = re.escape(header.encode())
    return re.match(rb"(?:%b)*#[ \t]*include[ \t]*(?:<%b>|\"%b\")" % (BLANK, name, name), source) is not None


def check_directives(sources: Mapping[str, bytes]) -> None:
    """Check the include directives of every source.

    Raises:
        BuildFailure: one names an absolute path or leaves the sources. The message has file and line.
    """
    for path, content in sources.items():
        text = BLOCK_COMMENT.sub(lambda comment: b"\n" * comment[0].count(b"\n"), content)
        for found in DIRECTIVE.finditer(text):
            name = found[1].decode("utf-8", "replace")
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(path), name))
            if name.startswith("/") or inside.startswith(".."):
                line = text.count(b"\n", 0, found.start(1)) + 1
                raise BuildFailure(
                    f'{path}:{line}: error: #include "{name}" is a path outside the sources\n'
                    "Include headers by their path within the sources, those of libraries by name (docs/building.md)."
                )
        embedded = INCBIN.search(text)
        if embedded:
            line = text.count(b"\n", 0, embedded.start()) + 1
            raise BuildFailure(f"{path}:{line}: error: .incbin is not allowed; sources are the only input of a build")


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
