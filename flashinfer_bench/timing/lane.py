"""What is put in front of a timed call on a GPU: a flush of the L2, and a spin that lets the host get ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import torch

from flashinfer_bench.timing import driver
from flashinfer_bench.timing.settings import L2Cache

FLUSH_SHARE: Final = 2
"""The flush reads this many times the size of the L2. On an H200 three or four times give the same timings."""
BLOCKS_PER_PROCESSOR: Final = 4
"""Blocks of the flush for each streaming multiprocessor."""
FLUSH_THREADS: Final = 512
SPIN_KERNEL: Final = "flashinfer_bench_spin"
FLUSH_KERNEL: Final = "flashinfer_bench_flush"
CHAIN: Final = 12
"""Kernels in the chain that shows how fast a context feeds the GPU."""
CHAIN_BLOCKS: Final = 128
CHAIN_THREADS: Final = 256
EMPTY_KERNEL: Final = "flashinfer_bench_empty"
MOVE_KERNEL: Final = "flashinfer_bench_move"
LINE_BYTES: Final = 512
"""Words so far from each other share no line of a cache."""


@dataclass(frozen=True)
class Lead:
    """How a timed call is led up to."""

    spin_ns: int = 0
    """How long the GPU is kept busy after the flush, in nanoseconds."""
    flushes: bool = True
    """Flush the L2 before the spin, if the lane is cold."""
    settled: bool = False
    """Wait until the GPU is idle after the spin: for a call whose streams do not wait for the current one."""
    waits_first: bool = False
    """Wait until the GPU is idle before the flush."""
    looks_aside: bool = False
    """Find out whether the call leaves work on streams that nobody waits for. Only a clock of events needs this; others
    see all work."""
    resets_lines: bool = False
    """Wait until the GPU is idle, and reset persisting lines of the L2, before the flush."""


Leads = Lead | Sequence[Lead]
"""How all of some calls are led up to, or each of them."""


def lead_of_each(leads: Leads, count: int) -> Sequence[Lead]:
    """Return how each of so many calls is led up to."""
    return [leads] * count if isinstance(leads, Lead) else leads


class Lane(Protocol):
    """A GPU as the clocks use it."""

    l2_cache: L2Cache
    """"cold": the lead flushes the L2."""

    def lead_up(self, lead: Lead) -> None:
        """Enqueue what goes before a timed call; the spin is its last kernel."""

    def synchronize(self) -> None:
        """Wait until the device is idle."""

    def launch_empty(self) -> None:
        """Launch a kernel that does nothing."""

    def launch_chain(self) -> None:
        """Launch CHAIN kernels that do nothing, each of as many blocks as a small kernel has."""

    def launch_move(self) -> None:
        """Launch a kernel that reads a word and writes it elsewhere."""


@cache
def kernel_image() -> bytes:
    """Return the kernels' machine code for the current device."""
    return driver.assemble(Path(__file__).with_name("gpu_kernels.ptx").read_bytes())


class GpuLane:
    """The lane of one GPU: our two kernels on the current stream.

    Args:
        device: a CUDA device.
        l2_cache: "cold" flushes the L2 before each call.
        image: the kernels' machine code; assembled here where it is not given.
    """

    def __init__(self, device: torch.device, *, l2_cache: L2Cache = "cold", image: bytes | None = None) -> None:
        self.l2_cache: L2Cache = l2_cache
        self._device = device
        properties = torch.cuda.get_device_properties(device)
        torch.cuda.current_stream(device)
        module = driver.Module(image if image is not None else kernel_image())
        self._spin = driver.Launcher(module.kernel(SPIN_KERNEL), blocks=1, threads=1, arguments=1)
        blocks = int(properties.multi_processor_count) * BLOCKS_PER_PROCESSOR
        kernel = module.kernel(FLUSH_KERNEL)
        self._flush = driver.Launcher(kernel, blocks=blocks, threads=FLUSH_THREADS, arguments=2)
        empty = module.kernel(EMPTY_KERNEL)
        self._empty = driver.Launcher(empty, blocks=1, threads=1, arguments=0)
        self._link = driver.Launcher(empty, blocks=CHAIN_BLOCKS, threads=CHAIN_THREADS, arguments=0)
        self._move = driver.Launcher(module.kernel(MOVE_KERNEL), blocks=1, threads=1, arguments=2)
        self._words = torch.zeros(2 * LINE_BYTES, dtype=torch.uint8, device=device)
        self._buffer = torch.zeros(FLUSH_SHARE * int(properties.L2_cache_size), dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)

    def lead_up(self, lead: Lead) -> None:
        """Flush where the lane is cold, then spin."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        if lead.waits_first or lead.resets_lines:
            torch.cuda.synchronize(self._device)
        if lead.resets_lines:
            driver.reset_persisting_lines()
        if self.l2_cache == "cold" and lead.flushes:
            self._flush(stream, self._buffer.data_ptr(), self._buffer.numel())
        self._spin(stream, lead.spin_ns)
        if lead.settled:
            torch.cuda.synchronize(self._device)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize(self._device)

    def launch_empty(self) -> None:
        """Launch a kernel that does nothing."""
        self._empty(torch.cuda.current_stream(self._device).cuda_stream)

    def launch_chain(self) -> None:
        """Launch CHAIN kernels that do nothing."""
        stream = torch.cuda.current_stream(self._device).cuda_stream
        for _ in range(CHAIN):
            self._link(stream)

    def launch_move(self) -> None:
        """Launch a kernel that reads a word and writes it elsewhere."""
        begin = self._words.data_ptr()
        self._move(torch.cuda.current_stream(self._device).cuda_stream, begin, begin + LINE_BYTES)
