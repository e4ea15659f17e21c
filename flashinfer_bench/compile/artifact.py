"""What a build leaves: a folder from which a worker loads the entry function, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

Kind = Literal["python", "reference", "tvm-ffi", "torch", "header"]
"""How the worker loads the entry: a Python file, a definition's reference, a shared library of tvm-ffi's, or an
extension module of torch's.

A precompiled header is for compilers; no worker loads it."""


@dataclass(frozen=True)
class Artifact:
    """The files of one built solution."""

    directory: Path
    entry: str
    """File with the entry point, relative to the folder."""
    symbol: str
    """Name of the entry function in it."""
    kind: Kind = "python"
    files: tuple[tuple[str, str], ...] = ()
    """Relative path and sha256 of each file, as it was built."""


class BuildFailure(Exception):
    """The solution cannot be built. The message tells its author what to change."""


@dataclass(frozen=True)
class Built:
    """What became of one solution: an artifact, or the reason why there is none."""

    solution: Solution
    artifact: Artifact | None
    error: BuildFailure | BuildFault | None
    seconds: float
    """Seconds that the compilers took. For an artifact from the cache: seconds of the build that made it."""
    was_cached: bool


def mark_of(path: Path) -> tuple[int, ...]:
    """Return facts of a file that change whenever somebody writes to it; none where it is gone."""
    try:
        facts = path.stat()
    except OSError:
        return ()
    return (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
