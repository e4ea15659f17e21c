"""Landlock: limits of a process and its descendants for files, TCP, and outside processes.

A rule gives rights on a folder with all its content, or on one file. All other access fails with EACCES. A domain is
permanent, and a further domain can only remove rights. Rights unknown to the kernel are omitted from the ruleset. A
process cannot trace a process outside its own domain, so it cannot read the memory of that process. Since version 6 it
cannot send signals to that process either. So a signal to all processes reaches only the processes below a supervisor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from flashinfer_bench.sandbox.process_tree import PR_SET_NO_NEW_PRIVS, checked, prctl, system_call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
GET_VERSION, RULE_PATH_BENEATH = 1, 1
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
MAKE_CHARACTER_DEVICE, MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
REFER, TRUNCATE, IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
FILE_RIGHTS_SINCE: Final = ((1, (1 << 13) - 1), (2, REFER), (3, TRUNCATE), (5, IOCTL_DEVICE))
"""Versions of Landlock, each with the rights on files that it added."""
ON_ONE_FILE: Final = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE
"""Rights that a rule can give on a file. All other rights are for folders only."""
TCP_BIND_AND_CONNECT: Final = 3
SCOPE_ABSTRACT_SOCKETS, SCOPE_SIGNALS = 1, 2
REFER_VERSION, TCP_VERSION, SCOPE_VERSION = 2, 4, 6

READING: Final = EXECUTE | READ_FILE | READ_DIR
USING: Final = READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEVICE
"""Rights on a device."""
NAMING: Final = READING | WRITE_FILE | TRUNCATE
"""Rights to read, and to write to existing files."""
OWNING: Final = ((1 << 16) - 1) & ~(MAKE_CHARACTER_DEVICE | MAKE_BLOCK_DEVICE)
"""Rights on a worker's own folder: all except making device nodes."""


def version() -> int:
    """Return the kernel's version of Landlock; 0 if it is missing or disabled."""
    return max(0, system_call(CREATE_RULESET, None, ctypes.c_size_t(0), GET_VERSION))


def restrict_files(rules: Iterable[tuple[str, int]], *, keeps_tcp: bool = False) -> None:
    """Deny this process TCP, all files without a rule, and access to processes that it did not start.

    Call it before there are threads: the kernel restricts only the calling thread.

    Args:
        rules: path, and the rights on it. Missing paths are skipped.
        keeps_tcp: do not deny TCP.

    Raises:
        OSError: the kernel refuses.
    """
    known = sum(rights for since, rights in FILE_RIGHTS_SINCE if version() >= since)
    _enter(rules, known, 0 if keeps_tcp else TCP_BIND_AND_CONNECT, SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS)


def keep_apart() -> bool:
    """Enter a domain that allows all files, but no tracing or signalling of outside processes.

    Returns:
        Whether it worked. Before version 2 no domain is entered, because domains then forbid moving files between
        folders.
    """
    if version() < REFER_VERSION:
        return False
    with suppress(OSError):
        _enter([("/", REFER)], REFER, 0, SCOPE_SIGNALS)
        return True
    return False


def keep_signals_apart() -> bool:
    """Enter the domain of `keep_apart`. Return whether `kill_domain` is safe, because the parent cannot be signalled
    any more."""
    parent = os.getppid()
    if version() < SCOPE_VERSION or parent <= 1 or not _may_signal(parent):
        return False
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    return keep_apart() and not _may_signal(parent)


def kill_domain() -> None:
    """Kill all processes that this process can signal, at once, so that none can fork in between.

    Call it only if `keep_signals_apart` has returned True. Otherwise it would kill processes of the whole machine.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.kill(-1, signal.SIGKILL)


def _may_signal(pid: int) -> bool:
    """Return whether this process can signal another process; False only after a refusal."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        return True
    return True


def _enter(rules: Iterable[tuple[str, int]], files: int, network: int, scopes: int) -> None:
    kernel = version()
    words = [files, network if kernel >= TCP_VERSION else 0, scopes if kernel >= SCOPE_VERSION else 0]
    while words[-1] == 0:
        words.pop()  # an older kernel accepts only a shorter structure
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = checked(
        system_call(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0), "a Landlock ruleset"
    )
    try:
        for path, rights in rules:
            with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
                _add_rule(ruleset, path, rights & files)
        checked(system_call(RESTRICT_SELF, ruleset, 0), "entering a Landlock domain")
    finally:
        os.close(ruleset)


def _add_rule(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)  # O_PATH opens no content, so a FIFO or a device cannot block
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= ON_ONE_FILE
        rule = struct.pack("=Qi", rights, fd)
        checked(system_call(ADD_RULE, ruleset, RULE_PATH_BENEATH, rule, 0), f"a Landlock rule for {path}")
    finally:
        os.close(fd)
