"""What a build leaves: a folder that a worker can load an entry function from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Artifact:
    """The files of one built solution."""

    directory: Path
    entry: str
    """File with the entry point, relative to the folder."""
    symbol: str
    """Name of the entry function in it."""


class BuildFailure(Exception):
    """The solution cannot be built; the message is what its author needs to see."""
