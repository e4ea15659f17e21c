"""The time below which no right call lies on a GPU: what its reference reads whole has to come from memory.

Only what is proven counts (`read_whole.py`), beyond what fits into the L2: that much of the inputs may lie there before
a call, whatever a flush does. Outputs count for nothing, since they may stay in the L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from flashinfer_bench.bench.evaluators.inputs.read_whole import find_read_whole
from flashinfer_bench.data import Definition, Workload
from flashinfer_bench.data.dtypes import DTYPES
from flashinfer_bench.roofline.cost import TERA
from flashinfer_bench.roofline.peaks import SLACK, find_peak
from flashinfer_bench.timing.settings import TimingSettings


def plan_floor(
    definition: Definition, workload: Workload, device: torch.device, timing: TimingSettings
) -> Callable[[float], float]:
    """Return what gives the floor of a claimed latency, both in ms; 0 on a CPU and where the L2 is kept warm."""
    if device.type != "cuda" or timing.l2_cache != "cold":
        return lambda _claimed_ms: 0.0
    return partial(find_floor_ms, definition, workload, torch.cuda.get_device_properties(device))


def find_floor_ms(definition: Definition, workload: Workload, device: Any, claimed_ms: float) -> float:
    """Return the least time in ms that a right call takes; 0 where none is known, or where it cannot exceed the claim.

    Args:
        definition: what is computed.
        workload: its sizes.
        device: the GPU's properties, as torch tells them.
        claimed_ms: latency of one call. The reference is followed only where all inputs together would take longer.
    """
    peak = find_peak(device.name)
    if peak is None:
        return 0.0
    # Kilohertz and bits: a card with faster memory than its name says, or with raised clocks, reads faster.
    told = 2e3 * getattr(device, "memory_clock_rate", 0) * getattr(device, "memory_bus_width", 0) / 8 / 1e12
    bandwidth, l2_bytes = max(peak.tb_per_sec, told), max(peak.l2_bytes, device.L2_cache_size)
    shapes = zip(definition.inputs.values(), definition.get_input_shapes(workload.axes), strict=True)
    total = sum(math.prod(shape) * DTYPES[spec.dtype].bits / 8 for spec, shape in shapes if shape is not None)
    if claimed_ms >= _read_ms(total, bandwidth, l2_bytes):
        return 0.0
    return _read_ms(sum(find_read_whole(definition, workload).values()), bandwidth, l2_bytes)


def _read_ms(size: float, tb_per_sec: float, l2_bytes: float) -> float:
    """Return the least time in ms to read so many bytes, of which as many as fit may lie in the L2 before.

    Args:
        size: bytes.
        tb_per_sec: peak memory bandwidth, 10^12 bytes a second; `SLACK` is allowed on it.
        l2_bytes: size of the L2.
    """
    return max(0.0, size - l2_bytes) / TERA / tb_per_sec / SLACK * 1e3
