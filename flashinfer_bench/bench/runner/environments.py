"""Which variables of the environment reach whom: a device session, its workers, a solution in one of them.

A program that fills FlashInfer's folder of kernels gets the compiler variables that a worker gets. Under other names of
compilers the library would compile each kernel again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.machine import Device

PACKAGE: Final = Path(__file__).parents[2]
SECRET_MARKS: Final = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "API_KEY", "AUTH")
"""A variable whose name has one of these words does not reach a session. So no worker can read it."""
PASSED_ON: Final = (
    *("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "LIBRARY_PATH", "TRITON_INTERPRET"),
    *("CC", "CXX", "CUDAHOSTCXX", "PYTORCH_NVCC", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
)
PASSED_ON_PREFIXES: Final = ("CUDA_", "NVCC_", "NVIDIA_", "OMP_", "MKL_", "TORCH_", "FLASHINFER_", "CUPTI_")
"""What a worker sees of the user's environment: where compilers and libraries are, and settings of devices."""


def session_environment(environment: Mapping[str, str], device: Device, *, interpret_triton: bool) -> dict[str, str]:
    """Return the environment in which a session of this device is started."""
    own = starter_environment(environment, device.kind)
    if device.kind == "cuda":
        own["CUDA_VISIBLE_DEVICES"] = device.uuid
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        own.pop("TRITON_INTERPRET", None)
    else:
        own["CUDA_VISIBLE_DEVICES"] = ""
        if interpret_triton:
            own["TRITON_INTERPRET"] = "1"
    return own


def starter_environment(environment: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the environment of the process that sessions for devices of this kind are forked from."""
    own = {name: value for name, value in environment.items() if not any(mark in name.upper() for mark in SECRET_MARKS)}
    package_parent = str(PACKAGE.parent)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH")]))
    own["PYTHONSAFEPATH"] = "1"
    if kind == "cpu":
        own.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin in the session would hold up the worker's
    return own


def worker_environment(environment: Mapping[str, str], cache_root: Path) -> dict[str, str]:
    """Return what a worker sees of a session's environment, its own folder aside.

    FlashInfer compiles its kernels for minutes. So without walls all solutions share its folder, and one of them could
    harm it. With walls each solution has a layer of its own over `library_folder` (`workers/enclosure.py`).
    """
    kept = {name: value for name, value in environment.items() if is_passed_on(name)}
    if "CC" in kept and shutil.which(kept["CC"], path=kept.get("PATH")) is None:
        del kept["CC"]  # Triton takes it for the path of one program; `ccache gcc` would fail every launcher's build
    return {"FLASHINFER_WORKSPACE_BASE": str(cache_root / "jit"), **kept}


def library_folder(environment: Mapping[str, str], cache_root: Path) -> Path:
    """Return FlashInfer's folder of modules that are compiled ahead. Workers with walls read it, and never write it."""
    return Path(environment.get("FLASHINFER_WORKSPACE_BASE") or cache_root / "modules")


def ahead_environment(
    environment: Mapping[str, str], device: Device, cache_root: Path, *, for_walls: bool = False
) -> dict[str, str]:
    """Return the environment of a program that calls solutions ahead: a session's, but a worker's view of compilers.

    Args:
        environment: the user's.
        device: what the program may use.
        cache_root: the folder of what is built.
        for_walls: workers have walls, and read what the program compiles.
    """
    session = session_environment(environment, device, interpret_triton=False)
    others = {name: value for name, value in session.items() if not is_passed_on(name)}
    library = {"FLASHINFER_WORKSPACE_BASE": str(library_folder(environment, cache_root))} if for_walls else {}
    return {**others, **worker_environment(session, cache_root), **library}


def is_passed_on(name: str) -> bool:
    """Tell whether a variable of the user's reaches workers."""
    return name in PASSED_ON or name.startswith(PASSED_ON_PREFIXES)


def solution_folder(cache_root: Path, digest: str) -> Path:
    """Return a folder that no other solution is given."""
    return cache_root / "jit" / digest[:2] / digest


def solution_environment(own: Path) -> dict[str, str]:
    """Return where a solution's compilers at run time keep what they make, in a folder of its own."""
    return {"TRITON_CACHE_DIR": str(own / "triton"), "TORCH_EXTENSIONS_DIR": str(own / "torch")}
