"""Process trees on Linux: prctl, who descends from whom, what they hold in memory, and ending all of them.

A worker is ended with all that it has started by its supervisor (`end_descendants`); if the supervisor cannot, by the
session (`end_tree`).
Without /proc or prctl these functions find nothing and do nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
KILL_ROUNDS: Final = 100
"""Look for new processes of a session at most this many times."""
KILL_POLL_S: Final = 0.002
MOST_REAPED: Final = 1000
"""Reap at most this many processes in one turn: a worker may make orphans without end, and there is more to do."""
MACHINE_MEMORY: Final = Path("/proc/meminfo")


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); say whether it was done."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call by its number; return -1 where it fails, or where the system has no such call."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    except (OSError, AttributeError):
        return -1


def fork() -> int:
    """Fork. Python warns of threads that hold locks; this process has no threads of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


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
    """Undo hide_memory, which a child inherits."""
    prctl(PR_SET_DUMPABLE, 1)


def in_child(act: Callable[[], bool]) -> bool:
    """Return what a function returns in a child of this process, which ends then; False if it raises."""
    pid = fork()
    if pid == 0:
        is_done = False
        with suppress(BaseException):
            is_done = act()
        os._exit(0 if is_done else 1)
    return os.waitpid(pid, 0)[1] == 0


class Process(NamedTuple):
    """A line of the process table."""

    state: str
    """ "R" runs, "Z" has ended and is not reaped yet."""
    parent: int
    group: int
    session: int


def read_process(pid: int) -> Process | None:
    """Return a process, or a thread's process, from proc(5)'s stat; None if it is gone."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()[:4]
    except (OSError, ValueError):
        return None
    return Process(state, *map(int, numbers))


def cpu_ticks(pid: int) -> int:
    """Return the processor time that a process has used, in clock ticks; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def process_table() -> dict[int, Process]:
    """Return every process that this one can see, by its id."""
    names = [entry.name for entry in os.scandir("/proc")] if Path("/proc").is_dir() else []
    found = {int(name): read_process(int(name)) for name in names if name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def is_alive(pid: int) -> bool:
    """Tell whether a process is there and has not ended yet."""
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def ancestors(pid: int) -> list[int]:
    """Return the processes above one, the nearest first."""
    found: list[int] = []
    while (process := read_process(pid)) is not None and process.parent not in (0, *found):
        found.append(pid := process.parent)
    return found


def descendants(root: int) -> list[int]:
    """Return every process below `root`, itself left out."""
    children: dict[int, list[int]] = {}
    for pid, process in process_table().items():
        children.setdefault(process.parent, []).append(pid)
    found = list(children.get(root, []))
    for pid in found:
        found += children.get(pid, [])
    return found


def session_members(sessions: Iterable[int]) -> dict[int, dict[int, str]]:
    """Return of each session pid → state of its processes."""
    table = process_table().items()
    return {wanted: {pid: one.state for pid, one in table if one.session == wanted} for wanted in sessions}


def count_tasks() -> int:
    """Return how many threads the machine has, those of others and of other containers included."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return 0


def kill_session(session: int, *, spare: int | None = None) -> None:
    """Kill every process of a session, also those with a group of their own, such as ninja's compilers."""
    for _ in range(KILL_ROUNDS):  # one may start another while we look
        alive = [pid for pid, state in session_members([session])[session].items() if state != "Z" and pid != spare]
        if not alive:
            return
        _kill(alive)


def reap() -> tuple[list[tuple[int, int]], bool]:
    """Reap what has ended, orphans too: return pids with their wait statuses, and whether a child is left."""
    found: list[tuple[int, int]] = []
    with suppress(ChildProcessError):
        while len(found) < MOST_REAPED:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found, True
            found.append((pid, status))
        return found, True
    return found, False


def end_descendants(kill_all: Callable[[], object] | None) -> int:
    """Kill and reap every process below this one; return how many there were, as far as they were seen.

    It goes on until none is left: a session that waits for that has a deadline.

    Args:
        kill_all: kills all that is below this process, and nothing else; None if nothing can. Then each is looked for.
    """
    seen: set[int] = set()
    is_left = True
    while is_left:
        if kill_all is not None:
            kill_all()
        else:
            seen.update(alive := descendants(os.getpid()))
            kill_with_groups(os.getpid(), alive)
        reaped, is_left = reap()
        seen.update(pid for pid, _ in reaped)
        time.sleep(0.001 if is_left else 0.0)
    return len(seen)


def end_tree(root: int, limit_s: float) -> bool:
    """Kill a process and all below it; say whether everything was gone before the limit.

    The root is killed last: if it adopts orphans, it gets every process that loses its parent, also while stopped.
    """
    deadline = time.monotonic() + limit_s
    if not kill_below(root, limit_s):
        return False
    _kill([root])
    while is_alive(root):
        if time.monotonic() >= deadline:
            return False
        time.sleep(KILL_POLL_S)
    return True


def kill_below(root: int, limit_s: float) -> bool:
    """Kill every process below one, also those started meanwhile; say whether all were gone before the limit.

    All are gone once none is alive and none is new: what only forks and ends has left its dead by the next look.
    """
    deadline = time.monotonic() + limit_s
    seen: set[int] = set()
    while True:
        found = descendants(root)
        if seen.issuperset(found) and not any(map(is_alive, found)):
            return True
        if time.monotonic() >= deadline:
            return False
        seen.update(found)
        kill_with_groups(root, found)
        time.sleep(KILL_POLL_S)


def kill_with_groups(root: int, below: Iterable[int]) -> None:
    """Kill processes below one, and first their groups: a group is killed at once, also while its members fork and end.

    No group is killed that the root, this process or one above them is in.
    """
    pids, own = list(below), [root, os.getpid(), *ancestors(root)]
    groups, spared = ({one.group for one in map(read_process, some) if one is not None} for some in (pids, own))
    for group in groups - spared - {0}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    _kill(pids)


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def await_children(limit_s: float) -> None:
    """Wait until this process has no children any more, no longer than the limit."""
    deadline = time.monotonic() + limit_s
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(KILL_POLL_S)


class Memory(NamedTuple):
    """What a process holds in the machine's memory, in bytes. Files do not count, since the kernel may drop them."""

    private: int = 0
    shared: int = 0
    """Mapped shared memory. `hidden_memory` sees memory that is not mapped."""


def resident_memory(pid: int) -> Memory:
    """Return what a process holds, pages that forks share with it among that; nothing when it is gone.

    If its first thread has ended, the kernel reports the memory in the files of the other threads.
    """
    with suppress(OSError):
        for task in (Path(f"/proc/{pid}"), *Path(f"/proc/{pid}/task").iterdir()):
            status = (task / "status").read_bytes()
            private = read_kilobytes(status, b"RssAnon")
            if private is not None:
                return Memory(private, read_kilobytes(status, b"RssShmem") or 0)
    return Memory()


def proportional_memory(pid: int) -> Memory:
    """Return what a process holds, pages divided among their sharers: slow, but right for forks.

    Of a process that hides its memory only `resident_memory` is known.
    """
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        private = read_kilobytes(rollup, b"Pss_Anon")
        if private is not None:
            return Memory(private, read_kilobytes(rollup, b"Pss_Shmem") or 0)
    return resident_memory(pid)


def hidden_memory(file: Path = MACHINE_MEMORY) -> tuple[int, int]:
    """Return the bytes of the machine's memory that are in use and are no process's private memory, counted twice.

    First whatever is neither available nor private: pinned pages and drivers' buffers, too. The kernel reports freed
    memory late, so this lags. Then what the kernel counts at once: shared memory, mapped or not, its tables and its
    buffers. Zeros if the kernel reports nothing.
    """
    text = b""
    with suppress(OSError):
        text = file.read_bytes()
    total, available, private = (read_kilobytes(text, name) for name in (b"MemTotal", b"MemAvailable", b"AnonPages"))
    counted = sum(read_kilobytes(text, name) or 0 for name in (b"Shmem", b"SUnreclaim", b"PageTables"))
    if total is None or available is None or private is None:
        return 0, counted
    return total - available - private, counted


def read_kilobytes(status: bytes, name: bytes) -> int | None:
    """Return the bytes that a line of a process's file reports; None where there is no such line.

    Nothing but a line feed ends a line: a process may give itself a name that has any other sign.
    """
    found = re.search(rb"^" + name + rb":[ \t]+(\d+) kB$", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
