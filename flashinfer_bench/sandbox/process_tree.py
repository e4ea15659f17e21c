"""Process trees on Linux: prctl, limits, descendants, their memory, and ending them.

A supervisor ends its worker with all descendants (`end_descendants`). If the supervisor cannot, the session does it
(`end_tree`). Without /proc or prctl these functions find nothing and do nothing.
"""

from __future__ import annotations

import ctypes
import os
import re
import resource
import signal
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
PF_EXITING: Final = 4
"""The kernel's flag of a thread that ends."""
KILL_ROUNDS: Final = 100
"""Maximum number of searches for new processes of a session."""
KILL_POLL_S: Final = 0.002
MOST_REAPED: Final = 1000
"""Maximum number of processes that are reaped at once. A worker can make endless orphans, and other work must go on."""
MACHINE_MEMORY: Final = Path("/proc/meminfo")


def prctl(option: int, value: int) -> bool:
    """Call prctl(2); return whether it worked."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def checked(result: int, what: str) -> int:
    """Return the result of a system call.

    Raises:
        OSError: the call has failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def system_call(number: int, *arguments: Any) -> int:
    """Make a system call by its number; return -1 if it fails or is missing."""
    try:
        return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))
    except (OSError, AttributeError):
        return -1


def fork() -> int:
    """Fork. Python warns that other threads may hold locks, but this package starts no threads in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent ends."""
    prctl(PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def limit_resources(limits: Mapping[int, int]) -> None:
    """Limit resources of this process and its children. A lower limit stays."""
    for limit, wanted in limits.items():
        allowed = [value for value in (*resource.getrlimit(limit), wanted) if value != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min(allowed), min(allowed)))


def hide_memory() -> None:
    """Protect this process's memory from other processes of this user. Programs that it starts are not protected."""
    prctl(PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo hide_memory, which a child inherits."""
    prctl(PR_SET_DUMPABLE, 1)


def in_child(act: Callable[[], bool]) -> bool:
    """Call a function in a child process, which then ends. Return the result; False if the function raises."""
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
    flags: int
    """The kernel's flags of the thread (PF_*)."""
    ticks: int
    """Processor time in clock ticks."""


def read_process(pid: int) -> Process | None:
    """Read a process from proc(5)'s stat; None if it has ended. The id may be a thread's id."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
        parent, group, session, flags, user_ticks, system_ticks = (int(fields[at]) for at in (1, 2, 3, 6, 11, 12))
    except (OSError, ValueError, IndexError):
        return None
    return Process(fields[0], parent, group, session, flags, user_ticks + system_ticks)


def cpu_ticks(pid: int) -> int:
    """Return the processor time of a process in clock ticks; 0 if it has ended."""
    process = read_process(pid)
    return 0 if process is None else process.ticks


def is_exiting(pid: int) -> bool:
    """Return whether a thread of a process ends, and has not ended yet. Its end may send a signal."""
    with suppress(OSError):
        threads = [read_process(int(one.name)) for one in Path(f"/proc/{pid}/task").iterdir()]
        return any(one is not None and one.flags & PF_EXITING and one.state not in "ZX" for one in threads)
    return False


def catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)


def process_table() -> dict[int, Process]:
    """Return every visible process by its id."""
    names = [entry.name for entry in os.scandir("/proc")] if Path("/proc").is_dir() else []
    found = {int(name): read_process(int(name)) for name in names if name.isdigit()}
    return {pid: process for pid, process in found.items() if process is not None}


def is_alive(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    process = read_process(pid)
    return process is not None and process.state not in "ZX"


def ancestors(pid: int) -> list[int]:
    """Return the ancestors of a process, nearest first."""
    found: list[int] = []
    while (process := read_process(pid)) is not None and process.parent not in (0, *found):
        found.append(pid := process.parent)
    return found


def descendants(root: int) -> list[int]:
    """Return every process below `root`, without `root`."""
    children: dict[int, list[int]] = {}
    for pid, process in process_table().items():
        children.setdefault(process.parent, []).append(pid)
    found = list(children.get(root, []))
    for pid in found:
        found += children.get(pid, [])
    return found


def count_tasks() -> int:
    """Return the number of threads on the machine, including other users and containers."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return 0


def kill_session(session: int) -> None:
    """Kill every process of a session, including processes in other groups, such as ninja's compilers."""
    for _ in range(KILL_ROUNDS):  # a process may start another during the search
        alive = [pid for pid, one in process_table().items() if one.session == session and one.state != "Z"]
        if not alive:
            return
        _kill(alive)


def reap() -> tuple[list[tuple[int, int]], bool]:
    """Reap ended processes, including orphans; return pids with wait statuses, and whether a child is left."""
    found: list[tuple[int, int]] = []
    with suppress(ChildProcessError):
        while len(found) < MOST_REAPED:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found.append((pid, status))
        return found, True
    return found, False


def end_descendants(kill_all: Callable[[], object] | None) -> None:
    """Kill and reap every process below this process.

    It continues until all have ended. This function needs no time limit, because the session that waits for it has one.

    Args:
        kill_all: kills exactly the processes below this process; None if this is not possible. In that case, the
            processes are searched for.
    """
    is_left = True
    while is_left:
        if kill_all is not None:
            kill_all()
        else:
            kill_with_groups(os.getpid(), descendants(os.getpid()))
        _, is_left = reap()
        time.sleep(0.001 if is_left else 0.0)


def end_tree(root: int, limit_s: float) -> bool:
    """Kill a process and all its descendants; return whether all had ended before the limit.

    The root is killed last. If the root adopts orphans, it becomes the parent of every process whose parent ends, even
    while it is stopped.
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
    """Kill every process below a process, including new ones; return whether all had ended before the limit.

    It repeats until a search finds no living and no new process. A process that forks and exits at once leaves dead
    processes, so the next search finds new ones.
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
    """Kill processes below a process, and first their groups. A group is killed at once, even while its members fork.

    Groups of the root, of this process, or of their ancestors are spared.
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
    """Wait until this process has no more children, or the limit has passed."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and reap()[1]:
        time.sleep(KILL_POLL_S)


class Memory(NamedTuple):
    """Resident memory of a process, in bytes. Files do not count, since the kernel can drop them."""

    private: int = 0
    shared: int = 0
    """Mapped shared memory. `hidden_memory` counts memory that is not mapped."""


def resident_memory(pid: int) -> Memory:
    """Return a process's resident memory, including pages shared with forks; zeros if it has ended.

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
    """Return a process's memory with shared pages divided among their users. It is slow, but exact for forks.

    For a process that hides its memory, only `resident_memory` is available.
    """
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
        private = read_kilobytes(rollup, b"Pss_Anon")
        if private is not None:
            return Memory(private, read_kilobytes(rollup, b"Pss_Shmem") or 0)
    return resident_memory(pid)


def hidden_memory(file: Path = MACHINE_MEMORY) -> tuple[int, int]:
    """Return the used bytes of the machine that are no process's private memory, as two counts.

    The first count is all memory that is neither available nor private, including pinned pages and drivers' buffers. It
    lags, because the kernel reports freed memory late. The second count does not lag. It is shared memory, page
    tables, and the kernel's unreclaimable slabs. Both are 0 if the kernel reports nothing.
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
    """Return the number of bytes that a line of a /proc file gives; None if there is no such line.

    Only a line feed ends a line, since a process name can have any other character.
    """
    found = re.search(rb"^" + name + rb":[ \t]+(\d+) kB$", status, re.MULTILINE)
    return None if found is None else int(found[1]) * 1024
