"""Linux calls that Python does not offer: prctl, and a walk over the process table.

Where the system has no such call these functions do nothing. docs/architecture.md says what that costs.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

PR_SET_DUMPABLE: Final = 4
PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
PR_SET_NO_NEW_PRIVS: Final = 38
FIRST_PID_NAMESPACE: Final = 0xEFFFFFFC
KILL_ROUNDS: Final = 100
"""Look for new processes of a session at most this many times."""
KILL_POLL_S: Final = 0.002
MACHINE_MEMORY: Final = Path("/proc/meminfo")


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); say whether it was done."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        return bool(libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
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


def parents() -> dict[int, int]:
    """Return pid → parent pid of every process that this one can see."""
    return {pid: int(fields[1]) for pid, fields in _process_table()}


def parent_of(pid: int) -> int | None:
    """Return the parent of a process, or of a thread's process; None where it is gone."""
    fields = _read_stat(Path(f"/proc/{pid}"))
    return int(fields[1]) if fields else None


def ancestors(pid: int) -> list[int]:
    """Return the processes above one, the nearest first."""
    found: list[int] = []
    above = parent_of(pid)
    while above:
        found.append(above)
        above = parent_of(above)
    return found


def process_groups() -> dict[int, list[int]]:
    """Return process group → its members."""
    groups: dict[int, list[int]] = {}
    for pid, fields in _process_table():
        groups.setdefault(int(fields[2]), []).append(pid)
    return groups


def count_own_tasks() -> int | None:
    """Return how many threads this user has; None in a container, where not all of them can be seen."""
    try:
        if Path("/proc/self/ns/pid").stat().st_ino != FIRST_PID_NAMESPACE:
            return None
    except OSError:
        return None
    return sum(int(fields[17]) for pid, fields in _process_table() if _owner(pid) == os.getuid())


def _owner(pid: int) -> int | None:
    """Return the user of a process. The owner of its folder in /proc is root where it hides its memory."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return None
    return int(status.partition(b"\nUid:")[2].split(None, 1)[0])


def count_threads(pid: int) -> int:
    """Return how many threads a process has; 0 where it is gone."""
    try:
        return sum(1 for _ in os.scandir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def session_members(sessions: Iterable[int]) -> dict[int, dict[int, str]]:
    """Return of each session pid → state ("R" runs, "Z" has ended and is not reaped yet) of its processes."""
    found: dict[int, dict[int, str]] = {session: {} for session in sessions}
    for pid, fields in _process_table():
        if int(fields[3]) in found:
            found[int(fields[3])][pid] = fields[0].decode()
    return found


def kill_session(session: int, *, spare: int | None = None) -> None:
    """Kill every process of a session, also those with a group of their own, such as ninja's compilers."""
    for _ in range(KILL_ROUNDS):  # one may start another while we look
        alive = [pid for pid, state in session_members([session])[session].items() if state != "Z" and pid != spare]
        if not alive:
            return
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def end_tree(root: int, limit_s: float, *, now: Callable[[], float] = time.monotonic) -> bool:
    """Kill a process and all below it; say whether everything was gone before the limit.

    The root is killed last: where it adopts orphans, it gets every process that loses its parent, also while stopped.
    """
    deadline = now() + limit_s
    if not kill_below(root, limit_s, now=now):
        return False
    with suppress(ProcessLookupError):
        os.kill(root, signal.SIGKILL)
    while is_alive(root):
        if now() >= deadline:
            return False
        time.sleep(KILL_POLL_S)
    return True


def kill_below(root: int, limit_s: float, *, now: Callable[[], float] = time.monotonic) -> bool:
    """Kill every process below one, also those started meanwhile; say whether all were gone before the limit.

    All are gone once none is alive and none is new: what only forks and ends has left its dead by the next look.
    """
    deadline = now() + limit_s
    seen: set[int] = set()
    while True:
        found = descendants(root)
        if seen.issuperset(found) and not any(map(is_alive, found)):
            return True
        if now() >= deadline:
            return False
        seen.update(found)
        kill_with_groups(root, found)
        time.sleep(KILL_POLL_S)


def await_children(limit_s: float) -> None:
    """Wait until this process has no children any more, no longer than the limit."""
    deadline = time.monotonic() + limit_s
    with suppress(ChildProcessError):
        while time.monotonic() < deadline:
            os.waitpid(-1, os.WNOHANG)
            time.sleep(KILL_POLL_S)


def kill_with_groups(root: int, below: Iterable[int]) -> None:
    """Kill processes below one, and first their groups: a group is killed at once, also where its members fork and end.

    No group is killed that the root, this process or one above them is in.
    """
    spared = {group for pid in (root, os.getpid(), *ancestors(root)) if (group := _group_of(pid))}
    pids = list(below)
    for group in {_group_of(pid) for pid in pids} - spared - {0}:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _group_of(pid: int) -> int:
    """Return the process group of a process; 0 where it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return 0


def is_alive(pid: int) -> bool:
    """Tell whether a process is there and has not ended yet."""
    fields = _read_stat(Path(f"/proc/{pid}"))
    return bool(fields) and fields[0] not in (b"Z", b"X")


def _process_table() -> Iterator[tuple[int, list[bytes]]]:
    """Yield each process with its fields from proc(5)'s stat, from the state on."""
    for entry in os.scandir("/proc") if Path("/proc").is_dir() else ():
        if entry.name.isdigit():
            fields = _read_stat(Path(entry.path))
            if fields:
                yield int(entry.name), fields


def _read_stat(folder: Path) -> list[bytes]:
    """Return a process's fields from the state on; none where it has ended meanwhile."""
    try:
        return (folder / "stat").read_bytes().rpartition(b") ")[2].split()
    except OSError:
        return []


def children(pid: int) -> list[int] | None:
    """Return the children of a process, whichever of its threads started them; None where the kernel does not tell."""
    found: list[int] = []
    try:
        for task in os.scandir(f"/proc/{pid}/task"):
            found += map(int, _read_whole(f"{task.path}/children").split())
    except OSError:
        return None
    return found


def _read_whole(path: str) -> bytes:
    """Return what a file of /proc holds, by system calls alone: a session reads some hundreds for each job on a CPU."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(fd)


def tree_below(root: int) -> list[int]:
    """Return every process below `root`, as `descendants` does, without a walk over the whole table where possible."""
    found: list[int] = []
    todo = [root]
    while todo:
        below = children(todo.pop())
        if below is None:
            return descendants(root)
        found += below
        todo += below
    return found


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


@dataclass(frozen=True)
class Memory:
    """What processes hold in the machine's memory, in bytes. Files do not count, since the kernel may drop them."""

    private: int = 0
    shared: int = 0
    """Mapped shared memory. `hidden_memory` sees what is not mapped."""

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.private + other.private, self.shared + other.shared)


def resident_memory(pid: int) -> Memory:
    """Return what a process holds, pages that forks share with it among that; nothing when it is gone.

    Of a process whose first thread has ended the kernel tells it in the files of the others.
    """
    found = _read_memory(Path(f"/proc/{pid}/status"))
    if found is None:
        with suppress(OSError):
            told = [_read_memory(task / "status") for task in Path(f"/proc/{pid}/task").iterdir()]
            found = next((one for one in told if one is not None), None)
    return found or Memory()


def proportional_memory(pid: int) -> Memory:
    """Return what a process holds, pages divided among their sharers: slow, but right for forks.

    Of a process that hides its memory only `resident_memory` is known.
    """
    resident = resident_memory(pid)
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except OSError:
        return resident
    private, shared = read_kilobytes(rollup, b"Pss_Anon"), read_kilobytes(rollup, b"Pss_Shmem")
    return resident if private is None else Memory(private, shared or 0)


def _read_memory(path: Path) -> Memory | None:
    """Read what a task's status tells of its memory; None where it tells nothing."""
    try:
        status = path.read_bytes()
    except OSError:
        return None
    private = read_kilobytes(status, b"RssAnon")
    return None if private is None else Memory(private, read_kilobytes(status, b"RssShmem") or 0)


def hidden_memory(file: Path = MACHINE_MEMORY) -> tuple[int, int]:
    """Return the bytes of the machine's memory that are in use and are no process's private memory, counted twice.

    First whatever is neither available nor private: pinned pages and drivers' buffers, too. The kernel tells of freed
    memory late, so this lags. Then what the kernel counts at once: shared memory, mapped or not, its tables and its
    buffers. Zeros where the kernel does not tell.
    """
    try:
        told = file.read_bytes()
    except OSError:
        return 0, 0
    total, *rest = (read_kilobytes(told, name) for name in (b"MemTotal", b"MemAvailable", b"AnonPages"))
    known = [one for one in rest if one is not None]
    taken = 0 if total is None or len(known) < len(rest) else total - sum(known)
    kinds = (read_kilobytes(told, name) for name in (b"Shmem", b"SUnreclaim", b"PageTables"))
    return taken, sum(one or 0 for one in kinds)


def read_kilobytes(status: bytes, name: bytes) -> int | None:
    """Return the bytes that a line of a process's file tells; None where there is no such line.

    Nothing but a line feed ends a line: a process may give itself a name that has any other sign.
    """
    found = re.search(rb"^" + name + rb":[ \t]+(\d+) kB$", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
