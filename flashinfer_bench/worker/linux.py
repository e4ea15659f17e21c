"""The few Linux calls that Python does not offer: prctl, and a walk over the process table.

Everything here degrades to doing nothing where the system has no such call; what that costs is told in
docs/architecture.md.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

PR_SET_PDEATHSIG: Final = 1
PR_SET_DUMPABLE: Final = 4
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
KILL_ROUNDS: Final = 100


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); say whether it was done."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> None:
    """Let no other process of this user read or write this one's memory; programs that it starts are not hidden."""
    prctl(PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo hide_memory, as a child of a hidden process may want."""
    prctl(PR_SET_DUMPABLE, 1)


def parents() -> dict[int, int]:
    """Return pid → parent pid of every process that this one can see."""
    return {pid: int(fields[1]) for pid, fields in _process_table()}


def session_members(sessions: Iterable[int]) -> dict[int, dict[int, str]]:
    """Return of each session pid → state ("R" runs, "Z" has ended and is not reaped yet) of its processes."""
    found: dict[int, dict[int, str]] = {session: {} for session in sessions}
    for pid, fields in _process_table():
        if int(fields[3]) in found:
            found[int(fields[3])][pid] = fields[0].decode()
    return found


def kill_session(session: int, *, spare: int | None = None) -> None:
    """Kill every process of a session, those too that have a group of their own, as ninja's compilers have."""
    for _ in range(KILL_ROUNDS):  # one may start another while we look
        alive = [pid for pid, state in session_members([session])[session].items() if state != "Z" and pid != spare]
        if not alive:
            return
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _process_table() -> Iterator[tuple[int, list[bytes]]]:
    """Yield each process with its fields from proc(5)'s stat, from the state on."""
    for entry in os.scandir("/proc") if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            try:
                fields = (Path(entry.path) / "stat").read_bytes().rpartition(b") ")[2].split()
            except OSError:
                continue  # it ended while we looked
            yield int(entry.name), fields


def descendants(root: int) -> list[int]:
    """Return every live process below `root`, itself left out."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def private_bytes(pid: int) -> int:
    """Return the memory a process holds for itself alone, in bytes; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_bytes().split()
    except OSError:
        return 0
    return (int(fields[1]) - int(fields[2])) * PAGE_BYTES


def proportional_bytes(pid: int) -> int:
    """Return a process's anonymous memory in bytes, pages divided among their sharers: slow, but right for forks."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss_Anon:"))
