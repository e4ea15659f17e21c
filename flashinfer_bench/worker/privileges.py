"""What a process gives up of its rights for good: capabilities, and a view of processes that it did not start.

Capabilities matter for root only, who can read any process's memory with them. Without walls (`walls.py`)
CAP_DAC_OVERRIDE is kept: without it root could not read a cache or an environment that belongs to another user; it
opens no process's memory.

Landlock: a process may not trace, and so not read or write the memory of, one outside its own domain; since its sixth
version it may not send that one a signal either. Each worker is a domain of its own, with all that it starts.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Any, Final

from flashinfer_bench.worker.linux import prctl

PR_CAPBSET_DROP: Final = 24
CAPABILITY_VERSION: Final = 0x20080522
CAP_DAC_OVERRIDE: Final = 1
CAP_DAC_READ_SEARCH: Final = 2
MAX_CAPABILITIES: Final = 64
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
GET_VERSION: Final = 1
RULE_PATH_BENEATH: Final = 1
MAKE_BLOCK_DEVICE, REFER = 1 << 11, 1 << 13
REFER_VERSION: Final = 2
SCOPE_VERSION: Final = 6
SCOPE_SIGNAL: Final = 2


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
                prctl(PR_CAPBSET_DROP, number)  # refused to an ordinary user, who has nothing to lose
        left = 0 if kept is None else permitted & (1 << kept)
        return bool(libc.capset(header, struct.pack("6I", left, left, 0, 0, 0, 0)) == 0)
    except (OSError, AttributeError):
        return False


def enter_own_domain() -> int:
    """Enter a Landlock domain that is this process's own and its children's; return the version, 0 without one.

    No file is refused but block devices that somebody would make: a domain has to refuse something, and before the
    sixth version signals are not among what it can refuse.
    """
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        version = int(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION))
        if version < REFER_VERSION:
            return 0  # in the first version no file could be moved between folders
        ruleset = _scope_ruleset(libc) if version >= SCOPE_VERSION else _smallest_ruleset(libc)
        if ruleset < 0:
            return 0
        restricted = libc.syscall(RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)
    except (OSError, AttributeError):
        return 0
    return version if restricted == 0 else 0


def _scope_ruleset(libc: Any) -> int:
    attributes = struct.pack("QQQ", 0, 0, SCOPE_SIGNAL)
    return int(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))


def _smallest_ruleset(libc: Any) -> int:
    """Make a ruleset without scopes; files may be moved everywhere."""
    attributes = struct.pack("Q", MAKE_BLOCK_DEVICE | REFER)
    ruleset = int(libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    if ruleset < 0:
        return ruleset
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    added = libc.syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, struct.pack("=Qi", REFER, root), 0)
    os.close(root)
    if added != 0:
        os.close(ruleset)
        return -1
    return ruleset
