"""The values that the parts of a build exchange: the target, the recipe, the artifact, and the outcome.

A recipe has the sources, commands and products of one build, and the digest of everything that decides the products.
Equal recipes have equal digests, and the digest is the name of the artifact. Making a recipe starts no process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.data import Solution
from flashinfer_bench.data.digest import digest_of
from flashinfer_bench.errors import BuildFault

Kind = Literal["python", "reference", "tvm-ffi", "torch", "header"]
"""How the worker loads the entry: as a Python file, a definition's reference, a library for tvm-ffi, or an extension
module for torch.

A precompiled header is for compilers; no worker loads it."""
FORMAT: Final = 2
"""A part of every digest. Raise it when builders make other products from the same sources."""
PRODUCTS: Final = "../artifact/files"
"""The folder of the products, seen from the folder of the sources."""
HEADERS: Final = "../headers"
"""The folder of precompiled headers, seen from the folder of the sources. If it is missing, compilers read the headers
themselves."""
READ_LIST: Final = "read.d"
"""The product of a precompiled header that lists the header's source files."""
LINK: Final = "link"
"""Name of the step that makes the library."""


@dataclass(frozen=True)
class BuildTarget:
    """The GPUs that artifacts are built for."""

    architectures: tuple[str, ...] = ("90a",)
    """Architectures as nvcc writes them. The default is for a machine without a GPU."""

    @classmethod
    def of(cls, capabilities: list[tuple[int, int]]) -> BuildTarget:
        """Return the target for GPUs of these compute capabilities; the default for an empty list.

        From Hopper on, an architecture's name ends in "a": code for that chip alone.
        """
        result = sorted(set(capabilities))
        return cls(tuple(f"{major}{minor}{'a' * (major >= 9)}" for major, minor in result)) if result else cls()


@dataclass(frozen=True)
class BuildStep:
    """One command, run in the folder of the sources."""

    name: str
    """For the reader of a log: "compile kernel.cu"."""
    argv: tuple[str, ...]


Stages = tuple[tuple[BuildStep, ...], ...]
"""Steps of one stage may run at once. Stages run in order."""


@dataclass(frozen=True)
class BuildRecipe:
    """How one solution is built."""

    kind: Kind
    entry: str
    symbol: str
    sources: Mapping[str, bytes]
    """Path → content. They are written before the first step."""
    made_from: Mapping[str, Any]
    """Everything that decides the product, as JSON-able values. The digest is computed from it."""
    products: tuple[str, ...]
    """The files that make the artifact, relative to its folder."""
    stages: Stages = ()
    """Without a stage, the sources are the artifact."""
    readable: tuple[Path, ...] = ()
    """Folders that the compilers may read besides the system's and the sources."""
    probe: Stages = ()
    """Steps that compile a source of one line. If these steps fail too, the machine is at fault and not the
    solution."""
    probe_sources: Mapping[str, bytes] = field(default_factory=dict)
    main_header: str | None = None
    """The header that solutions with this binding include. If the error is in a header outside the solution, the probe
    includes the main header."""
    needs_symbol: str | None = None
    """The symbol that the library must export. If the symbol is missing, the entry point is wrong."""
    lacks_symbol: str = ""
    """The change that the solution's author must make if the symbol is missing."""
    header: BuildRecipe | None = None
    """The recipe of a precompiled header that the build can use; None if there is none. Using it only saves time."""
    note: str | None = None
    """A line for the log about the build."""
    toolkit: tuple[int, int] | None = None
    """The version of the CUDA toolkit that the build uses; None for a build without the toolkit."""
    chooses_architecture: bool = False
    """Whether the solution's own flags name the GPUs that it is compiled for."""
    guessed_seconds: float = 0.0
    """Expected seconds of compiling. They decide only the order of builds."""

    @cached_property
    def digest(self) -> str:
        """The artifact's name."""
        return digest_of({"format": FORMAT, "kind": self.kind, **self.made_from})


@dataclass(frozen=True)
class Artifact:
    """The files of one built solution, from which a worker loads the entry function."""

    directory: Path
    entry: str
    """File with the entry point, relative to the folder."""
    symbol: str
    """Name of the entry function in it."""
    kind: Kind = "python"
    files: tuple[tuple[str, str], ...] = ()
    """Relative path and sha256 of each file, as it was built."""


@dataclass(frozen=True)
class StepLimits:
    """The time, memory and disk that one compiler may take."""

    seconds: float
    """Wall time. A compiler that takes longer is ended."""
    memory_bytes: int
    """Address space."""


@dataclass(frozen=True)
class StepReport:
    """How one command ended."""

    name: str
    code: int
    """The exit code. Negative: the number of the signal that ended the command."""
    output: str
    seconds: float


class BuildFailure(Exception):
    """The solution cannot be built. The message says what its author must change."""


@dataclass(frozen=True)
class Built:
    """The outcome for one solution: an artifact, or the reason why there is none."""

    solution: Solution
    artifact: Artifact | None
    error: BuildFailure | BuildFault | None
    seconds: float
    """Seconds of the compilers. For an artifact from the cache: seconds of the build that made it."""
    was_cached: bool


def stat_key(path: Path) -> tuple[int, ...]:
    """Return the fields of a file's `stat` that change with each write; empty for a missing file."""
    try:
        stat = path.stat()
    except OSError:
        return ()
    return (stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
