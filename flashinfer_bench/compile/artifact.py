"""What a build leaves: a folder from which a worker loads the entry function, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from flashinfer_bench.data import Solution
from flashinfer_bench.errors import BuildFault

Kind = Literal["python", "tvm-ffi", "torch"]
"""How the worker loads the entry: a Python file, a shared library of tvm-ffi's, or an extension module of torch's."""


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
