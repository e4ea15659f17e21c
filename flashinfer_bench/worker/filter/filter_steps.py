"""The words of a filter on system calls, as the kernel reads them (seccomp's classic BPF)."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from typing import Final

LOAD, AND, RETURN = 0x20, 0x54, 0x06
JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY_BIT = 0x15, 0x35, 0x45
ALLOW, ASK = 0x7FFF0000, 0x7FC00000
_FAIL: Final = 0x00050000
REFUSE, NO_ACCESS, NO_SUCH_CALL = _FAIL | errno.EPERM, _FAIL | errno.EACCES, _FAIL | errno.ENOSYS
NOT_SUPPORTED: Final = _FAIL | errno.EOPNOTSUPP
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16


@dataclass(frozen=True)
class Step:
    """One instruction. A jump skips `if_true` or `if_false` steps."""

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0

    def to_bytes(self) -> bytes:
        """Return the instruction as the kernel reads it."""
        return struct.pack("=HBBI", self.code, self.if_true, self.if_false, self.value)
