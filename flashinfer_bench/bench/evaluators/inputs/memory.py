"""How much memory a device has. It decides how many sets of inputs are kept and which are refused as too large."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from flashinfer_bench.base.host import usable_memory


def total_bytes(device: torch.device) -> int:
    """Give all memory of the device, used and free."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1])
    return usable_memory()


def free_bytes(device: torch.device) -> int:
    """Give the memory that can be allocated on the device now."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return min(int(fields["MemAvailable"].split()[0]) * 1024, usable_memory())
    return total_bytes(device) // 2


def bytes_of(values: Iterable[Any]) -> int:
    """Give the memory of all tensors among the values."""
    return sum(value.numel() * value.element_size() for value in values if isinstance(value, torch.Tensor))
