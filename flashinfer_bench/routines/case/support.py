"""Decides which backends can run on this machine, by compute capability and installed packages. No package is imported.

Each routine declares its part of the support matrix. This module finds why a backend cannot run here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Final

from flashinfer_bench.base.install import install_hint
from flashinfer_bench.compile.requirements import is_installed
from flashinfer_bench.routines.case.spec import HOPPER, TORCH, Case, Routine

LIBRARY: Final = "flashinfer-python"
NEEDS: Final[Mapping[str, tuple[str, str]]] = {
    "cudnn": ("cudnn", "nvidia-cudnn-frontend"),
    "cudnn-native": ("cudnn", "nvidia-cudnn-frontend"),
    **dict.fromkeys(
        ("cute-dsl", "tgv", "b12x", "radix", "gvr", "cudsl", "prims-ts", "unified-cute-dsl", "gdn", "kda"),
        ("cutlass", "nvidia-cutlass-dsl"),
    ),
    "cutile": ("cuda.tile", "cuda-tile"),
}
"""Backend, or a family whose backends all need it → the imported module, and the package with this module."""
PACKAGES: Final = (LIBRARY, "torch", "nvidia-cudnn-frontend", "nvidia-cutlass-dsl", "triton", "cupti-python")
"""Packages whose versions are in the JSON lines."""


@dataclass(frozen=True)
class Platform:
    """The device of the cases, and the installed packages."""

    device: str
    """The vendor's name of the device."""
    capability: str | None
    """Compute capability, such as "9.0"; None on a CPU."""
    versions: Mapping[str, str]
    """Installed package → its version."""
    modules: frozenset[str]
    """The importable modules among flashinfer and the modules in `NEEDS`."""


def find_platform(device: str, capability: tuple[int, int] | None) -> Platform:
    """Return the platform of this machine.

    Args:
        device: the device's name.
        capability: the device's compute capability; None for the CPU.
    """
    wanted = ("flashinfer", *(module for module, _ in NEEDS.values()))
    return Platform(
        device=device,
        capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        versions={name: version for name in PACKAGES if (version := _version(name)) is not None},
        modules=frozenset(filter(is_installed, wanted)),
    )


def why_not(routine: Routine, backend: str, platform: Platform, case: Case) -> str | None:
    """Return why a backend cannot run a case here; None if the backend can."""
    subject = f"{backend} for routine {routine.name}"
    module, package = NEEDS.get(backend) or NEEDS.get(routine.family, ("flashinfer", LIBRARY))
    if backend == TORCH:
        return None
    if backend in case.refusals:
        return f"{subject}: {case.refusals[backend]}"
    if platform.capability is None:
        return f"{subject} needs an NVIDIA GPU; this machine has none that can be used"
    if platform.capability not in routine.support[backend]:
        return f"{subject} is not supported on compute capability {platform.capability}"
    if "flashinfer" not in platform.modules:
        return f"{subject} needs {LIBRARY}, which is not installed; {install_hint('cuda')}"
    return None if module in platform.modules else f"{subject} needs {package}, which is not installed"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def resolve_backend(routine: str, backend: str, case: Case, capability: str | None) -> str:
    """Return the library's backend for `auto`; return any other name unchanged.

    In GEMM routines and in MLA the name stays, because the library decides in the call. In attention, our call
    (`code/attention_flashinfer.py`) requests tensor cores for decoding. The library then takes the prefill kernels of
    fa2. Prefill takes fa3 on compute capability 9.0 if fa3 can run the case. All other cases take fa2.
    """
    if backend != "auto" or capability is None or "kv_cache" not in case.inputs or "MLA" in routine:
        return backend
    if "Decode" in routine:
        return "fa2_tc"
    return "fa3" if capability in HOPPER and "fa3" not in case.refusals else "fa2"
