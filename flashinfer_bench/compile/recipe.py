"""The recipe of one build: sources, commands, products, and the digest of everything that decides the product.

Making a recipe starts no process. Equal recipes have equal digests, and the digest is the name of the artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.compile.artifact import Kind
from flashinfer_bench.data.digest import digest_of

FORMAT: Final = 1
"""A part of every digest. Raise it when builders make something else of the same sources."""

PRODUCTS: Final = "../artifact/files"
"""The folder of the products, seen from the folder of the sources."""
HEADERS: Final = "../headers"
"""The folder of precompiled headers, seen from there. Where there is none, compilers read the headers themselves."""


LINK: Final = "link"
"""Name of the step that makes the library."""


@dataclass(frozen=True)
class BuildStep:
    """One command, run in the folder of the sources."""

    name: str
    """For people: "compile kernel.cu"."""
    argv: tuple[str, ...]


Stages = tuple[tuple[BuildStep, ...], ...]
"""Steps of one stage may run at once. Stages follow one another."""


@dataclass(frozen=True)
class BuildTarget:
    """The GPUs that artifacts are built for."""

    architectures: tuple[str, ...] = ("90a",)
    """Architectures as nvcc writes them. The default is for a machine without a GPU."""

    @classmethod
    def of(cls, capabilities: list[tuple[int, int]]) -> BuildTarget:
        """Return the target for GPUs of these compute capabilities; the default where there are none."""
        names = dict.fromkeys(architecture_of(capability) for capability in sorted(capabilities))
        return cls(tuple(names)) if names else cls()


def architecture_of(capability: tuple[int, int]) -> str:
    """Return nvcc's name for a compute capability. From Hopper on it ends in "a": code for that chip alone."""
    major, minor = capability
    return f"{major}{minor}a" if major >= 9 else f"{major}{minor}"


@dataclass(frozen=True)
class BuildRecipe:
    """How one solution is built."""

    kind: Kind
    entry: str
    symbol: str
    sources: Mapping[str, bytes]
    """Path → content. They are written before the first step."""
    made_from: Mapping[str, Any]
    """Everything that decides the product, as JSON-able values. The digest is made of it."""
    products: tuple[str, ...]
    """The files that make the artifact, relative to its folder."""
    stages: Stages = ()
    """Without a stage, the sources are the artifact."""
    readable: tuple[Path, ...] = ()
    """Folders that the compilers may read beside the system's and the sources."""
    probe: Stages = ()
    """Steps that compile a source of one line. Where they fail too, the machine is at fault and not the solution."""
    probe_sources: Mapping[str, bytes] = field(default_factory=dict)
    main_header: str | None = None
    """The header that solutions with its binding include. The probe does so too for errors in headers of others."""
    needs_symbol: str | None = None
    """The symbol that the library must export. Without it the entry point is wrong."""
    header: BuildRecipe | None = None
    """The header that its compilers would take precompiled. It decides how long they take and nothing else."""
    include_folders: tuple[str, ...] = ()
    """Of a header: the folders in which its parts are looked for."""
    note: str | None = None
    """A line about how it is built that its log has."""
    toolkit: tuple[int, int] | None = None
    """The version of the CUDA toolkit that it uses; None where it uses none."""
    guessed_seconds: float = 0.0
    """How long compiling may take. It decides the order of builds and nothing else."""

    @cached_property
    def digest(self) -> str:
        """The artifact's name."""
        return digest_of({"format": FORMAT, "kind": self.kind, **self.made_from})
