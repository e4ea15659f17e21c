"""The sandbox of workers: the requested level, the support of this kernel, and the missing parts with their reasons.

    strict   the whole sandbox, or the run is refused
    auto     all that this machine supports; each trace and `doctor` list the missing parts
    off      no sandbox: a worker has the file and network access of its user

The parts: `files` (Landlock: a worker writes to its own folders and reads only necessary files), `calls` (the system
call filter: no connections, no namespaces, no attributes of foreign files), `root` (if root runs the engine, its
workers have no rights of root). The sandbox needs both files and calls, since either part alone can be bypassed.

bubblewrap replaces none of these parts, since it starts a new program in its sandbox. A worker is forked from a fork
server that has torch in memory. A bubblewrap around the fork server would give all workers of a session one view of the
files. Then each worker could write to the folders of other workers.
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
"""Least version of Landlock. Older versions allow truncating a file that is not writable."""
NO_FILES: Final = (
    "this kernel's Landlock is of version {version}, and version {needed} (Linux 6.2) is needed: a solution can read "
    "and write what its user may"
)
NO_CALLS: Final = (
    "the call filter (seccomp) cannot be used here: a solution can connect to any service, and change modes of files"
)
NO_ROOT: Final = (
    "the environment belongs to another user, so a worker of root keeps the right to read every file that its sandbox "
    "leaves; run as that user"
)


@dataclass(frozen=True)
class SandboxSupport:
    """Properties of this machine that decide the sandbox of workers."""

    landlock_version: int
    filters_calls: bool
    is_root: bool
    reads_without_rights: bool
    """Root could read the Python environment even without the capabilities that override file permissions."""
    own_user_fails: str | None
    """Why root cannot give a worker its own user; None if it can."""


@dataclass(frozen=True)
class Sandbox:
    """The sandbox of a run's workers."""

    level: Level = "off"
    """The requested level."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Part → why it is missing, and what access this leaves."""
    user: User = "unchanged"
    notes: tuple[str, ...] = ()
    """Further messages about the sandbox. The messages do not repeat `missing`."""

    @property
    def is_sandboxed(self) -> bool:
        """Whether workers run in a sandbox."""
        return self.level != "off" and not {"files", "calls"} & set(self.missing)

    @property
    def fingerprint_key(self) -> str:
        """The sandbox's entry in a job's fingerprint: the reached level, not the requested level."""
        return "walls" if self.is_sandboxed else "none"

    def record(self) -> dict[str, Any]:
        """Return the sandbox's entry in a trace."""
        reached = [part for part in PARTS if part not in self.missing] if self.is_sandboxed else []
        return {"level": self.level, "reached": reached, "missing": dict(self.missing), "user": self.user}


def find_sandbox(level: Level, cache_root: Path, *, probe: Callable[[Path], SandboxSupport] | None = None) -> Sandbox:
    """Return the sandbox that a level gives on this machine.

    Args:
        cache_root: folder of the build results.
        probe: reads the properties of the machine.

    Raises:
        ConfigError: the level is strict, and a part is missing.
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
    return sandbox if sandbox.is_sandboxed else Sandbox(level, missing)


def read_support(cache_root: Path) -> SandboxSupport:
    """Find what the kernel supports, and whether workers could read the Python environment."""
    is_root = os.geteuid() == 0
    return SandboxSupport(
        landlock_version=landlock.version(),
        filters_calls=can_filter(),
        is_root=is_root,
        reads_without_rights=not is_root or reads_without_rights(),
        own_user_fails=find_own_user(cache_root) if is_root else None,
    )
