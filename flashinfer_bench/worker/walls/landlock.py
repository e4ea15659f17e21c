"""The kernel's Landlock, by its three calls: what a process, and all that it starts, may do with files and sockets.

A rule gives rights on a folder with all below it, or on one file; what no rule gives is refused with EACCES. A domain
is for good, and a second one can only take away. Rights that the kernel does not know are left out of the ruleset, so
that nothing here fails on an older one: `version` tells what a ruleset can hold.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from flashinfer_bench.worker.linux import system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
GET_VERSION: Final = 1
RULE_PATH_BENEATH: Final = 1

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHARACTER_DEVICE, MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS_SINCE: Final = ((1, (1 << 13) - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE))
"""First version, and the rights on files that came with it."""
OF_ONE_FILE: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""The other rights are a folder's."""
TCP_BIND_AND_CONNECT: Final = 3
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
TCP_VERSION, SCOPE_VERSION = 4, 6

READING: Final = EXECUTE | READ_FILE | READ_DIR
USING: Final = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE
"""What one does with a device."""
NAMING: Final = READING | WRITE_FILE | TRUNCATE
"""Reading, and writing into files that are there."""


def version() -> int:
    """Return the kernel's version of Landlock; 0 where it has none, or has it switched off."""
    return max(0, system_call(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION))


def known_file_rights(kernel: int) -> int:
    """Return all rights on files that a kernel of this Landlock version knows."""
    return sum(rights for since, rights in FILE_RIGHTS_SINCE if kernel >= since)


def owning(kernel: int) -> int:
    """Return the rights on a folder of one's own: all but making device nodes."""
    return known_file_rights(kernel) & ~(MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE)


def enter(rules: Iterable[tuple[str, int]], *, keeps_tcp: bool = False) -> None:
    """Refuse this process from here on every file that no rule names, TCP, and whom it did not start.

    Call it before there are threads: the kernel restricts the calling one only.

    Args:
        rules: path, and the rights on it. A path that is not there needs no rule, and gets none.
        keeps_tcp: do not refuse TCP.

    Raises:
        OSError: the kernel does not do it.
    """
    kernel = version()
    ruleset = _make_ruleset(kernel, keeps_tcp=keeps_tcp)
    try:
        for path, rights in rules:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _add_rule(ruleset, path, rights & known_file_rights(kernel))
        _check(system_call(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    finally:
        os.close(ruleset)


def _make_ruleset(kernel: int, *, keeps_tcp: bool) -> int:
    network = TCP_BIND_AND_CONNECT if kernel >= TCP_VERSION and not keeps_tcp else 0
    scopes = SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if kernel >= SCOPE_VERSION else 0
    words = [known_file_rights(kernel), network, scopes]
    while words[-1] == 0:
        words.pop()  # an older kernel takes no longer structure
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = system_call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(ruleset, "landlock_create_ruleset")
    return ruleset


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opens nothing, so a FIFO or a device cannot hold it up
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= OF_ONE_FILE
        rule = struct.pack("=Qi", rights, fd)
        _check(system_call(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0), f"a rule of Landlock's for {path}")
    finally:
        os.close(fd)


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
