"""The board of a gated chain: memory of the host's, which both the session's processor and the worker's GPU see.

The session writes the key of a call, by which the GPU unmasks its inputs, and sees what the GPU commits to when the
call is over. From one call to the next that takes two ways over the bus.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import Final

from flashinfer_bench.timing import driver
from flashinfer_bench.worker.gpu_relay.kernels import count_groups

MOST_CALLS: Final = 17
"""Most calls of a chain. The median counts, so a solution that wants to gain has to leave out half of them."""
MOST_OUTPUTS: Final = 16
"""Calls with more outputs are in no chain."""
BOARD_BYTES: Final = 4096

Word = ctypes.c_uint64
Line = Word * 16
"""Words of one side, 128 bytes: reads of them are not held up by writes to the next line."""
Told = Word * (2 * count_groups(MOST_OUTPUTS))


class Layout(ctypes.Structure):
    """The words of a board."""

    ready: ctypes.Array[ctypes.c_uint64]
    """The first word is the count of the call that waits."""
    launched: ctypes.Array[ctypes.c_uint64]
    """The first word is the count of calls that are launched."""
    keys: ctypes.Array[ctypes.c_uint64]
    told: ctypes.Array[ctypes.Array[ctypes.c_uint64]]
    """The digests of each call."""
    _fields_ = (("ready", Line), ("launched", Line), ("keys", Word * 64), ("told", Told * MOST_CALLS))


class GpuBoard:
    """A view of the board.

    Args:
        fd: a memory file, which begins with the board; it may be closed afterwards.
        size: its bytes.
    """

    address = 0
    """Its address for kernels; 0 if no kernel of this process uses it."""

    def __init__(self, fd: int, size: int = BOARD_BYTES) -> None:
        self._held = mmap.mmap(fd, size)
        self._board = Layout.from_buffer(self._held)

    def clear(self) -> None:
        """Begin a chain: no key is given, and no digest told."""
        ctypes.memset(ctypes.addressof(self._board), 0, BOARD_BYTES)

    def give(self, call: int, key: int) -> None:
        """Give a call's key, which is not 0."""
        self._board.keys[call] = key

    def give_if_missing(self, call: int) -> None:
        """Give a call that has none a key that unmasks nothing, so that no kernel waits for it any more."""
        self._board.keys[call] = self._board.keys[call] or 1

    def await_ready(self, count: int) -> bool:
        """Poll for a while; tell whether a call waits for its key: the one of this number, from 1 on."""
        return _is_at_least(self._board.ready, 0, count)

    def is_launched(self, count: int) -> bool:
        """Tell whether this many calls are launched."""
        return self._board.launched[0] >= count

    def await_told(self, call: int, groups: int) -> bool:
        """Poll for a while; tell whether all words of a call's digests are there."""
        return _is_at_least(self._board.told[call], 2 * groups - 1, 1) and all(self.told(call, groups))

    def told(self, call: int, groups: int) -> list[int]:
        """Return the digests of a call."""
        return self._board.told[call][: 2 * groups]

    def tell_ready(self, count: int) -> None:
        """Say instead of the GPU that a call waits."""
        self._board.ready[0] = count

    def tell_launched(self, count: int) -> None:
        """Say that this many calls are launched."""
        self._board.launched[0] = count

    def has_key(self, call: int) -> bool:
        """Tell whether a call's key has come."""
        return bool(self._board.keys[call])

    def text(self, begin: int, end: int) -> bytes:
        """Return bytes of the file, in which the kernels' code lies behind the board."""
        return self._held[begin:end]

    @property
    def ready_at(self) -> int:
        """Address at which kernels say which call waits."""
        return self._at(self._board.ready)

    def key_at(self, call: int) -> int:
        """Return the address at which kernels find a call's key."""
        return self._at(self._board.keys) + call * ctypes.sizeof(Word)

    def told_at(self, call: int) -> int:
        """Return the address at which kernels tell a call's digests."""
        return self._at(self._board.told[call])

    def _at(self, part: ctypes.Array[ctypes.c_uint64]) -> int:
        return self.address + ctypes.addressof(part) - ctypes.addressof(self._board)


def _is_at_least(words: ctypes.Array[ctypes.c_uint64], at: int, least: int) -> bool:
    """Poll a word 2,000 times at most."""
    for _ in range(2_000):  # noqa: SIM110 - any() takes longer than a short call
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
        own = ctypes.addressof(self._board)
        for_kernels = 2  # the driver's flag for memory that kernels may use
        driver.check(library.cuMemHostRegister_v2(own, BOARD_BYTES, for_kernels), "mapping the board of a chain")
        try:
            found = library.cuMemHostGetDevicePointer_v2(ctypes.byref(address), own, 0)
            driver.check(found, "finding the board of a chain")
            self.address = address.value
        finally:
            if not self.address:
                self.release()

    def release(self) -> None:
        """Take the board from the GPU."""
        driver.check(driver.driver().cuMemHostUnregister(ctypes.addressof(self._board)), "giving up a chain's board")
