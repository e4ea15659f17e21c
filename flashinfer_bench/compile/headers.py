"""Headers that take a compiler long to read, compiled once for many builds (`torch/extension.h`).

A precompiled header is an artifact of its own in the cache, made of the installed header and the flags alone: no source
of a solution takes part. A build finds it in a folder that g++ searches first (`-isystem ../headers`). There g++ itself
decides: it takes the header where nothing but comments, directives and macros that the header does not know came
before, and else reads the text. So a build has the same result with and without.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from flashinfer_bench.compile.artifact import Artifact, mark_of
from flashinfer_bench.compile.includes import read_list
from flashinfer_bench.compile.recipe import BuildRecipe

LIST: Final = "read.d"
"""The product that lists the files of which a precompiled header was made."""

BLANK: Final = rb"\s|//[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/"
"""A character of white space, or a comment."""


def begins_with(source: bytes, header: str) -> bool:
    """Tell whether the first thing in a source, but for comments, is the include of a header."""
    name = re.escape(header.encode())
    return re.match(rb"(?:%b)*#[ \t]*include[ \t]*(?:<%b>|\"%b\")" % (BLANK, name, name), source) is not None


def read_names(listing: Path, folders: Sequence[str]) -> frozenset[str]:
    """Return the names by which a header's own includes may have found the files that it was made of.

    A file below one of `folders` has its path there as its name. Any other may have been found by any end of its path.
    """
    names: set[str] = set()
    for path in read_list(listing):
        normal = posixpath.normpath(path)
        below = [normal.removeprefix(f"{folder}/") for folder in folders if normal.startswith(f"{folder}/")]
        names.update(below or ends_of(normal))
    return frozenset(names)


def ends_of(path: str) -> Iterator[str]:
    """Yield a path, and each shorter one that it ends with: `a/b.h`, `b.h`."""
    parts = path.strip("/").split("/")
    return ("/".join(parts[start:]) for start in range(len(parts)))


@dataclass(frozen=True)
class Header:
    """A precompiled header in the cache."""

    directory: Path
    """The folder that g++ searches."""
    file: Path
    names: frozenset[str]
    mark: tuple[int, ...]
    """Facts of the file when its content was checked."""

    @classmethod
    def of(cls, artifact: Artifact, recipe: BuildRecipe) -> Header:
        """Return the header that an artifact holds."""
        file = artifact.directory / artifact.entry
        names = read_names(artifact.directory / LIST, recipe.include_folders)
        return cls(artifact.directory, file, names, mark_of(file))

    def fits(self, recipe: BuildRecipe) -> bool:
        """Tell whether a build may take it: it is as it was made, and no source can be read in place of its parts."""
        ours = (end for path in recipe.sources for end in ends_of(path))
        return self.names.isdisjoint(ours) and mark_of(self.file) == self.mark
