"""What a place finds out about itself: its device, how far it confines workers, what it can build."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

from flashinfer_bench import __version__
from flashinfer_bench.bench.machine import Device, discover_devices
from flashinfer_bench.bench.runner.sandbox import Level, find_sandbox
from flashinfer_bench.cluster.words import PlaceFacts
from flashinfer_bench.compile import find_toolchain, find_unavailable_languages, why_not_buildable
from flashinfer_bench.data import Solution
from flashinfer_bench.env import cache_root
from flashinfer_bench.errors import DeviceFault


def find_device(kind: str, index: int | None) -> Device:
    """Return the one device that this process was given.

    Args:
        kind: "cpu" or "cuda".
        index: the GPU's number on its node; it tells places of one node apart.

    Raises:
        DeviceFault: there is none, or there are several.
    """
    if kind == "cpu":
        return discover_devices(["cpu"])[0]
    found = [device for device in discover_devices(None) if device.kind == "cuda"]
    if len(found) != 1:
        raise DeviceFault(f"an actor was to see one GPU, and sees {len(found)}; is torch a CUDA build there?")
    return replace(found[0], index=found[0].index if index is None else index)


def describe_place(device: Device, level: Level, cache: str | None, hidden: Iterable[str]) -> PlaceFacts:
    """Return what the host has to know of this place.

    Args:
        device: the place's.
        level: how far workers are to be confined.
        cache: the folder for what is built; None for the node's own.
        hidden: names of folders in it that no worker reads.

    Raises:
        ConfigError: the sandbox is to be strict, and cannot be had here.
    """
    folder = Path(cache or cache_root(os.environ)).resolve()
    return PlaceFacts(
        kind=device.kind,
        index=device.index,
        hardware=device.name,
        uuid=device.uuid,
        capability=device.capability,
        pci_rank=device.pci_rank,
        version=__version__,
        cache_root=str(folder),
        sandbox=asdict(find_sandbox(level, folder)),
        languages=find_unavailable_languages(find_toolchain()),
        hidden=[str(folder / name) for name in hidden],
    )


def why_not_built_here(device: Device, solutions: Iterable[Solution]) -> list[str | None]:
    """Return what this node lacks for each solution; None where nothing is missing."""
    toolchain = find_toolchain()
    capabilities = [device.capability] if device.capability is not None else []
    return [why_not_buildable(solution, toolchain, capabilities) for solution in solutions]
