"""The queue of a GPU for the clocks: the preamble of a timed call, and small kernels that show fixed costs.

The preamble flushes the L2 and keeps the GPU busy by a delay kernel, so that the host can enqueue the call meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import torch

from flashinfer_bench.timing import driver
from flashinfer_bench.timing.settings import L2Cache

DELAY_KERNEL: Final = "flashinfer_bench_spin"
FLUSH_KERNEL: Final = "flashinfer_bench_flush"
EMPTY_KERNEL: Final = "flashinfer_bench_empty"
MOVE_KERNEL: Final = "flashinfer_bench_move"
FLUSH_SHARE: Final = 2
"""The flush reads this many times the size of the L2."""
BLOCKS_PER_PROCESSOR: Final = 4
FLUSH_THREADS: Final = 512
"""Blocks of the flush on each streaming multiprocessor, and threads of each block."""
CHAIN: Final = 12
"""Number of empty kernels in a chain. Their time shows how fast a context can launch dependent kernels."""
CHAIN_BLOCKS: Final = 128
CHAIN_THREADS: Final = 256
LINE_BYTES: Final = 512
"""Bytes between two words that share no line of a cache."""


@dataclass(frozen=True)
class Preamble:
    """The work before a timed call."""

    delay_ns: int = 0
    """Time for which the GPU is kept busy after the flush."""
    flushes: bool = True
    """Flush the L2 before the delay, for cold calls."""
    drains: bool = False
    """After the delay, wait until the GPU is idle. This is for a call on streams that do not wait for the current
    stream."""
    waits_first: bool = False
    """Wait until the GPU is idle before the flush."""
    resets_lines: bool = False
    """Wait until the GPU is idle, and reset persisting lines of the L2, before the flush."""


@cache
def kernel_image() -> bytes:
    """Return the kernels' machine code for the current device."""
    return driver.assemble(Path(__file__).with_name("gpu_kernels.ptx").read_bytes())


class GpuQueue:
    """The current stream of a GPU, with the timing kernels.

    Args:
        device: a CUDA device.
        l2_cache: "cold" flushes the L2 before each call.
        image: the kernels' machine code; assembled here if it is not given.
    """

    def __init__(self, device: torch.device, *, l2_cache: L2Cache = "cold", image: bytes | None = None) -> None:
        self.l2_cache: L2Cache = l2_cache
        self._device = device
        properties = torch.cuda.get_device_properties(device)
        torch.cuda.current_stream(device)
        launcher = driver.Module(image if image is not None else kernel_image()).launcher
        blocks = int(properties.multi_processor_count) * BLOCKS_PER_PROCESSOR
        self._delay, self._move = launcher(DELAY_KERNEL, 1), launcher(MOVE_KERNEL, 2)
        self._flush = launcher(FLUSH_KERNEL, 2, blocks, FLUSH_THREADS)
        self._empty, self._link = launcher(EMPTY_KERNEL), launcher(EMPTY_KERNEL, 0, CHAIN_BLOCKS, CHAIN_THREADS)
        self._words = torch.zeros(2 * LINE_BYTES, dtype=torch.uint8, device=device)
        self._buffer = torch.zeros(FLUSH_SHARE * int(properties.L2_cache_size), dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)

    @property
    def _stream(self) -> int:
        return torch.cuda.current_stream(self._device).cuda_stream

    def enqueue(self, preamble: Preamble) -> None:
        """Enqueue the work before a timed call; the delay kernel is its last part."""
        stream = self._stream
        if preamble.waits_first or preamble.resets_lines:
            torch.cuda.synchronize(self._device)
        if preamble.resets_lines:
            driver.reset_persisting_lines()
        if self.l2_cache == "cold" and preamble.flushes:
            self._flush(stream, self._buffer.data_ptr(), self._buffer.numel())
        self._delay(stream, preamble.delay_ns)
        if preamble.drains:
            torch.cuda.synchronize(self._device)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self._device)

    def launch_empty(self) -> None:
        """Launch an empty kernel."""
        self._empty(self._stream)

    def launch_chain(self) -> None:
        """Launch CHAIN empty kernels, each with the blocks of a small kernel."""
        stream = self._stream
        for _ in range(CHAIN):
            self._link(stream)

    def launch_move(self) -> None:
        """Launch a kernel that reads a word and writes it elsewhere."""
        begin = self._words.data_ptr()
        self._move(self._stream, begin, begin + LINE_BYTES)
