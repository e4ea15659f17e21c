"""Which GPU architectures there are, which nvcc knows them, and what code for one runs on another. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

FIRST_TOOLKIT: Final = {
    "80": (11, 0),
    "86": (11, 1),
    "87": (11, 4),
    "89": (11, 8),
    "90": (11, 8),
    "90a": (12, 0),
    "100a": (12, 8),
    "101a": (12, 8),
    "103a": (12, 9),
    "120a": (12, 8),
    "121a": (12, 9),
}
"""Architecture → the first CUDA toolkit that compiles for it (NVIDIA's release notes)."""
OLDEST_OF_CUDA_13: Final = 75
"""CUDA 13 does not compile for GPUs of a lower compute capability than this (7.5)."""
NAMED: Final = re.compile(r"(sm|compute|lto)_(\d+)([af]?)")


def why_too_old(version: tuple[int, int], architectures: Iterable[str]) -> str | None:
    """Return why a toolkit of this version cannot compile for these architectures, None where it can."""
    for name in architectures:
        first = FIRST_TOOLKIT.get(name, (0, 0))
        if version < first:
            wanted, there = ".".join(map(str, first)), ".".join(map(str, version))
            return f"CUDA {there} cannot compile for sm_{name}; install CUDA {wanted} or newer"
        if version >= (13, 0) and int(name.rstrip("af")) < OLDEST_OF_CUDA_13:
            return f"CUDA {version[0]}.{version[1]} no longer compiles for sm_{name}; install CUDA 12"
    return None


def chosen_targets(flags: Iterable[str]) -> list[str]:
    """Return the targets that a solution's own nvcc flags name ("sm_90a", "compute_80"); none where they name none.

    `-arch=sm_80` alone makes machine code and PTX, which the driver finishes for the GPU. So it stands for both.
    """
    targets: list[str] = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name == "-gencode":
            targets += [found[0] for found in NAMED.finditer(value.partition("code=")[2])]
        elif name in ("-arch", "--gpu-architecture") and NAMED.fullmatch(value):
            targets += [value, value.replace("sm_", "compute_")]
    return list(dict.fromkeys(targets))


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Tell whether code for a target runs on a GPU of this compute capability."""
    found = NAMED.fullmatch(target)
    if found is None:
        return True
    kind, number, suffix = found.groups()
    major, minor = int(number[:-1]), int(number[-1])
    if suffix == "a":
        return (major, minor) == capability
    if suffix == "f" or kind == "sm":
        return major == capability[0] and minor <= capability[1]
    return (major, minor) <= capability
