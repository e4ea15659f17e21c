"""What the filter on a worker's calls (`call_filter.py`) refuses beside processes, where the worker has walls.

Landlock knows files and TCP. What it does not know is refused here: every other way to connect (sockets by path,
datagrams, which need no connection, netlink), rings of calls that no filter sees (io_uring), shared memory and queues
that outlive a process (System V, POSIX queues), namespaces, mounts and kernel modules. So are things of which the
machine, or a user, has a number for all processes (watches on files, contexts for input and output). Modes, times and
attributes of files are no matter of Landlock's either: an owner could take the right to read a data set from everybody.
Where the worker's user owns more than its own files, the guard sets modes and times for it (`asked_files.py`); the rest
of them is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from flashinfer_bench.worker.filter.filter_steps import (
    ALLOW,
    AND,
    ARGUMENTS_OFFSET,
    ASK,
    JUMP_IF_ANY_BIT,
    JUMP_IF_EQUAL,
    LOAD,
    NO_ACCESS,
    NO_SUCH_CALL,
    NOT_SUPPORTED,
    REFUSE,
    RETURN,
    Step,
)

ON_BOTH: Final = {
    "clone3": 435,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "move_mount": 429,
    "open_tree": 428,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "mount_setattr": 442,
    "open_tree_attr": 467,
    "fchmodat2": 452,
    "setxattrat": 463,
    "removexattrat": 466,
    "file_setattr": 469,
}
X86_64: Final = {
    **ON_BOTH,
    "shmget": 29,
    "socket": 41,
    "connect": 42,
    "sendto": 44,
    "socketpair": 53,
    "clone": 56,
    "semget": 64,
    "msgget": 68,
    "chmod": 90,
    "fchmod": 91,
    "chown": 92,
    "fchown": 93,
    "lchown": 94,
    "utime": 132,
    "personality": 135,
    "pivot_root": 155,
    "chroot": 161,
    "mount": 165,
    "umount2": 166,
    "init_module": 175,
    "delete_module": 176,
    "setxattr": 188,
    "lsetxattr": 189,
    "fsetxattr": 190,
    "removexattr": 197,
    "lremovexattr": 198,
    "fremovexattr": 199,
    "utimes": 235,
    "io_setup": 206,
    "mq_open": 240,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "inotify_init": 253,
    "inotify_add_watch": 254,
    "fchownat": 260,
    "futimesat": 261,
    "fchmodat": 268,
    "unshare": 272,
    "utimensat": 280,
    "inotify_init1": 294,
    "perf_event_open": 298,
    "fanotify_init": 300,
    "open_by_handle_at": 304,
    "setns": 308,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
AARCH64: Final = {
    **ON_BOTH,
    "io_setup": 0,
    "setxattr": 5,
    "lsetxattr": 6,
    "fsetxattr": 7,
    "removexattr": 14,
    "lremovexattr": 15,
    "fremovexattr": 16,
    "inotify_init1": 26,
    "inotify_add_watch": 27,
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "chroot": 51,
    "fchmod": 52,
    "fchmodat": 53,
    "fchownat": 54,
    "fchown": 55,
    "utimensat": 88,
    "personality": 92,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "mq_open": 180,
    "msgget": 186,
    "semget": 190,
    "shmget": 194,
    "socket": 198,
    "socketpair": 199,
    "connect": 203,
    "sendto": 206,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "perf_event_open": 241,
    "fanotify_init": 262,
    "open_by_handle_at": 265,
    "setns": 268,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}
WALLED_CALLS: Final = {"x86_64": X86_64, "aarch64": AARCH64}
"""Machine → call → its number; a call that a machine does not have is not there."""

BY_THE_GUARD: Final = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat"),
    *("utime", "utimes", "futimesat", "utimensat"),
)
"""What the guard does in the worker's place."""
ATTRIBUTES: Final = (
    *("setxattr", "lsetxattr", "fsetxattr", "setxattrat"),
    *("removexattr", "lremovexattr", "fremovexattr", "removexattrat"),
)
"""Answered as a file system answers that has none: what copies files goes on then."""

AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET, SOCK_KIND = 1, 1, 5, 0xF
NAMESPACES: Final = 0x7E020000
"""Flags of clone and unshare: new mount, cgroup, UTS, IPC, user, process and network namespaces."""
TIME_NAMESPACE: Final = 0x80
"""Of unshare alone; clone reads it as part of a signal's number."""
ASK_FOR_PERSONALITY: Final = 0xFFFFFFFF

F_SETLEASE: Final = 1024
FILE_FLAGS: Final = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602, 0x40806685)
"""FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION and ENABLE_VERITY, which a file that is open for reading takes."""
WALLED_ARGUMENTS: Final[dict[str, tuple[int, ...]]] = {"fcntl": (F_SETLEASE,), "ioctl": FILE_FLAGS}
"""Further values of what `call_filter.REFUSED_WITH` looks at: a lease holds up whoever writes the file."""

LOOKED_AT: Final = ("socket", "socketpair", "connect", "sendto", "clone", "clone3", "unshare", "personality")

LOOPBACK, STEERING, SHARED_MEMORY, LOCAL_SOCKETS = "loopback", "steering", "shared memory", "local sockets"
ABSTRACT_SOCKETS, CHILDREN = "abstract sockets", "children"
OPENINGS: Final[dict[str, tuple[str, ...]]] = {
    LOOPBACK: ("connect", "sendto"),
    STEERING: ("personality",),
    SHARED_MEMORY: ("shmget", "semget", "msgget", "mq_open"),
    LOCAL_SOCKETS: ("connect",),
    ABSTRACT_SOCKETS: (),
    CHILDREN: (),
}
"""What a tool that looks at a solution may need → the calls that are let through for it. `socket` lets through the
families of INTERNET for LOOPBACK, and local streams, which reach every service by its path, for LOCAL_SOCKETS. With
ABSTRACT_SOCKETS it lets them through, too, and the guard connects them, to no path (`asked_sockets.py`).
STEERING also lets through `STEERED`: Landlock keeps it to the processes inside the same walls. CHILDREN is no matter of
calls: programs that the tool starts use CUDA, which names their threads in files below /proc (`walls.py`)."""
STEERED: Final = ("ptrace", "process_vm_readv", "process_vm_writev")
INTERNET: Final = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, by which a program asks which networks there are."""


def wall_steps(machine: str, by_the_guard: int, openings: Sequence[str] = ()) -> list[Step]:
    """Return the steps that judge these calls; the call's number is loaded before, and after where none was meant.

    Args:
        machine: a key of WALLED_CALLS.
        by_the_guard: the verdict on the calls of BY_THE_GUARD.
        openings: keys of OPENINGS.
    """
    program: list[Step] = []
    open_calls = {name for opening in openings for name in OPENINGS[opening]}
    for name, number in WALLED_CALLS[machine].items():
        if name == "connect" and ABSTRACT_SOCKETS in openings:
            body = [Step(RETURN, ASK)]
        elif name in open_calls:
            body = [Step(RETURN, ALLOW)]
        elif name == "socket" and LOOPBACK in openings:
            has_local = LOCAL_SOCKETS in openings or ABSTRACT_SOCKETS in openings
            body = _families(INTERNET, others=_local_streams() if has_local else [])
        else:
            body = _judge(name, by_the_guard)
        program += [Step(JUMP_IF_EQUAL, number, 0, len(body)), *body]
    return program


def _judge(name: str, by_the_guard: int) -> list[Step]:
    if name in BY_THE_GUARD:
        return [Step(RETURN, by_the_guard)]
    if name in ATTRIBUTES:
        return [Step(RETURN, NOT_SUPPORTED)]
    if name not in LOOKED_AT:
        return [Step(RETURN, REFUSE)]
    return {
        "socket": _local_streams(),
        "socketpair": _local_streams(),
        "connect": [Step(RETURN, NO_ACCESS)],
        "sendto": _without_address(),
        "clone": _without_flags(NAMESPACES),
        "clone3": [Step(RETURN, NO_SUCH_CALL)],  # its flags lie in memory; libc takes `clone` instead
        "unshare": _without_flags(NAMESPACES | TIME_NAMESPACE),
        "personality": _one_of((0, ASK_FOR_PERSONALITY)),
    }[name]


def _families(allowed: Sequence[int], others: list[Step]) -> list[Step]:
    """Let through sockets of some families; judge the others by further steps, or refuse them."""
    steps = [Step(LOAD, ARGUMENTS_OFFSET)]
    for family in allowed:
        steps += [Step(JUMP_IF_EQUAL, family, 0, 1), Step(RETURN, ALLOW)]
    return [*steps, *(others or [Step(RETURN, NO_ACCESS)])]


def _local_streams() -> list[Step]:
    """Let through sockets of this machine that have to connect before they can send."""
    return [
        Step(LOAD, ARGUMENTS_OFFSET),
        Step(JUMP_IF_EQUAL, AF_UNIX, 1, 0),
        Step(RETURN, NO_ACCESS),
        Step(LOAD, ARGUMENTS_OFFSET + 8),
        Step(AND, SOCK_KIND),
        Step(JUMP_IF_EQUAL, SOCK_STREAM, 2, 0),
        Step(JUMP_IF_EQUAL, SOCK_SEQPACKET, 1, 0),
        Step(RETURN, NO_ACCESS),
        Step(RETURN, ALLOW),
    ]


def _without_address() -> list[Step]:
    """Let through `send`, which is `sendto` without an address; a pointer has two halves."""
    address = ARGUMENTS_OFFSET + 8 * 4
    return [
        Step(LOAD, address),
        Step(JUMP_IF_EQUAL, 0, 0, 2),
        Step(LOAD, address + 4),
        Step(JUMP_IF_EQUAL, 0, 1, 0),
        Step(RETURN, NO_ACCESS),
        Step(RETURN, ALLOW),
    ]


def _without_flags(flags: int) -> list[Step]:
    return [
        Step(LOAD, ARGUMENTS_OFFSET),
        Step(JUMP_IF_ANY_BIT, flags, 0, 1),
        Step(RETURN, REFUSE),
        Step(RETURN, ALLOW),
    ]


def _one_of(values: tuple[int, ...]) -> list[Step]:
    allowed = [step for value in values for step in (Step(JUMP_IF_EQUAL, value, 0, 1), Step(RETURN, ALLOW))]
    return [Step(LOAD, ARGUMENTS_OFFSET), *allowed, Step(RETURN, REFUSE)]
