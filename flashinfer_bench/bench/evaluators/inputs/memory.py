"""How much memory a device has. It decides how many sets of inputs are kept and which are refused as too large."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from flashinfer_bench.base.host import usable_memory

RECENT_S: Final = 0.2
"""A look at a GPU's free memory is recent for so many seconds. While the driver ends another process's context, a look
waits for it, and a job has a dozen places that want one."""
ROOMY_S: Final = 1.0
"""Where a look found more than half of the memory free, it is recent for longer."""
_looks: dict[torch.device, Look] = {}
"""GPU → the latest look."""
_most_free: dict[torch.device, int] = {}
"""GPU → the most that a look found free."""


class Look(NamedTuple):
    """What a look at a GPU's memory found."""

    at_s: float
    free: int
    lasts_s: float
    """For how long it is recent."""
    held: int
    """Bytes that torch held in this process then."""


@cache
def total_bytes(device: torch.device) -> int:
    """Give all memory of the device, used and free."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return usable_memory()


def recently_free_bytes(device: torch.device) -> int:
    """Give the memory of a GPU that no process held a moment ago: for what needs a share of it."""
    latest = _looks.get(device)
    if latest is None or time.monotonic() - latest.at_s > latest.lasts_s:
        return look_at_free_bytes(device)
    return latest.free


def forget_looks() -> None:
    """Have the next one look anew, since much may have been allocated.

    A look that found most of the memory free stands, as long as torch holds no more here.
    """
    for device, look in list(_looks.items()):
        if look.lasts_s == RECENT_S or _held_bytes(device)[0] > look.held:
            del _looks[device]


def look_at_free_bytes(device: torch.device) -> int:
    """Give the memory of a GPU that no process holds now."""
    free, total = torch.cuda.mem_get_info(device)
    lasts_s = ROOMY_S if 2 * free > total else RECENT_S
    _looks[device] = Look(time.monotonic(), int(free), lasts_s, _held_bytes(device)[0])
    _most_free[device] = max(int(free), _most_free.get(device, 0))
    return int(free)


def most_free_bytes(device: torch.device) -> int:
    """Give the largest memory of a GPU that a look of this process found free."""
    return _most_free.get(device, 0)


def cached_bytes(device: torch.device) -> int:
    """Give the memory of a GPU that torch holds in this process for no tensor."""
    held, used = _held_bytes(device)
    return held - used


def _held_bytes(device: torch.device) -> tuple[int, int]:
    """Return the bytes of a GPU that torch holds in this process, and those that tensors have of them.

    `torch.cuda.memory_reserved` sorts 160 figures for one of them, which takes a third of a millisecond.
    """
    figures = torch.cuda.memory_stats_as_nested_dict(device)
    names = ("reserved_bytes", "allocated_bytes")
    held, used = (figures[name]["all"]["current"] if figures else 0 for name in names)
    return int(held), int(used)


def free_bytes(device: torch.device) -> int:
    """Give the memory that can be allocated on the device now."""
    if device.type == "cuda":
        return look_at_free_bytes(device) + cached_bytes(device)
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return min(int(fields["MemAvailable"].split()[0]) * 1024, usable_memory())
    return total_bytes(device) // 2


def bytes_of(values: Iterable[Any]) -> int:
    """Give the memory of all tensors among the values."""
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
