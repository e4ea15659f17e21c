"""The device on which a call is timed, and its clocks. One object per device and process."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from time import perf_counter

import torch

from flashinfer_bench.timing.clocks import Clock, capture_first, make_clock
from flashinfer_bench.timing.nvml import GpuState, read_gpu_state
from flashinfer_bench.timing.settings import ClockChoice, L2Cache


class TimingDevice:
    """A GPU, or the CPU, which has no L2 to flush and no state.

    Args:
        device: a CPU, or a CUDA device with its index.
        clock: "cuda_events" selects CUDA events; "auto" selects CUPTI if it works.
    """

    now = staticmethod(perf_counter)
    """The host's clock, in seconds."""

    def __init__(self, device: torch.device, clock: ClockChoice) -> None:
        self.device = device
        self.launch_gap_ns = 0
        """Launch overhead, from the first clock that could measure it. So all times of a process include the same
        overhead."""
        self._clock_choice: ClockChoice = clock
        self._clocks: dict[L2Cache, Clock] = {}

    def active(self) -> AbstractContextManager[object]:
        """Make a GPU torch's current device."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    def clock(self, l2_cache: L2Cache) -> Clock:
        """Return the clock that flushes the L2 before each call, or the clock that does not. Both are cached."""
        if l2_cache not in self._clocks:
            torch.zeros(1, device=self.device)  # makes the context that a clock needs
            clock = make_clock(self.device, l2_cache=l2_cache, clock=self._clock_choice)
            self.launch_gap_ns = self.launch_gap_ns or clock.launch_gap_ns()
            capture_first(self.device)
            self._clocks[l2_cache] = clock
        return self._clocks[l2_cache]

    def state(self) -> GpuState | None:
        """Return a GPU's clocks, power and users, from NVML; None for the CPU."""
        if self.device.type != "cuda":
            return None
        return read_gpu_state(f"GPU-{torch.cuda.get_device_properties(self.device).uuid}", ours=(os.getpid(),))


@cache
def timing_device(device: torch.device, clock: ClockChoice) -> TimingDevice:
    """Return this process's object for a device and a choice of clock."""
    return TimingDevice(device, clock)


def find_device(tensors: Iterable[torch.Tensor], clock: ClockChoice) -> TimingDevice:
    """Return the GPU that a call's tensors lie on, else the current GPU, else the CPU.

    Raises:
        ValueError: the tensors lie on several GPUs.
    """
    gpus = sorted({str(tensor.device) for tensor in tensors if tensor.device.type == "cuda"})
    if len(gpus) > 1:
        raise ValueError(f"the arguments lie on several GPUs ({', '.join(gpus)}): a call is timed on one")
    if not torch.cuda.is_available():
        return timing_device(torch.device("cpu"), clock)
    return timing_device(torch.device(gpus[0] if gpus else f"cuda:{torch.cuda.current_device()}"), clock)
