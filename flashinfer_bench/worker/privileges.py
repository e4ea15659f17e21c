"""What a process gives up of its rights for good: capabilities, and a view of processes that it did not start.

Only root has capabilities, and can read any process's memory with them. A worker without walls (`walls/walls.py`) keeps
CAP_DAC_OVERRIDE: without it root could not read a cache or an environment that belongs to another user. It gives no
access to a process's memory.

Landlock: a process may not trace a process outside its own domain, and so not read or write its memory. Since the sixth
version it may not send it a signal either. Each worker, with all that it starts, is a domain of its own. It lies inside
that of its guard, whose signal to all that it may signal is one to whatever is below it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from contextlib import suppress
from typing import Final

from flashinfer_bench.worker.linux import PR_SET_NO_NEW_PRIVS, prctl, system_call
from flashinfer_bench.worker.walls import landlock
from flashinfer_bench.worker.walls.landlock import ADD_RULE, CREATE_RULESET, RESTRICT_SELF, RULE_PATH_BENEATH

PR_CAPBSET_DROP: Final = 24
CAPABILITY_VERSION: Final = 0x20080522
CAP_DAC_OVERRIDE: Final = 1
CAP_DAC_READ_SEARCH: Final = 2
MAX_CAPABILITIES: Final = 64
REFER_VERSION: Final = 2


def drop_capabilities(kept: int | None = CAP_DAC_OVERRIDE) -> bool:
    """Give up every capability but one, also for programs that are started; say whether it was done."""
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        header = struct.pack("Ii", CAPABILITY_VERSION, 0)
        held = ctypes.create_string_buffer(24)
        if libc.capget(header, held) != 0:
            return False
        permitted = struct.unpack("6I", held.raw)[1]
        for number in range(MAX_CAPABILITIES):
            if number != kept:
                prctl(PR_CAPBSET_DROP, number)  # fails for an ordinary user, who has no capability
        left = 0 if kept is None else permitted & (1 << kept)
        return bool(libc.capset(header, struct.pack("6I", left, left, 0, 0, 0, 0)) == 0)
    except (OSError, AttributeError):
        return False


def enter_own_domain() -> int:
    """Enter a Landlock domain that is this process's own and its children's; return the version, 0 without one.

    A domain has to refuse something, and before the sixth version it cannot refuse signals. So this one refuses to make
    block devices; it refuses no other file.
    """
    version = landlock.version()
    if version < REFER_VERSION:
        return 0  # in the first version no file could be moved between folders
    scoped = version >= landlock.SCOPE_VERSION
    ruleset = _make_ruleset(0, 0, landlock.SCOPE_SIGNALS) if scoped else _smallest_ruleset()
    if ruleset < 0:
        return 0
    restricted = system_call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return version if restricted == 0 else 0


def enter_outer_domain(*, has_walls: bool) -> bool:
    """Enter a domain that the processes to be forked from this one will be in; say whether `kill_domain` can be called.

    Where they have walls, these rule files: the outer domain then has to allow that files are moved between folders. No
    process in it can mount anything.
    """
    parent = os.getppid()
    if landlock.version() < landlock.SCOPE_VERSION or parent <= 1 or not _may_signal(parent):
        return False
    scope = landlock.SCOPE_SIGNALS
    ruleset = _open_ruleset(landlock.REFER, 0, scope) if has_walls else _make_ruleset(0, 0, scope)
    if ruleset < 0:
        return False
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    restricted = system_call(RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return restricted == 0 and not _may_signal(parent)


def kill_domain() -> None:
    """Kill all that this process may signal, at once: none of them is in the middle of a fork.

    Call it where `enter_outer_domain` has said that nobody outside can be signalled. Else it would hit the machine.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def _may_signal(pid: int) -> bool:
    """Tell whether this process may; false only where it was refused."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
    return True


def _make_ruleset(*attributes: int) -> int:
    packed = struct.pack(f"{len(attributes)}Q", *attributes)
    return system_call(CREATE_RULESET, packed, ctypes.c_size_t(len(packed)), 0)


def _smallest_ruleset() -> int:
    """Make a ruleset without scopes; files may be moved everywhere."""
    return _open_ruleset(landlock.MAKE_BLOCK_DEVICE | landlock.REFER)


def _open_ruleset(*attributes: int) -> int:
    """Make a ruleset that lets files be moved everywhere."""
    ruleset = _make_ruleset(*attributes)
    if ruleset < 0:
        return ruleset
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    added = system_call(ADD_RULE, ruleset, RULE_PATH_BENEATH, struct.pack("=Qi", landlock.REFER, root), 0)
    os.close(root)
    if added != 0:
        os.close(ruleset)
        return -1
    return ruleset
