"""The filter on a worker's system calls (seccomp): what may reach a process that it did not start.

Calls that read or steer another process are refused, whichever process it is. Calls that name a process (kill,
priorities, affinity, limits) are free where they name the caller. For any other process the kernel asks the guard
(`asked_calls.py`). Where the kernel cannot ask, calls that name an ancestor of the worker are refused. The filter holds
for the worker, its threads and all that it starts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from flashinfer_bench.worker.filter.filter_steps import (
    ALLOW,
    ARCHITECTURE_OFFSET,
    ARGUMENTS_OFFSET,
    ASK,
    JUMP_IF_AT_LEAST,
    JUMP_IF_EQUAL,
    LOAD,
    NUMBER_OFFSET,
    REFUSE,
    RETURN,
    Step,
)
from flashinfer_bench.worker.linux import system_call
from flashinfer_bench.worker.walls.walled_calls import STEERED, STEERING, WALLED_ARGUMENTS, wall_steps

SET_MODE_FILTER: Final = 1
SPEC_ALLOW, NEW_LISTENER = 1 << 2, 1 << 3
"""SPEC_ALLOW: the filter keeps no secret. So the kernel need not slow the process down to protect one."""
ASKING_KERNEL: Final = (5, 5)
"""The first Linux that can let a call go on after it has asked about it."""
MOST_ANCESTORS: Final = 20
"""Protect at most this many ancestors: a jump cannot skip more. The nearest are guard, template, session and host."""
X32_CALLS: Final = 0x40000000
PRIO_USER, IOPRIO_WHO_USER = 2, 3
F_SETOWN, F_SETSIG, F_SETOWN_EX = 8, 10, 15
FIOSETOWN, SIOCSPGRP = 0x8901, 0x8902

X86_64: Final = {
    "ioctl": 16,
    "kill": 62,
    "fcntl": 72,
    "ptrace": 101,
    "rt_sigqueueinfo": 129,
    "setpriority": 141,
    "sched_setparam": 142,
    "sched_setscheduler": 144,
    "tkill": 200,
    "sched_setaffinity": 203,
    "tgkill": 234,
    "ioprio_set": 251,
    "migrate_pages": 256,
    "vmsplice": 278,
    "move_pages": 279,
    "rt_tgsigqueueinfo": 297,
    "prlimit64": 302,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "sched_setattr": 314,
    "seccomp": 317,
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
AARCH64: Final = {
    "fcntl": 25,
    "ioctl": 29,
    "ioprio_set": 30,
    "vmsplice": 75,
    "ptrace": 117,
    "sched_setparam": 118,
    "sched_setscheduler": 119,
    "sched_setaffinity": 122,
    "kill": 129,
    "tkill": 130,
    "tgkill": 131,
    "rt_sigqueueinfo": 138,
    "setpriority": 140,
    "migrate_pages": 238,
    "move_pages": 239,
    "rt_tgsigqueueinfo": 240,
    "prlimit64": 261,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "sched_setattr": 274,
    "seccomp": 277,
    "pidfd_send_signal": 424,
    "pidfd_open": 434,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "landlock_create_ruleset": 444,
    "landlock_add_rule": 445,
    "landlock_restrict_self": 446,
}
CALLS: Final = {"x86_64": X86_64, "aarch64": AARCH64}
ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

REFUSED: Final = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp"),
    *("pidfd_getfd", "pidfd_send_signal"),
    *("vmsplice", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"),
)
"""The last four have the kernel hold memory that no process shows. A worker's own walls stand by then."""
NAMES_A_PROCESS: Final = {
    **dict.fromkeys(("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open"), 0),
    **dict.fromkeys(("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"), 0),
    **dict.fromkeys(("prlimit64", "migrate_pages", "move_pages"), 0),
    **dict.fromkeys(("setpriority", "ioprio_set"), 1),
}
"""Call → which of its arguments is a process id, 0 for the caller."""
REFUSED_WITH: Final = {
    "setpriority": (0, (PRIO_USER,)),
    "ioprio_set": (0, (IOPRIO_WHO_USER,)),
    "fcntl": (1, (F_SETSIG, F_SETOWN, F_SETOWN_EX)),
    "ioctl": (1, (FIOSETOWN, SIOCSPGRP)),
}
"""Call → an argument, and its refused values. They reach all processes of a user, or make a descriptor send signals."""


def install_filter(
    ancestors: Iterable[int], *, walled: bool = False, has_own_user: bool = False, openings: Sequence[str] = ()
) -> int | None:
    """Filter this process's calls from here on; call it before there are threads.

    Args:
        ancestors: processes above this one, protected where the kernel cannot ask.
        walled: refuse what leads out of a worker's walls, too.
        has_own_user: its user owns no file but the worker's own.
        openings: what is let through of that, as `walled_calls.OPENINGS` says.

    Returns:
        The descriptor by which the guard is asked; None where it is not.
    """
    machine = platform.machine()
    if machine not in CALLS:
        if walled:
            raise OSError(f"there is no filter on system calls for {machine}")
        return None
    if can_ask(platform.release()):
        walls = [] if not walled else wall_steps(machine, ALLOW if has_own_user else ASK, openings)
        asking = make_program(machine, own=os.getpid(), ancestors=None, walls=walls, steers=STEERING in openings)
        listener = _install(asking, machine, SPEC_ALLOW | NEW_LISTENER)
        if listener >= 0:
            return listener
    nearest = list(ancestors)[:MOST_ANCESTORS]
    walls = [] if not walled else wall_steps(machine, ALLOW if has_own_user else REFUSE, openings)
    refusing = make_program(machine, own=os.getpid(), ancestors=nearest, walls=walls, steers=STEERING in openings)
    if _install(refusing, machine, SPEC_ALLOW) != 0 and walled:
        raise OSError("the kernel takes no filter on system calls")
    return None


def refuse_calls(names: Sequence[str]) -> None:
    """Refuse these calls, keys of `CALLS`, from here on; an earlier filter stays. Where none can be had, do nothing."""
    machine = platform.machine()
    if machine not in CALLS:
        return
    program = [Step(LOAD, NUMBER_OFFSET)]
    for name in names:
        program += [Step(JUMP_IF_EQUAL, CALLS[machine][name], 0, 1), Step(RETURN, REFUSE)]
    _install([*program, Step(RETURN, ALLOW)], machine, SPEC_ALLOW)


def filters_calls() -> bool:
    """Tell whether the walls' part of the filter can be had: a machine that it knows, a kernel that takes filters."""
    return platform.machine() in CALLS and can_ask(platform.release()) and _known_actions() >= {"errno", "user_notif"}


def _known_actions() -> set[str]:
    try:
        return set(Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split())
    except OSError:
        return set()


def can_ask(release: str) -> bool:
    """Tell whether a Linux of this release can ask another process about a call."""
    numbers = re.match(r"(\d+)\.(\d+)", release)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= ASKING_KERNEL


def make_program(
    machine: str, *, own: int, ancestors: list[int] | None, walls: Sequence[Step] = (), steers: bool = False
) -> list[Step]:
    """Return the filter of a worker; without ancestors it asks about every process but the caller itself.

    `walls` are the steps of `walled_calls.py`, where the worker has walls; with `steers` it may trace what is in them.
    """
    calls = CALLS[machine]
    program = [Step(LOAD, ARCHITECTURE_OFFSET), Step(JUMP_IF_EQUAL, ARCHITECTURES[machine], 1), Step(RETURN, REFUSE)]
    program += [Step(LOAD, NUMBER_OFFSET), Step(JUMP_IF_AT_LEAST, X32_CALLS, 0, 1), Step(RETURN, REFUSE)]
    for name in (name for name in REFUSED if not (steers and name in STEERED)):
        program += [Step(JUMP_IF_EQUAL, calls[name], 0, 1), Step(RETURN, REFUSE)]
    for name in {**REFUSED_WITH, **NAMES_A_PROCESS}:
        body = _judge_call(name, own, ancestors, walled=bool(walls))
        program += [Step(JUMP_IF_EQUAL, calls[name], 0, len(body)), *body]
    return [*program, *walls, Step(RETURN, ALLOW)]


def _judge_call(name: str, own: int, ancestors: list[int] | None, *, walled: bool) -> list[Step]:
    steps: list[Step] = []
    if name in REFUSED_WITH:
        argument, values = REFUSED_WITH[name]
        further = WALLED_ARGUMENTS.get(name, ()) if walled else ()
        steps += _return_where(argument, (*values, *further), REFUSE)
    if name in NAMES_A_PROCESS:
        argument = NAMES_A_PROCESS[name]
        steps += _return_where(argument, (0, own), ALLOW)
        if ancestors is None:
            return [*steps, Step(RETURN, ASK)]
        aimed = [pid for ancestor in ancestors for pid in (ancestor, -ancestor)]
        steps += _return_where(argument, [-1, *aimed], REFUSE)
    return [*steps, Step(RETURN, ALLOW)]


def _return_where(argument: int, values: Iterable[int], verdict: int) -> list[Step]:
    """Compare the lower half of an argument: the kernel reads a process id from that half only."""
    steps = [Step(LOAD, ARGUMENTS_OFFSET + 8 * argument)]
    for value in values:
        steps += [Step(JUMP_IF_EQUAL, value & 0xFFFFFFFF, 0, 1), Step(RETURN, verdict)]
    return steps


def _install(program: list[Step], machine: str, flags: int) -> int:
    code = ctypes.create_string_buffer(b"".join(step.to_bytes() for step in program))
    order = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    return system_call(CALLS[machine]["seccomp"], SET_MODE_FILTER, flags, order)
