"""How much memory a device has. It decides how many sets of inputs are kept and which are refused as too large."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from flashinfer_bench.base.host import usable_memory

RECENT_S: Final = 0.2
"""A look at a GPU's free memory is recent for so many seconds. While the driver ends another process's context, a look
waits for it, and a job has a dozen places that want one."""
_looks: dict[torch.device, tuple[float, int]] = {}
"""GPU → when somebody looked last, and how many bytes were free."""


@cache
def total_bytes(device: torch.device) -> int:
    """Give all memory of the device, used and free."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return usable_memory()


def recently_free_bytes(device: torch.device) -> int:
    """Give the memory of a GPU that no process held RECENT_S ago at the earliest: for what needs a share of it."""
    latest = _looks.get(device)
    if latest is None or time.monotonic() - latest[0] > RECENT_S:
        return look_at_free_bytes(device)
    return latest[1]


def forget_looks() -> None:
    """Have the next one look anew: much may have been allocated since."""
    _looks.clear()


def look_at_free_bytes(device: torch.device) -> int:
    """Give the memory of a GPU that no process holds now."""
    found = int(torch.cuda.mem_get_info(device)[0])
    _looks[device] = time.monotonic(), found
    return found


def free_bytes(device: torch.device) -> int:
    """Give the memory that can be allocated on the device now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return look_at_free_bytes(device) + cached
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return min(int(fields["MemAvailable"].split()[0]) * 1024, usable_memory())
    return total_bytes(device) // 2


def bytes_of(values: Iterable[Any]) -> int:
    """Give the memory of all tensors among the values."""
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
