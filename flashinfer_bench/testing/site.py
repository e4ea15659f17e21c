"""Where calls are timed: one device with its clocks, its L2 and its memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Final, Protocol

import torch

from flashinfer_bench.timing.clocks import Clock, capture_first, make_clock
from flashinfer_bench.timing.gpu_state import GpuState, read_gpu_state
from flashinfer_bench.timing.settings import ClockChoice, L2Cache

EVICT_SHARE: Final = 2
"""To empty the L2, a buffer of this many times its size is read."""


class Site(Protocol):
    """A device as `bench_gpu_time` uses it."""

    device_type: str
    """"cuda" or "cpu"."""
    l2_bytes: int
    """0 for a CPU, whose caches are left as they are."""

    def active(self) -> AbstractContextManager[object]:
        """Make it the current device for a while."""

    def clock(self, l2_cache: L2Cache) -> Clock:
        """Return the clock that flushes the L2 before each call, or the one that does not."""

    def launch_gap_ns(self, clock: Clock) -> int:
        """Return the launch gap in this process, measured once; see `Clock.launch_gap_ns`."""

    def look(self) -> GpuState | None:
        """Look at the device's state."""

    def free_bytes(self) -> int:
        """Return how much memory can be had."""

    def evict(self) -> None:
        """Empty the L2, and wait until that is done."""


class CpuSite:
    """The CPU: the wall clock, caches as they are."""

    device_type = "cpu"
    l2_bytes = 0

    def active(self) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return nullcontext()

    def clock(self, l2_cache: L2Cache) -> Clock:
        """Return the wall clock."""
        del l2_cache
        return make_clock(torch.device("cpu"))

    def launch_gap_ns(self, clock: Clock) -> int:
        """Return 0: the readings hold everything."""
        return clock.launch_gap_ns()

    def look(self) -> GpuState | None:
        """Return None: there is no GPU to look at."""
        return None

    def free_bytes(self) -> int:
        """Return 0: nothing is ever copied here."""
        return 0

    def evict(self) -> None:
        """Do nothing: a CPU's caches are left as they are."""


class GpuSite:
    """One GPU in this process. Its clocks and their flush buffers are kept for as long as the process lives.

    Args:
        device: a CUDA device with its index.
        clock: "cuda_events" takes CUDA events.
    """

    device_type = "cuda"

    def __init__(self, device: torch.device, *, clock: ClockChoice) -> None:
        properties = torch.cuda.get_device_properties(device)
        self.l2_bytes = int(properties.L2_cache_size)
        self._uuid = f"GPU-{properties.uuid}"
        self._device = device
        self._clock_choice: ClockChoice = clock
        self._clocks: dict[L2Cache, Clock] = {}
        self._gap_ns = 0

    def active(self) -> AbstractContextManager[object]:
        """Make the GPU torch's current device."""
        context: AbstractContextManager[object] = torch.cuda.device(self._device)
        return context

    def clock(self, l2_cache: L2Cache) -> Clock:
        """Return the clock; CUPTI where it works."""
        if l2_cache not in self._clocks:
            torch.zeros(1, device=self._device)  # makes the context that a clock needs
            clock = make_clock(self._device, l2_cache=l2_cache, clock=self._clock_choice)
            self.launch_gap_ns(clock)
            capture_first(self._device)
            self._clocks[l2_cache] = clock
        return self._clocks[l2_cache]

    def launch_gap_ns(self, clock: Clock) -> int:
        """Return the gap of the first clock that could measure it, so that all times of a process hold the same gap."""
        if not self._gap_ns:
            self._gap_ns = clock.launch_gap_ns()
        return self._gap_ns

    def look(self) -> GpuState | None:
        """Look at the GPU through NVML."""
        return read_gpu_state(self._uuid, ours=(os.getpid(),))

    def free_bytes(self) -> int:
        """Return what is free on the GPU, and in torch's own cache of it."""
        free, _ = torch.cuda.mem_get_info(self._device)
        return free + torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)

    def evict(self) -> None:
        """Read a buffer larger than the L2."""
        torch.sum(self._eviction_buffer())  # of float32: integers would be converted, in a copy eight times as large
        torch.cuda.synchronize(self._device)

    @cache  # noqa: B019 - sites are as few as GPUs, and live as long as the process
    def _eviction_buffer(self) -> torch.Tensor:
        return torch.zeros(EVICT_SHARE * self.l2_bytes // 4, dtype=torch.float32, device=self._device)


@cache
def gpu_site(device: torch.device, *, clock: ClockChoice) -> GpuSite:
    """Return the one site of a GPU in this process."""
    return GpuSite(device, clock=clock)


def find_site(
    tensors: Iterable[torch.Tensor],
    *,
    clock: ClockChoice,
    has_gpu: Callable[[], bool] = torch.cuda.is_available,
) -> Site:
    """Return where a call with these tensors runs: the GPU that they lie on, else the current one, else the CPU.

    Raises:
        ValueError: they lie on several GPUs.
    """
    devices = sorted({tensor.device.index for tensor in tensors if tensor.device.type == "cuda"})
    if len(devices) > 1:
        listed = ", ".join(f"cuda:{index}" for index in devices)
        raise ValueError(f"the arguments lie on several GPUs ({listed}): a call is timed on one")
    if not has_gpu():
        return CpuSite()
    index = devices[0] if devices else torch.cuda.current_device()
    return gpu_site(torch.device("cuda", index), clock=clock)
