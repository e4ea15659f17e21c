"""The filter on a worker's system calls (seccomp): one table of calls, and its assembler.

Without a sandbox it refuses calls that read or steer another process. A call that names a process (kill, priorities,
affinity, limits) is free where it names the caller; else the kernel asks the supervisor (`notifications.py`).

In a sandbox it also refuses what Landlock does not know: ways to connect other than TCP (sockets by path, datagrams,
netlink), rings of calls that no filter sees (io_uring), shared memory and queues that outlive a process, namespaces,
mounts, kernel modules, and things of which the machine or a user has a number for all processes (watches on files).
Modes, times and attributes of files are no matter of Landlock's either: an owner could take the right to read a data
set from everybody. A worker with a user of its own owns its own files only, and sets their modes freely. Otherwise the
supervisor sets modes and times for it, below its own folders. The filter holds for threads and all that is started.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.sandbox.processes import system_call

TABLE: Final = """
# name                  x86-64  AArch64  verdict
ptrace                   101     117     refuse
process_vm_readv         310     270     refuse
process_vm_writev        311     271     refuse
process_madvise          440     440     refuse
kcmp                     312     272     refuse
pidfd_getfd              438     438     refuse
pidfd_send_signal        424     424     refuse
vmsplice                 278      75     refuse
landlock_create_ruleset  444     444     refuse
landlock_add_rule        445     445     refuse
landlock_restrict_self   446     446     refuse
kill                      62     129     process:0
tkill                    200     130     process:0
tgkill                   234     131     process:0
rt_sigqueueinfo          129     138     process:0
rt_tgsigqueueinfo        297     240     process:0
pidfd_open               434     434     process:0
sched_setparam           142     118     process:0
sched_setscheduler       144     119     process:0
sched_setaffinity        203     122     process:0
sched_setattr            314     274     process:0
prlimit64                302     261     process:0
migrate_pages            256     238     process:0
move_pages               279     239     process:0
setpriority              141     140     process:1
ioprio_set               251      30     process:1
fcntl                     72      25     arguments
ioctl                     16      29     arguments
socket                    41     198     arguments
socketpair                53     199     arguments
connect                   42     203     arguments
sendto                    44     206     arguments
clone                     56     220     arguments
unshare                  272      97     arguments
personality              135      92     arguments
clone3                   435     435     missing
chmod                     90       -     own-file
fchmod                    91      52     own-file
fchmodat                 268      53     own-file
utimensat                280      88     own-file
fchmodat2                452     452     missing
utime                    132       -     missing
utimes                   235       -     missing
futimesat                261       -     missing
chown                     92       -     owner
fchown                    93      55     owner
lchown                    94       -     owner
fchownat                 260      54     owner
setxattr                 188       5     attribute
lsetxattr                189       6     attribute
fsetxattr                190       7     attribute
setxattrat               463     463     attribute
removexattr              197      14     attribute
lremovexattr             198      15     attribute
fremovexattr             199      16     attribute
removexattrat            466     466     attribute
file_setattr             469     469     sealed
io_uring_setup           425     425     sealed
io_uring_enter           426     426     sealed
io_uring_register        427     427     sealed
open_tree                428     428     sealed
move_mount               429     429     sealed
fsopen                   430     430     sealed
fsconfig                 431     431     sealed
fsmount                  432     432     sealed
fspick                   433     433     sealed
mount_setattr            442     442     sealed
open_tree_attr           467     467     sealed
mount                    165      40     sealed
umount2                  166      39     sealed
pivot_root               155      41     sealed
chroot                   161      51     sealed
setns                    308     268     sealed
init_module              175     105     sealed
finit_module             313     273     sealed
delete_module            176     106     sealed
kexec_load               246     104     sealed
kexec_file_load          320     294     sealed
bpf                      321     280     sealed
perf_event_open          298     241     sealed
userfaultfd              323     282     sealed
open_by_handle_at        304     265     sealed
add_key                  248     217     sealed
request_key              249     218     sealed
keyctl                   250     219     sealed
shmget                    29     194     sealed
semget                    64     190     sealed
msgget                    68     186     sealed
mq_open                  240     180     sealed
io_setup                 206       0     sealed
inotify_init             253       -     sealed
inotify_init1            294      26     sealed
inotify_add_watch        254      27     sealed
fanotify_init            300     262     sealed
"""
"""Verdicts: `refuse` with EPERM, `process:N` asks unless argument N is the caller; in a sandbox only: `sealed` is
refused with EPERM, `missing` answered as by a kernel without it (clone3's flags lie in memory; libraries then take an
older call), `own-file` done by the supervisor, `owner` answered as done, `attribute` as by a file system without any.
`arguments` are judged by `_judge_arguments`."""
MACHINES: Final = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""Machine → its column of the table, and the number by which the kernel names it."""
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

SET_MODE_FILTER: Final = 1
SPEC_ALLOW, NEW_LISTENER = 1 << 2, 1 << 3
"""SPEC_ALLOW: the filter keeps no secret. So the kernel need not slow the process down to protect one."""
ASKING_KERNEL: Final = (5, 5)
"""The first Linux that can let a call go on after it has asked about it."""
X32_CALLS: Final = 0x40000000
LOAD, AND, RETURN, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x20, 0x54, 0x06, 0x15, 0x35, 0x45
ALLOW, ASK, FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16

AF_UNIX, SOCK_STREAM, SOCK_SEQPACKET, SOCK_KIND = 1, 1, 5, 0xF
INTERNET: Final = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, by which a program asks which networks there are."""
NAMESPACES, TIME_NAMESPACE = 0x7E020000, 0x80
"""Flags of clone and unshare: new mount, cgroup, UTS, IPC, user, process and network namespaces; of unshare alone."""
PERSONALITIES: Final = (0, 0xFFFFFFFF)
"""The usual one, and the question which one it is."""
REFUSED_ARGUMENTS: Final = {"setpriority": (0, (1, 2)), "ioprio_set": (0, (2, 3)), "fcntl": (1, (8, 10, 15))}
"""Call → an argument, and its refused values: kinds that mean a group or all processes of a user; F_SETOWN, F_SETSIG
and F_SETOWN_EX, which make a descriptor send signals."""
SIGNALLING_IOCTLS: Final = (0x8901, 0x8902)
"""FIOSETOWN, SIOCSPGRP."""
F_SETLEASE: Final = 1024
"""A lease holds up whoever writes the file."""
FILE_FLAGS: Final = (0x40086602, 0x40046602, 0x401C5820, 0x40087602, 0x40047602, 0x40806685)
"""FS_IOC_SETFLAGS, FSSETXATTR, SETVERSION and ENABLE_VERITY, which a file that is open for reading takes."""

Program = list[bytes]
"""Instructions of seccomp's classic BPF."""


def read_calls(machine: str) -> dict[str, tuple[int, str]]:
    """Return call → its number on a machine, and its verdict; a call that the machine does not have is left out."""
    rows = [line.split() for line in TABLE.splitlines() if line and not line.startswith("#")]
    column = MACHINES[machine][0]
    return {row[0]: (int(row[column]), row[3]) for row in rows if row[column] != "-"}


def install_filter(*, sandboxed: bool = False, has_own_user: bool = False, for_tool: bool = False) -> int | None:
    """Filter this process's calls from here on; call it before there are threads.

    Args:
        sandboxed: refuse ways out of a sandbox, too.
        has_own_user: its user owns no file but the worker's own.
        for_tool: leave open what a tool needs that looks at a solution in a network of its own: that network's sockets.

    Returns:
        The descriptor by which the supervisor is asked; None where the kernel asks nobody. Then calls that name another
        process are refused in a sandbox, and go on without.

    Raises:
        OSError: a sandbox cannot be had.
    """
    machine = platform.machine()
    if machine not in MACHINES:
        if sandboxed:
            raise OSError(f"there is no filter on system calls for {machine}")
        return None
    for verdict in (ASK, FAIL | errno.EPERM if sandboxed else ALLOW):
        if verdict == ASK and not can_ask(platform.release()):
            continue
        program = make_program(
            machine, os.getpid(), ask=verdict, sandboxed=sandboxed, has_own_user=has_own_user, for_tool=for_tool
        )
        result = _install(program, machine, SPEC_ALLOW | (NEW_LISTENER if verdict == ASK else 0))
        if result >= 0:
            return result if verdict == ASK else None
    if sandboxed:
        raise OSError("the kernel takes no filter on system calls")
    return None


def refuse_calls(names: Iterable[str]) -> None:
    """Refuse these calls from here on; an earlier filter stays. Where none can be had, do nothing."""
    machine = platform.machine()
    if machine in MACHINES:
        calls = read_calls(machine)
        checks = [_if_equal(calls[name][0], _return(FAIL | errno.EPERM)) for name in names]
        _install(
            [_step(LOAD, NUMBER_AT), *(step for check in checks for step in check), *_return(ALLOW)],
            machine,
            SPEC_ALLOW,
        )


def can_filter() -> bool:
    """Tell whether a sandbox's filter can be had: a machine in the table, a kernel that takes filters and asks."""
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return False
    return platform.machine() in MACHINES and can_ask(platform.release()) and {"errno", "user_notif"} <= set(actions)


def can_ask(release: str) -> bool:
    """Tell whether a Linux of this release can ask another process about a call."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= ASKING_KERNEL


def make_program(
    machine: str,
    own: int,
    *,
    ask: int = ASK,
    sandboxed: bool = False,
    has_own_user: bool = False,
    for_tool: bool = False,
) -> Program:
    """Return the filter of a worker whose process id is `own`; `ask` is the verdict in place of asking."""
    fixed = {"refuse": FAIL | errno.EPERM}
    if sandboxed:
        fixed |= {"sealed": FAIL | errno.EPERM, "missing": FAIL | errno.ENOSYS, "attribute": FAIL | errno.EOPNOTSUPP}
    if sandboxed and not has_own_user:
        fixed |= {"own-file": ask, "owner": FAIL}
    program = [
        *(_step(LOAD, MACHINE_AT), _step(IF_EQUAL, MACHINES[machine][1], 1), *_return(FAIL | errno.EPERM)),
        *(_step(LOAD, NUMBER_AT), _step(IF_AT_LEAST, X32_CALLS, 0, 1), *_return(FAIL | errno.EPERM)),
    ]
    for name, (number, verdict) in read_calls(machine).items():
        kind, _, argument = verdict.partition(":")
        if kind == "process":
            body = [*_refused(name), *_compare(int(argument), (0, own), ALLOW), *_return(ask)]
        elif kind == "arguments":
            body = _judge_arguments(name, sandboxed, for_tool, ask)
        else:
            body = _return(fixed[kind]) if kind in fixed else []
        program += _if_equal(number, body) if body else []
    return [*program, *_return(ALLOW)]


def _judge_arguments(name: str, sandboxed: bool, for_tool: bool, ask: int) -> Program:
    """Return the steps for a call of which some arguments are refused; none where all are free."""
    refuse, no_access = FAIL | errno.EPERM, FAIL | errno.EACCES
    if name == "fcntl":
        return [*_refused(name), *_compare(1, (F_SETLEASE,) if sandboxed else (), refuse), *_return(ALLOW)]
    if name == "ioctl":
        return [*_compare(1, SIGNALLING_IOCTLS + (FILE_FLAGS if sandboxed else ()), refuse), *_return(ALLOW)]
    if not sandboxed or (for_tool and name == "sendto"):
        return []
    if name == "connect":
        return _return(ask if for_tool else no_access)
    if name == "personality":
        return [*_compare(0, PERSONALITIES, ALLOW), *_return(refuse)]
    if name == "sendto":  # `send` is the same call without an address; a pointer has two halves
        checks = [_step(LOAD, ARGUMENTS_AT + 32), _step(IF_EQUAL, 0, 0, 2), _step(LOAD, ARGUMENTS_AT + 36)]
        return [*checks, _step(IF_EQUAL, 0, 1), *_return(no_access), *_return(ALLOW)]
    if name in ("clone", "unshare"):
        flags = NAMESPACES | (TIME_NAMESPACE if name == "unshare" else 0)
        return [_step(LOAD, ARGUMENTS_AT), _step(IF_ANY_BIT, flags, 0, 1), *_return(refuse), *_return(ALLOW)]
    # socket, socketpair: streams of this machine, which have to connect before they can send
    internet = _compare(0, INTERNET, ALLOW) if for_tool and name == "socket" else []
    local = [_step(LOAD, ARGUMENTS_AT), _step(IF_EQUAL, AF_UNIX, 1), *_return(no_access)]
    kind = [_step(LOAD, ARGUMENTS_AT + 8), _step(AND, SOCK_KIND)]
    streams = [step for one in (SOCK_STREAM, SOCK_SEQPACKET) for step in _if_equal(one, _return(ALLOW))]
    return [*internet, *local, *kind, *streams, *_return(no_access)]


def _refused(name: str) -> Program:
    argument, values = REFUSED_ARGUMENTS.get(name, (0, ()))
    return _compare(argument, values, FAIL | errno.EPERM)


def _compare(argument: int, values: Sequence[int], verdict: int) -> Program:
    """Give a verdict for some values of an argument's lower half: the kernel reads ids and flags from that half."""
    steps = [step for value in values for step in _if_equal(value & 0xFFFFFFFF, _return(verdict))]
    return [_step(LOAD, ARGUMENTS_AT + 8 * argument), *steps] if steps else []


def _if_equal(value: int, body: Program) -> Program:
    return [_step(IF_EQUAL, value, 0, len(body)), *body]


def _return(verdict: int) -> Program:
    return [_step(RETURN, verdict)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction; a jump skips `if_true` or `if_false` instructions."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _install(program: Program, machine: str, flags: int) -> int:
    code = ctypes.create_string_buffer(b"".join(program))
    order = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    return system_call(SECCOMP[machine], SET_MODE_FILTER, flags, order)
