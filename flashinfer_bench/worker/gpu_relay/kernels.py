"""The kernels of a gated chain: wait for a call's key, unmask its inputs with it, commit to its outputs.

The worker launches them around its calls. The session uses the same kernels to mask inputs, to take empty chains, and
to check digests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import torch

from flashinfer_bench.timing import driver

WORD_BYTES: Final = 16
"""Bytes that kernels read at once."""
SMALL_BYTES: Final = 1 << 15
"""Most bytes of inputs that the block unmasks which waits for the key: another kernel would start later."""
UNMASK_THREADS: Final = 256
COMMIT_BYTES: Final = 1 << 16
"""Bytes for each block that commits to outputs, before there are as many blocks as processors."""
AT_ONCE: Final = 4
"""Pieces of memory that one kernel commits to."""
WARP: Final = 32
"""Threads of a warp, and most warps of a block."""


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
    return driver.assemble(Path(__file__).with_name("relay_kernels.ptx").read_bytes())


class ChainKernels:
    """Launches the kernels on the current stream of a GPU.

    Args:
        image: their machine code.
        device: the GPU; it is the current one.
    """

    def __init__(self, image: bytes, device: torch.device) -> None:
        self._device = device
        self._module = driver.Module(image)
        self._launchers: dict[tuple[str, int, int], driver.Launcher] = {}
        self._processors = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._key = torch.zeros(1, dtype=torch.int64, device=device)
        self._parts = torch.zeros(self._processors * WORD_BYTES, dtype=torch.uint8, device=device)
        self._count = torch.zeros(1, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)

    def warm_up(self, board: int) -> None:
        """Launch each kernel once, so that the driver loads its code: it cannot during a capture.

        Args:
            board: address of a board whose first word is not 0, and behind it of two that are overwritten.
        """
        told = board + WORD_BYTES
        self._launch("flashinfer_bench_await_and_unmask", (1, WARP), board, 0, 0, told, 0)
        self._launch("flashinfer_bench_await_key", (1, 1), board, self._key.data_ptr(), told, 0)
        self.unmask(Piece(0, 0), self._key.data_ptr())
        self.commit([], told)
        torch.cuda.synchronize(self._device)

    def await_and_unmask(self, slot: int, inputs: Piece, ready: int, count: int) -> None:
        """Tell `count` at the address `ready`, wait until a key comes at the address `slot`, and unmask inputs.

        It launches `count_launches` kernels.
        """
        if inputs.nbytes <= SMALL_BYTES:
            words = inputs.nbytes // WORD_BYTES
            shape = 1, threads_for(words)
            self._launch("flashinfer_bench_await_and_unmask", shape, slot, inputs.address, words, ready, count)
        else:
            self._launch("flashinfer_bench_await_key", (1, 1), slot, self._key.data_ptr(), ready, count)
            self.unmask(inputs, self._key.data_ptr())

    def unmask(self, inputs: Piece, key: int) -> None:
        """Unmask inputs by the key at an address; or mask them, which is the same."""
        words = inputs.nbytes // WORD_BYTES
        blocks = max(1, min(2 * self._processors, -(-words // UNMASK_THREADS)))
        self._launch("flashinfer_bench_unmask", (blocks, UNMASK_THREADS), inputs.address, words, key)

    def commit(self, pieces: Sequence[Piece], told: int) -> None:
        """Write digests of pieces of memory to the address `told`: two words of eight bytes for AT_ONCE pieces."""
        self.committer([one.nbytes for one in pieces], told)([one.address for one in pieces])

    def committer(self, sizes: Sequence[int], told: int) -> Callable[[Sequence[int]], None]:
        """Return a function that commits to pieces of these sizes, given their addresses. It is quick on the host."""
        end = self._parts.data_ptr(), self._count.data_ptr()
        launches: list[tuple[driver.Launcher, Sequence[int], int]] = []
        for at in range(count_groups(len(sizes))):
            some = sizes[at * AT_ONCE : (at + 1) * AT_ONCE]
            size = sum(some)
            blocks = max(1, min(self._processors, -(-size // COMMIT_BYTES)))
            shape = blocks, threads_for(-(-size // WORD_BYTES // blocks))
            launches.append(
                (self._launcher("flashinfer_bench_commit", shape, 2 * AT_ONCE + 3), some, told + at * WORD_BYTES)
            )

        def commit(addresses: Sequence[int]) -> None:
            stream = torch.cuda.current_stream(self._device).cuda_stream
            for at, (launch, some, to) in enumerate(launches):
                given = [0] * (2 * AT_ONCE)
                own = addresses[at * AT_ONCE : at * AT_ONCE + len(some)]
                given[: 2 * len(some)] = [number for piece in zip(own, some, strict=True) for number in piece]
                launch(stream, *given, to, *end)

        return commit

    def _launch(self, name: str, shape: tuple[int, int], *arguments: int) -> None:
        launch = self._launcher(name, shape, len(arguments))
        launch(torch.cuda.current_stream(self._device).cuda_stream, *arguments)

    def _launcher(self, name: str, shape: tuple[int, int], arguments: int) -> driver.Launcher:
        key = (name, *shape)
        if key not in self._launchers:
            blocks, threads = shape
            kernel = self._module.kernel(name)
            self._launchers[key] = driver.Launcher(kernel, blocks=blocks, threads=threads, arguments=arguments)
        return self._launchers[key]


def count_launches(nbytes: int) -> int:
    """Return how many kernels wait for a key and unmask this many bytes."""
    return 1 if nbytes <= SMALL_BYTES else 2


def count_groups(pieces: int) -> int:
    """Return in how many groups this many pieces are committed to, at least one; the digest of each has two words."""
    return max(1, -(-pieces // AT_ONCE))


def threads_for(words: int) -> int:
    """Return the threads of a block that has this many words to do: whole warps."""
    return WARP * max(1, min(WARP, -(-words // WARP)))


def piece_of(value: torch.Tensor) -> Piece:
    """Return where a contiguous tensor lies."""
    return Piece(value.data_ptr(), value.nbytes)
