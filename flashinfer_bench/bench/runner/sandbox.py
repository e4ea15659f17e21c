"""How far workers are confined: what is asked for, what this kernel gives, what is missing and why.

    strict   all of it, or the run is refused
    auto     all that this machine gives; what is missing stands in each trace, and `doctor` tells it
    off      no walls: a worker reads and writes what its user may, and uses the network

The parts: `files` (Landlock: a worker writes to its own folders and reads what it needs), `calls` (the call filter: no
connection, no namespace, no attribute of a file that is not its own), `root` (started by root, it has none of root's
rights). Walls are raised only where files and calls are both to be had: one without the other has a way round.

bubblewrap takes the place of none of them: it starts a program inside its walls, while a worker is forked from a
template that has torch in memory. Round the template it would give all workers of a session one view, in which each
could write to the folders of the others.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from flashinfer_bench.errors import ConfigError
from flashinfer_bench.sandbox import landlock
from flashinfer_bench.sandbox.seccomp import can_filter
from flashinfer_bench.sandbox.user import find_own_user, reads_without_rights

Level = Literal["strict", "auto", "off"]
User = Literal["own", "the session's", "root without rights", "root that reads all files", "unchanged"]

PARTS: Final = ("files", "calls", "root")
FIRST_VERSION: Final = 3
"""Of Landlock: before it, a file that may not be written could be cut short."""
NO_FILES: Final = (
    "this kernel's Landlock is of version {version}, and version {needed} (Linux 6.2) is needed: a solution can read "
    "and write what its user may"
)
NO_CALLS: Final = (
    "the call filter (seccomp) cannot be used here: a solution can connect to any service, and change modes of files"
)
NO_ROOT: Final = (
    "the environment belongs to another user, so a worker of root keeps the right to read every file that its walls "
    "leave; run as that user"
)


@dataclass(frozen=True)
class SandboxSupport:
    """What decides how far workers can be confined on this machine."""

    landlock_version: int
    filters_calls: bool
    is_root: bool
    reads_without_rights: bool
    """Root could read the environment without its rights over files."""
    own_user_fails: str | None
    """Why root cannot give a worker a user of its own; None where it can."""


@dataclass(frozen=True)
class Sandbox:
    """What workers of a run have."""

    level: Level = "off"
    """What was asked for."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Part → why it is not to be had, and what that leaves open."""
    user: User = "unchanged"
    notes: tuple[str, ...] = ()
    """What is no gap, and could be better."""

    @property
    def has_walls(self) -> bool:
        """Tell whether workers are walled in."""
        return self.level != "off" and not {"files", "calls"} & set(self.missing)

    @property
    def fingerprint_key(self) -> str:
        """Return what stands in a job's fingerprint: what was reached, whatever was asked for."""
        return "walls" if self.has_walls else "none"

    def record(self) -> dict[str, Any]:
        """Return what stands in a trace."""
        reached = [part for part in PARTS if part not in self.missing] if self.has_walls else []
        return {"level": self.level, "reached": reached, "missing": dict(self.missing), "user": self.user}


def find_sandbox(level: Level, cache_root: Path, *, probe: Callable[[Path], SandboxSupport] | None = None) -> Sandbox:
    """Say what a level comes to on this machine.

    Args:
        level: what is asked for.
        cache_root: the folder of what is built.
        probe: finds out what decides it.

    Raises:
        ConfigError: it is strict, and something is missing.
    """
    if level == "off":
        return Sandbox(level)
    support = (probe or read_support)(cache_root)
    fails, missing = support.own_user_fails if support.is_root else None, dict[str, str]()
    if support.landlock_version < FIRST_VERSION:
        missing["files"] = NO_FILES.format(version=support.landlock_version, needed=FIRST_VERSION)
    if not support.filters_calls:
        missing["calls"] = NO_CALLS
    if fails and not support.reads_without_rights:
        missing["root"] = NO_ROOT
    if level == "strict" and missing:
        gaps = "; ".join(f"{part}: {why}" for part, why in missing.items())
        raise ConfigError(f"sandbox: strict cannot be had on this machine: {gaps}; use auto to run without it")
    user: User = "own" if support.is_root else "the session's"
    if fails:
        user = "root without rights" if support.reads_without_rights else "root that reads all files"
    sandbox = Sandbox(level, missing, user, (fails,) if fails else ())
    return sandbox if sandbox.has_walls else Sandbox(level, missing)


def read_support(cache_root: Path) -> SandboxSupport:
    """Look at the kernel, and at who may read the environment."""
    is_root = os.geteuid() == 0
    return SandboxSupport(
        landlock_version=landlock.version(),
        filters_calls=can_filter(),
        is_root=is_root,
        reads_without_rights=not is_root or reads_without_rights(),
        own_user_fails=find_own_user(cache_root) if is_root else None,
    )
