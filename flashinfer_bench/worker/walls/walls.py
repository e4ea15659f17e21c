"""The walls of one worker: which files it reads, which folders are its own, which user it is.

The session finds them out (`bench/runner/workers/reach.py`) and sends them with the order to start; the worker raises
them before it has threads, and they hold for all that it starts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from flashinfer_bench.worker.privileges import CAP_DAC_READ_SEARCH, drop_capabilities
from flashinfer_bench.worker.walls import landlock
from flashinfer_bench.worker.walls.own_view import enter_own_network, seal_proc
from flashinfer_bench.worker.walls.walled_calls import CHILDREN, LOOPBACK

PLAIN_DEVICES: Final = ("null", "zero", "full", "random", "urandom")
"""Device nodes that every program uses."""
OWN_THREADS: Final = "/proc/self/task"
"""CUDA gives each thread that it starts a name, in a file below this folder, and does not start where it cannot."""
ALL_THREADS: Final = "/proc"
"""The same for programs that are started later: nobody knows their folders yet. What a user may write there, it can."""


@dataclass(frozen=True)
class Walls:
    """What a worker may reach."""

    readable: tuple[str, ...]
    """Folders and files that it reads and executes."""
    writable: tuple[str, ...]
    """Folders of its own."""
    devices: tuple[str, ...]
    """Device nodes that it reads, writes and steers."""
    user: int | None = None
    """The user and group that it becomes; None to stay who it is."""
    reads_all_owners: bool = False
    """Root that keeps its right to read files of other owners, since the environment belongs to one."""
    shared_modules: str | None = None
    """FlashInfer's folder of compiled modules, which is among what it reads."""
    openings: tuple[str, ...] = ()
    """Keys of `walled_calls.OPENINGS`: what a tool needs that looks at a solution. None for what is judged."""

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Walls:
        """Return what `to_json` described."""
        lists = {name: tuple(told[name]) for name in ("readable", "writable", "devices", "openings")}
        return cls(**{**told, **lists})

    def without_gpu(self) -> Walls:
        """Return the walls of a worker that reaches no GPU."""
        return replace(self, devices=tuple(path for path in self.devices if Path(path).name in PLAIN_DEVICES))

    def to_json(self) -> dict[str, Any]:
        """Return the walls as a frame carries them."""
        return asdict(self)

    def raise_up(self) -> None:
        """Enter a domain of these files, become the user, and give up every capability.

        Raises:
            OSError: some of it cannot be done; the worker must not go on.
        """
        own = landlock.owning(landlock.version())
        rules = [(path, landlock.READING) for path in self.readable]
        rules += [(path, own) for path in self.writable]
        rules += [(path, landlock.USING) for path in self.devices]
        rules.append((ALL_THREADS if CHILDREN in self.openings else OWN_THREADS, landlock.NAMING))
        if CHILDREN in self.openings and self.user is None and os.geteuid() == 0:
            seal_proc()
        if LOOPBACK in self.openings and not enter_own_network():
            raise OSError("a process cannot have a network of its own here")
        landlock.enter(rules, keeps_tcp=LOOPBACK in self.openings)
        if self.user is not None:
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        if not drop_capabilities(kept=CAP_DAC_READ_SEARCH if self.reads_all_owners else None):
            raise OSError("this process's capabilities cannot be dropped")
