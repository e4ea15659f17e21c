"""The clocks, and which one a device gets: CUPTI on a GPU, else CUDA events; the wall clock on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch

from flashinfer_bench.timing.clocks.clock import CaptureRefused, Clock, ClockLost, Launch, is_replay
from flashinfer_bench.timing.clocks.cuda_events import CudaEventClock, Event
from flashinfer_bench.timing.clocks.cupti import CuptiClock, RecordsLost
from flashinfer_bench.timing.clocks.cupti_recorder import CuptiRecorder, import_cupti
from flashinfer_bench.timing.clocks.graphs import GraphMemory, capture, capture_first, see_operations
from flashinfer_bench.timing.clocks.wall import WallClock
from flashinfer_bench.timing.lane import GpuLane, Lane, Lead, Leads, lead_of_each
from flashinfer_bench.timing.measurement import EVENTS_ASKED_FOR, FALLING_BACK
from flashinfer_bench.timing.settings import ClockChoice, L2Cache

__all__ = [
    "CaptureRefused",
    "Clock",
    "ClockLost",
    "GraphMemory",
    "Launch",
    "Lead",
    "Leads",
    "capture",
    "capture_first",
    "import_cupti",
    "is_replay",
    "lead_of_each",
    "make_clock",
    "see_operations",
]


def make_clock(
    device: torch.device, *, l2_cache: L2Cache = "cold", clock: ClockChoice = "auto", image: bytes | None = None
) -> Clock:
    """Return the best clock for a device.

    Args:
        device: where the calls run; on a GPU there must be a context.
        l2_cache: "cold" flushes a GPU's L2 before each call. A CPU's caches are left as they are.
        clock: "cuda_events" takes CUDA events.
        image: machine code of the timing kernels, where it is known already.
    """
    if device.type != "cuda":
        return WallClock()
    lane = GpuLane(device, l2_cache=l2_cache, image=image)
    if clock == "cuda_events":
        return event_clock(lane, EVENTS_ASKED_FOR)
    try:
        recorder = shared_recorder()
    except RecordsLost as lost:
        return event_clock(lane, f"{lost}. {FALLING_BACK}")
    fallback, release = partial(event_clock, lane), torch.cuda.empty_cache
    return CuptiClock(lane, recorder, capture=capture, fallback=fallback, release=release)


@cache
def shared_recorder() -> CuptiRecorder:
    """Return this process's recorder of CUPTI's records: its clocks share it, since CUPTI fills one set of buffers.

    Raises:
        RecordsLost: CUPTI is not to be had.
    """
    return CuptiRecorder()


def event_clock(lane: Lane, reason: str) -> Clock:
    """Return the clock that reads CUDA events, which says why it is used."""
    make_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
    return CudaEventClock(lane, cast("Callable[[], Event]", make_event), reason=reason)
