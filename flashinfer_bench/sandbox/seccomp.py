"""The filter on a worker's system calls (seccomp): a table of calls, and its assembler.

Without a sandbox it refuses calls that read or control another process. A call that names a process (kill, priorities,
affinity, limits) is allowed if it names the caller. Otherwise the kernel asks the supervisor (`notifications.py`).

In a sandbox it also refuses calls that Landlock does not cover: connections other than TCP (sockets by path, datagrams,
netlink), io_uring, shared memory and queues that outlive a process, namespaces, mounts, kernel modules, and resources
limited for the whole machine or user (watches on files). Landlock also does not cover modes, times and attributes of
files. So an owner could remove the read permission of a data set. If a worker has its own user, the user owns only the
worker's files. The worker may set the modes and times of these files. For a worker without its own user, the supervisor
changes files below the worker's own folders. It sets modes, and sets times to the present. The filter holds for threads
and all descendants.
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

from flashinfer_bench.sandbox.process_tree import system_call

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
kill                      62     129     resume:1=18 process:0
tkill                    200     130     resume:1=18 process:0
tgkill                   234     131     resume:2=18 process:0
rt_sigqueueinfo          129     138     resume:1=18 process:0
rt_tgsigqueueinfo        297     240     resume:2=18 process:0
timer_create             222     107     resume
pidfd_open               434     434     process:0
sched_setparam           142     118     process:0
sched_setscheduler       144     119     process:0
sched_setaffinity        203     122     process:0
sched_setattr            314     274     process:0
prlimit64                302     261     process:0
migrate_pages            256     238     process:0
move_pages               279     239     process:0
setpriority              141     140     refuse:0=1,2 process:1
ioprio_set               251      30     refuse:0=2,3 process:1
fcntl                     72      25     refuse:1=8,10,15 sealed:1=1024
ioctl                     16      29     refuse:1=0x8901,0x8902 sealed:1=\
0x40086602,0x40046602,0x401C5820,0x40087602,0x40047602,0x40806685
socket                    41     198     stream
socketpair                53     199     stream
connect                   42     203     connect
clone                     56     220     sealed:0&0x7E020000
unshare                  272      97     sealed:0&0x7E020080
personality              135      92     sealed:0!0,0xFFFFFFFF
clone3                   435     435     missing
chmod                     90       -     own-file
fchmod                    91      52     own-file
fchmodat                 268      53     own-file
utimensat                280      88     own-file
fchmodat2                452     452     missing
utime                    132       -     missing
utimes                   235       -     missing
futimesat                261       -     missing
chown                     92       -     done
fchown                    93      55     done
lchown                    94       -     done
fchownat                 260      54     done
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
"""Verdicts: `refuse` fails with EPERM. `process:N` asks the supervisor unless argument N is the caller. All other
verdicts apply in a sandbox only: `sealed` fails with EPERM. `missing` fails like on a kernel without the call, so that
libraries use another call. clone3 is missing, because its flags are in memory that a filter cannot read. `own-file` is
done by the supervisor. `done` reports success without an effect. `attribute` fails like on a file system without
attributes. `stream` allows only sockets that must connect before they send, so that addresses in send calls have no
effect. `connect` is refused; for a tool the supervisor connects. `resume` fails with EPERM, except for a tool: signal
18 (SIGCONT), also of a timer, would resume processes that the session has stopped. `refuse`, `sealed` and `resume`
can be limited to listed values of an argument's lower half (`N=`), to all other values (`N!`), or to values with any
of the listed bits (`N&`). The kernel reads ids and flags from that half."""
MACHINES: Final = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}
"""Machine → its column of the table, and its number in the kernel."""
SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

SET_MODE_FILTER: Final = 1
SPEC_ALLOW, NEW_LISTENER = 1 << 2, 1 << 3
"""SPEC_ALLOW: the filter has no secrets, so the kernel need not slow the process down to protect them."""
ASKING_KERNEL: Final = (5, 5)
"""First Linux version that can continue a call after a question."""
X32_CALLS: Final = 0x40000000
LOAD, AND, RETURN, IF_EQUAL, IF_AT_LEAST, IF_ANY_BIT = 0x20, 0x54, 0x06, 0x15, 0x35, 0x45
ALLOW, ASK, FAIL = 0x7FFF0000, 0x7FC00000, 0x00050000
REFUSE, NO_ACCESS = FAIL | errno.EPERM, FAIL | errno.EACCES
NUMBER_AT, MACHINE_AT, ARGUMENTS_AT = 0, 4, 16

AF_UNIX, SOCK_KIND = 1, 0xF
STREAMS: Final = (1, 5)
"""SOCK_STREAM, SOCK_SEQPACKET."""
INTERNET: Final = (2, 10, 16)
"""AF_INET, AF_INET6, and AF_NETLINK, through which a program lists the networks."""
Program = list[bytes]
"""Instructions of seccomp's classic BPF."""


def read_calls(machine: str) -> dict[str, tuple[int, str]]:
    """Return each system call by name, with its number on a machine and its verdicts.

    Calls that the machine lacks are omitted.
    """
    rows = [line.split(None, 3) for line in TABLE.splitlines() if line and not line.startswith("#")]
    column = MACHINES[machine][0]
    return {row[0]: (int(row[column]), row[3]) for row in rows if row[column] != "-"}


def install_filter(*, sandboxed: bool = False, has_own_user: bool = False, for_tool: bool = False) -> int | None:
    """Filter this process's calls from now on. Call it before there are threads.

    Args:
        sandboxed: also refuse ways out of a sandbox.
        has_own_user: its user owns only the worker's files.
        for_tool: allow sockets of the private network, for a tool that inspects a solution.

    Returns:
        The descriptor through which the supervisor is asked; None if the kernel does not ask. In that case, calls that
        name another process are refused in a sandbox, and allowed without a sandbox.

    Raises:
        OSError: the sandbox is not available.
    """
    machine, kind = platform.machine(), {"sandboxed": sandboxed, "has_own_user": has_own_user, "for_tool": for_tool}
    if machine in MACHINES and can_ask(platform.release()):
        listener = _install(make_program(machine, os.getpid(), **kind), machine, SPEC_ALLOW | NEW_LISTENER)
        if listener >= 0:
            return listener
    verdict = REFUSE if sandboxed else ALLOW
    if machine in MACHINES and _install(make_program(machine, os.getpid(), ask=verdict, **kind), machine) >= 0:
        return None
    if sandboxed:
        raise OSError(f"there is no filter on system calls for this kernel on {machine}")
    return None


def refuse_calls(names: Iterable[str]) -> None:
    """Refuse these calls from now on; an earlier filter stays. Without seccomp support it does nothing."""
    machine = platform.machine()
    if machine in MACHINES:
        calls = read_calls(machine)
        checks = [step for name in names for step in _if_equal(calls[name][0], _return(REFUSE))]
        _install([_step(LOAD, NUMBER_AT), *checks, *_return(ALLOW)], machine)


def can_filter() -> bool:
    """Return whether a sandbox's filter is available: a machine in the table, a kernel with filters and questions."""
    try:
        actions = Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split()
    except OSError:
        return False
    return platform.machine() in MACHINES and can_ask(platform.release()) and {"errno", "user_notif"} <= set(actions)


def can_ask(release: str) -> bool:
    """Return whether a Linux of this release can ask another process about a call."""
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
    """Return the filter of a worker whose process id is `own`. `ask` is the verdict for calls about which the
    supervisor is asked."""
    fixed = {"refuse": REFUSE}
    if sandboxed:
        fixed |= {"sealed": REFUSE, "missing": FAIL | errno.ENOSYS, "attribute": FAIL | errno.EOPNOTSUPP}
        fixed |= {"connect": ask} if for_tool else {"connect": NO_ACCESS, "resume": REFUSE}
    if sandboxed and not has_own_user:
        fixed |= {"own-file": ask, "done": FAIL}
    program = [
        *(_step(LOAD, MACHINE_AT), _step(IF_EQUAL, MACHINES[machine][1], 1), *_return(REFUSE)),
        *(_step(LOAD, NUMBER_AT), _step(IF_AT_LEAST, X32_CALLS, 0, 1), *_return(REFUSE)),
    ]
    for name, (number, verdicts) in read_calls(machine).items():
        body: Program = []
        for kind, argument, how, values in re.findall(r"([a-z-]+)(?::(\d)([=!&]?)(\S*))?", verdicts):
            if kind == "process":
                body += [*_compare(int(argument), (0, own), ALLOW), *_return(ask)]
            elif kind == "stream" and sandboxed:
                body += _compare(0, INTERNET if for_tool and name == "socket" else (), ALLOW)
                body += [_step(LOAD, ARGUMENTS_AT), _step(IF_EQUAL, AF_UNIX, 1), *_return(NO_ACCESS)]
                body += [_step(LOAD, ARGUMENTS_AT + 8), _step(AND, SOCK_KIND)]
                body += [step for one in STREAMS for step in _if_equal(one, _return(ALLOW))] + _return(NO_ACCESS)
            elif kind in fixed:
                body += _give(fixed[kind], argument, how, [int(value, 0) for value in values.split(",") if value])
        program += _if_equal(number, [*body, *_return(ALLOW)]) if body else []
    return [*program, *_return(ALLOW)]


def _give(verdict: int, argument: str, how: str, values: Sequence[int]) -> Program:
    """Return the steps that give a verdict: always, or for some values or bits of an argument."""
    if how == "&":
        return [_step(LOAD, ARGUMENTS_AT + 8 * int(argument)), _step(IF_ANY_BIT, values[0], 0, 1), *_return(verdict)]
    if how == "=":
        return _compare(int(argument), values, verdict)
    return [*_compare(int(argument or 0), values, ALLOW), *_return(verdict)]


def _compare(argument: int, values: Sequence[int], verdict: int) -> Program:
    """Return the steps that give a verdict for some values of an argument's lower half."""
    steps = [step for value in values for step in _if_equal(value & 0xFFFFFFFF, _return(verdict))]
    return [_step(LOAD, ARGUMENTS_AT + 8 * argument), *steps] if steps else []


def _if_equal(value: int, body: Program) -> Program:
    return [_step(IF_EQUAL, value, 0, len(body)), *body]


def _return(verdict: int) -> Program:
    return [_step(RETURN, verdict)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return one instruction. A jump skips `if_true` or `if_false` instructions."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _install(program: Program, machine: str, flags: int = SPEC_ALLOW) -> int:
    code = ctypes.create_string_buffer(b"".join(program))
    order = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    return system_call(SECCOMP[machine], SET_MODE_FILTER, flags, order)
