"""The free memory of a device, which limits the number and size of sets of inputs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.host import usable_memory

RECENT_S: Final = 0.2
ROOMY_S: Final = 2.0
"""Seconds for which the result of a query is reused: ROOMY_S if more than half of the GPU's memory was free, else
RECENT_S. A query waits while the driver ends another process's context, and a job needs a dozen results."""
SMALL_SHARE: Final = 1024
"""A size is small if it is at most 1/SMALL_SHARE of the device's memory. Small sizes need no query of the free
memory."""
_queries: dict[torch.device, tuple[float, int]] = {}
"""GPU → time until which the latest result is reused, and the free bytes."""
_most_free: dict[torch.device, int] = {}
"""GPU → the largest free memory that a query returned, in bytes."""


@cache
def total_bytes(device: torch.device) -> int:
    """Return all memory of the device, used and free."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return usable_memory()


def has_room(device: torch.device, size: int, share: int) -> bool:
    """Return whether `size` is at most 1/`share` of a device's free memory. A small size always fits."""
    return size <= total_bytes(device) // SMALL_SHARE or size <= free_bytes(device) // share


def recently_free_bytes(device: torch.device) -> int:
    """Return the free memory of a GPU, possibly from a recent query. An old result is good enough, since callers use
    only a share of the memory."""
    until_s, free = _queries.get(device, (0.0, 0))
    return free if time.monotonic() < until_s else query_free_bytes(device)


def query_free_bytes(device: torch.device) -> int:
    """Query and return the free memory of a GPU."""
    free, total = map(int, torch.cuda.mem_get_info(device))
    _queries[device] = time.monotonic() + (ROOMY_S if 2 * free > total else RECENT_S), free
    _most_free[device] = max(free, most_free_bytes(device))
    return free


def most_free_bytes(device: torch.device) -> int:
    """Return the largest free memory that this process found on a GPU."""
    return _most_free.get(device, 0)


def cached_bytes(device: torch.device) -> int:
    """Return the GPU memory that torch holds in this process without using it for a tensor."""
    return int(torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device))


def free_bytes(device: torch.device) -> int:
    """Return the memory that can be allocated on the device now."""
    if device.type == "cuda":
        return query_free_bytes(device) + cached_bytes(device)
    available = re.findall(r"MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text())
    return min([usable_memory(), *(int(kilobytes) * 1024 for kilobytes in available)])


def bytes_of(values: Iterable[Any]) -> int:
    """Return the memory of all tensors among the values."""
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
