"""The kernels of a gated chain, and the control block through which a session gives out keys.

The worker launches the kernels around its calls: wait for a call's key, unmask its inputs with it, commit to its
outputs. The session uses the same kernels to mask inputs, to time empty chains, and to check digests.

The control block is host memory that both the session's processor and the worker's GPU can access. Each step to the
next call takes two transfers over the bus: the previous call's digest, and the key.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import torch

from flashinfer_bench.timing import driver

MOST_CALLS: Final = 17
"""Maximum number of calls of a chain. The median counts, so a solution gains only if it skips half of the calls."""
MOST_OUTPUTS: Final = 16
"""Calls with more outputs run in no chain."""
BLOCK_BYTES: Final = 4096
READY, LAUNCHED, KEYS, DIGESTS = 0, 16, 32, 96
"""Words of a control block: number of the waiting call, number of launched calls, keys, digests. The session
and the worker write to different cache lines, so that writes of one process do not delay reads of the other process."""
DIGEST_WORDS: Final = 8
POLLS: Final = 2_000
"""Reads of a word before the time is checked."""
WORD_BYTES: Final = 16
"""Bytes that kernels read at once."""
SMALL_BYTES: Final = 1 << 15
"""Maximum bytes of inputs that the waiting kernel unmasks itself. A second kernel would start later."""
UNMASK_THREADS: Final = 256
COMMIT_BYTES: Final = 1 << 16
"""Bytes of outputs that one block hashes. If the GPU has too few processors, blocks take more bytes."""
AT_ONCE: Final = 4
"""Number of pieces of memory that one kernel commits to."""
WARP: Final = 32
"""Number of threads of a warp, and maximum number of warps of a block."""


class ControlBlock:
    """A view of the control block of a chain.

    Args:
        fd: a memory file that begins with the block. It can be closed afterwards.
        size: bytes of the file.
    """

    address = 0
    """Its address for kernels; 0 until `map_to_gpu`."""

    def __init__(self, fd: int, size: int = BLOCK_BYTES) -> None:
        self._held = mmap.mmap(fd, size)
        self._words = (ctypes.c_uint64 * (BLOCK_BYTES // 8)).from_buffer(self._held)

    def map_to_gpu(self) -> None:
        """Let kernels of this process use the block, until `release`."""
        library, own, address = driver.driver(), ctypes.addressof(self._words), ctypes.c_uint64()
        for_kernels = 2  # the driver's flag for memory accessible to kernels
        registered = library.cuMemHostRegister_v2(own, BLOCK_BYTES, for_kernels)
        driver.check(registered, "mapping the control block of a chain")
        found = library.cuMemHostGetDevicePointer_v2(ctypes.byref(address), own, 0)
        if found != 0:
            self.release()
        driver.check(found, "finding the control block of a chain")
        self.address = address.value

    def release(self) -> None:
        """Unmap the block from the GPU."""
        given_up = driver.driver().cuMemHostUnregister(ctypes.addressof(self._words))
        driver.check(given_up, "giving up the control block of a chain")

    def clear(self) -> None:
        """Clear the block, with its keys and digests, for a new chain."""
        ctypes.memset(ctypes.addressof(self._words), 0, BLOCK_BYTES)

    def give(self, call: int, key: int) -> None:
        """Give a call its key, a nonzero number."""
        self._words[KEYS + call] = key

    def give_if_missing(self, call: int) -> None:
        """Set a dummy key for a call that has no key, so that no kernel waits for a key any more."""
        self.give(call, self._words[KEYS + call] or 1)

    def has_key(self, call: int) -> bool:
        """Return whether a call's key has arrived."""
        return bool(self._words[KEYS + call])

    def await_ready(self, count: int) -> bool:
        """Poll briefly; return whether call number `count`, counted from 1, waits for its key."""
        return self._is_at_least(READY, count)

    def tell_ready(self, count: int) -> None:
        """Report on behalf of the GPU that a call waits for its key."""
        self._words[READY] = count

    def is_launched(self, count: int) -> bool:
        """Return whether this many calls are launched."""
        return self._words[LAUNCHED] >= count

    def tell_launched(self, count: int) -> None:
        """Report that this many calls are launched."""
        self._words[LAUNCHED] = count

    def await_digest(self, call: int, groups: int) -> bool:
        """Poll briefly; return whether all words of a call's digest have arrived."""
        last = DIGESTS + call * DIGEST_WORDS + 2 * groups - 1
        return self._is_at_least(last, 1) and all(self.digest(call, groups))

    def digest(self, call: int, groups: int) -> list[int]:
        """Return the digest of a call, two words for each group of outputs."""
        begin = DIGESTS + call * DIGEST_WORDS
        return self._words[begin : begin + 2 * groups]

    def _is_at_least(self, word: int, least: int) -> bool:
        words = self._words
        for _ in range(POLLS):  # noqa: SIM110 - any() takes longer than a short call
            if words[word] >= least:
                return True
        return False

    def text(self, begin: int, end: int) -> bytes:
        """Return bytes of the file. The kernels' code comes after the block."""
        return self._held[begin:end]

    @property
    def ready_at(self) -> int:
        """Address at which kernels report the waiting call."""
        return self.address + 8 * READY

    def key_at(self, call: int) -> int:
        """Return the address from which kernels read a call's key."""
        return self.address + 8 * (KEYS + call)

    def digest_at(self, call: int) -> int:
        """Return the address to which kernels write a call's digest."""
        return self.address + 8 * (DIGESTS + call * DIGEST_WORDS)


class Piece(NamedTuple):
    """Memory on a GPU."""

    address: int
    """A multiple of WORD_BYTES."""
    nbytes: int


@cache
def chain_image() -> bytes:
    """Return the kernels' machine code for the current device.

    Raises:
        driver.DriverError: the driver cannot assemble them.
    """
    return driver.assemble(Path(__file__).with_name("chain_kernels.ptx").read_bytes())


class ChainKernels:
    """Launches the kernels on the current stream of a GPU.

    Args:
        image: the kernels' machine code.
        device: the GPU, which is the current device.
    """

    def __init__(self, image: bytes, device: torch.device) -> None:
        self._device = device
        self._launcher = driver.Module(image).launcher
        self._processors = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._key = torch.zeros(1, dtype=torch.int64, device=device)
        self._parts = torch.zeros(self._processors * WORD_BYTES, dtype=torch.uint8, device=device)
        self._count = torch.zeros(1, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)

    def warm_up(self, key: int) -> None:
        """Launch each kernel once, because the driver cannot load code during a capture.

        Args:
            key: address of a nonzero key; the second and third word from there are overwritten.
        """
        written = key + WORD_BYTES
        self._launch("flashinfer_bench_await_and_unmask", (1, WARP), key, 0, 0, written, 0)
        self._launch("flashinfer_bench_await_key", (1, 1), key, self._key.data_ptr(), written, 0)
        self.unmask(Piece(0, 0), self._key.data_ptr())
        self.commit([], written)
        torch.cuda.synchronize(self._device)

    def await_and_unmask(self, key: int, inputs: Piece, ready: int, count: int) -> None:
        """Write `count` to the address `ready`, wait for a key at the address `key`, and unmask inputs.

        It launches `count_launches` kernels.
        """
        words = inputs.nbytes // WORD_BYTES
        if inputs.nbytes <= SMALL_BYTES:
            shape = 1, threads_for(words)
            self._launch("flashinfer_bench_await_and_unmask", shape, key, inputs.address, words, ready, count)
        else:
            self._launch("flashinfer_bench_await_key", (1, 1), key, self._key.data_ptr(), ready, count)
            self.unmask(inputs, self._key.data_ptr())

    def unmask(self, inputs: Piece, key: int) -> None:
        """Unmask inputs with the key at an address. Masking is the same operation."""
        words = inputs.nbytes // WORD_BYTES
        blocks = max(1, min(2 * self._processors, -(-words // UNMASK_THREADS)))
        self._launch("flashinfer_bench_unmask", (blocks, UNMASK_THREADS), inputs.address, words, key)

    def commit(self, pieces: Sequence[Piece], digest: int) -> None:
        """Write the digest of pieces of memory to an address: two words of eight bytes for every AT_ONCE pieces."""
        self.committer([one.nbytes for one in pieces], digest)([one.address for one in pieces])

    def committer(self, sizes: Sequence[int], digest: int) -> Callable[[Sequence[int]], None]:
        """Return a function that commits to pieces of these sizes, given their addresses."""
        scratch = self._parts.data_ptr(), self._count.data_ptr()
        launches = []
        for at in range(count_groups(len(sizes))):
            some = sizes[at * AT_ONCE : (at + 1) * AT_ONCE]
            blocks = max(1, min(self._processors, -(-sum(some) // COMMIT_BYTES)))
            shape = blocks, threads_for(-(-sum(some) // WORD_BYTES // blocks))
            launch = self._launcher("flashinfer_bench_commit", 2 * AT_ONCE + 3, *shape)
            launches.append((launch, some, digest + at * WORD_BYTES))

        def commit(addresses: Sequence[int]) -> None:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            for at, (launch, some, to) in enumerate(launches):
                own = addresses[at * AT_ONCE : at * AT_ONCE + len(some)]
                given = [number for piece in zip(own, some, strict=True) for number in piece]
                launch(stream, *given, *[0] * (2 * AT_ONCE - len(given)), to, *scratch)

        return commit

    def _launch(self, name: str, shape: tuple[int, int], *arguments: int) -> None:
        launch = self._launcher(name, len(arguments), *shape)
        launch(torch.cuda.current_stream(self._device).cuda_stream, *arguments)


def count_launches(nbytes: int) -> int:
    """Return the number of kernels that wait for a key and unmask this many bytes."""
    return 1 if nbytes <= SMALL_BYTES else 2


def count_groups(pieces: int) -> int:
    """Return the number of commit groups for this many pieces, at least one."""
    return max(1, -(-pieces // AT_ONCE))


def threads_for(words: int) -> int:
    """Return the number of threads of a block for this many words: whole warps."""
    return WARP * max(1, min(WARP, -(-words // WARP)))


def piece_of(value: torch.Tensor) -> Piece:
    """Return the location of a contiguous tensor."""
    return Piece(value.data_ptr(), value.nbytes)
