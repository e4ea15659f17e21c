"""The board of a relay on a GPU: memory of the host's, which both the session's processor and the worker's GPU see.

The session writes the key of a call, by which the GPU unmasks its inputs, and sees what the GPU commits to when the
call is over. A handover takes two ways over the bus, 2 to 3 us (H100).
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from flashinfer_bench.timing import driver
from flashinfer_bench.worker.gpu_relay.kernels import AT_ONCE

MOST_CALLS: Final = 33
MOST_OUTPUTS: Final = 16
"""Calls with more outputs are not relayed."""
READY: Final = 0
LAUNCHED: Final = 16
KEYS: Final = 32
TOLD: Final = 96
"""Where the count of the call that waits, the count of calls that are launched, the keys and what was committed to
begin, in words of eight bytes."""
WORDS_OF_CALL: Final = 2 * (MOST_OUTPUTS // AT_ONCE)
WORD: Final = 8
BOARD_BYTES: Final = 4096
DEVICE_MAP: Final = 2
"""The driver's number for memory that kernels may use."""
LOOKS: Final = 2_000
"""Looks at the board before anything else is looked at."""


class GpuBoard:
    """A view of the board.

    Args:
        fd: a memory file, which begins with the board; it may be closed afterwards.
        size: its bytes.
    """

    def __init__(self, fd: int, size: int = BOARD_BYTES) -> None:
        self._held = mmap.mmap(fd, size)
        self._words = (ctypes.c_uint64 * (size // WORD)).from_buffer(self._held)

    def clear(self) -> None:
        """Begin a relay: nothing is given, nothing told."""
        ctypes.memset(self._words, 0, BOARD_BYTES)

    def give(self, call: int, key: int) -> None:
        """Give a call's key, which is not 0."""
        self._words[KEYS + call] = key

    def give_if_missing(self, call: int) -> None:
        """Give a call a key that unmasks nothing, where it has none: nobody waits for it any more."""
        self._words[KEYS + call] = self._words[KEYS + call] or 1

    def await_ready(self, count: int) -> bool:
        """Tell, after some looks at the most, whether a call waits for its key: the one of this number, from 1 on."""
        return self._is_at_least(READY, count)

    def is_launched(self, count: int) -> bool:
        """Tell whether so many calls are launched."""
        return int(self._words[LAUNCHED]) >= count

    def await_told(self, call: int, groups: int) -> bool:
        """Tell, after some looks at the most, whether all that a call commits to is there."""
        return self._is_at_least(TOLD + call * WORDS_OF_CALL + 2 * groups - 1, 1) and all(self.told(call, groups))

    def told(self, call: int, groups: int) -> list[int]:
        """Return what a call committed to."""
        begin = TOLD + call * WORDS_OF_CALL
        return [int(one) for one in self._words[begin : begin + 2 * groups]]

    def tell_ready(self, count: int) -> None:
        """Say in the GPU's place that a call waits."""
        self._words[READY] = count

    def tell_launched(self, count: int) -> None:
        """Say that so many calls are launched."""
        self._words[LAUNCHED] = count

    def has_key(self, call: int) -> bool:
        """Tell whether a call's key has come."""
        return bool(self._words[KEYS + call])

    def text(self, begin: int, end: int) -> bytes:
        """Return what stands behind the board."""
        return self._held[begin:end]

    def _is_at_least(self, at: int, least: int) -> bool:
        words = self._words
        for _ in range(LOOKS):  # noqa: SIM110 - any() takes longer than a short call
            if words[at] >= least:
                return True
        return False


class MappedBoard(GpuBoard):
    """A board that kernels of this process can use, until `release`."""

    def __init__(self, fd: int, size: int = BOARD_BYTES) -> None:
        super().__init__(fd, size)
        library, address = driver.driver(), ctypes.c_uint64()
        library.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        library.cuMemHostUnregister.argtypes = [ctypes.c_void_p]
        library.cuMemHostGetDevicePointer_v2.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
        own = ctypes.addressof(self._words)
        driver.check(library.cuMemHostRegister_v2(own, BOARD_BYTES, DEVICE_MAP), "mapping the board of a relay")
        self.address = 0
        try:
            found = library.cuMemHostGetDevicePointer_v2(ctypes.byref(address), own, 0)
            driver.check(found, "finding the board of a relay")
            self.address = address.value
        finally:
            if not self.address:
                self.release()

    @property
    def ready_at(self) -> int:
        """Where kernels say which call waits."""
        return self.address + READY * WORD

    def key_at(self, call: int) -> int:
        """Return where kernels find a call's key."""
        return self.address + (KEYS + call) * WORD

    def told_at(self, call: int) -> int:
        """Return where kernels tell what a call commits to."""
        return self.address + (TOLD + call * WORDS_OF_CALL) * WORD

    def release(self) -> None:
        """Take the board from the GPU."""
        driver.check(driver.driver().cuMemHostUnregister(ctypes.addressof(self._words)), "giving up a relay's board")
