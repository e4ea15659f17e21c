"""CUDA events round each launch, with a cold L2 and a full queue.

Before each launch the L2 is flushed (a buffer of twice its size is written) and a spin kernel keeps the GPU busy
for as long as the host needs to enqueue the launch: without it, short code that launches several kernels is timed
at the host's speed. An event pair round nothing costs a constant, about 2 to 5 µs; it is measured and reported, not
subtracted.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter_ns
from typing import Any, Final

import torch

CALIBRATION_CYCLES: Final = 2_000_000
EMPTY_PAIRS: Final = 10
SPIN_MARGIN: Final = 1.5
SPIN_FLOOR_NS: Final = 10_000
SPIN_CEILING_NS: Final = 5_000_000


class CudaEventClock:
    """Times launches on the current stream of one GPU."""

    method = "cuda_events"
    cache_state = "cold"

    def __init__(self, device: torch.device) -> None:
        self._device = device
        properties = torch.cuda.get_device_properties(device)
        self._flush = torch.empty(2 * int(properties.L2_cache_size), dtype=torch.uint8, device=device)
        self._cycles_per_ns = self._calibrate()
        self._enqueue_ns = SPIN_FLOOR_NS
        self._empty_ns = int(median(self.sample([lambda: None] * EMPTY_PAIRS)))

    def warm_up(self, launch: Callable[[], object], count: int) -> None:
        """Launch untimed, and learn how long the host needs to enqueue one launch."""
        enqueue: list[int] = []
        for _ in range(count):
            start = perf_counter_ns()
            launch()
            enqueue.append(perf_counter_ns() - start)
            torch.cuda.synchronize(self._device)
        if enqueue:
            self._enqueue_ns = int(median(enqueue))

    def sample(self, launches: list[Callable[[], object]]) -> list[int]:
        """Time each launch; nanoseconds between two events on the GPU."""
        spin_ns = min(max(self._enqueue_ns * SPIN_MARGIN, SPIN_FLOOR_NS), SPIN_CEILING_NS)
        cycles = int(spin_ns * self._cycles_per_ns)
        pairs = [make_pair() for _ in launches]
        for launch, (start, end) in zip(launches, pairs, strict=True):
            self._flush.zero_()
            torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]
            start.record()
            launch()
            end.record()
        torch.cuda.synchronize(self._device)
        return [int(start.elapsed_time(end) * 1e6) for start, end in pairs]

    def facts(self) -> dict[str, Any]:
        """Return the constant of an empty pair and the host's time to enqueue one launch, in nanoseconds."""
        return {"empty_pair_ns": self._empty_ns, "enqueue_ns": self._enqueue_ns}

    def _calibrate(self) -> float:
        start, end = make_pair()
        torch.cuda._sleep(CALIBRATION_CYCLES // 10)  # type: ignore[no-untyped-call]
        start.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)  # type: ignore[no-untyped-call]
        end.record()
        torch.cuda.synchronize(self._device)
        return CALIBRATION_CYCLES / (float(start.elapsed_time(end)) * 1e6)


def make_pair() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Return two events that hold times."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
