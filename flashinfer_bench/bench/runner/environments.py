"""Which variables of the environment reach whom: a device session, its workers, a solution in one of them.

A program that fills FlashInfer's folder of kernels gets the compiler variables that a worker gets. Under other names of
compilers the library would compile each kernel again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.machine import Device

PACKAGE: Final = Path(__file__).parents[2]
SECRET_MARKS: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "_KEY", "AUTH")
"""A variable whose name has one of these words does not reach a session. So no worker can read it."""
SECRET_VALUE: Final = re.compile(r"://[^/\s@]*:[^/\s@]*@")
"""Nor does a variable whose value has a password in an address."""
MOST_RECORDED: Final = 200
"""Characters of a value that a trace has."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES_PATHS: Final = _split("""
CC CXX CUDACXX CUDAHOSTCXX PYTORCH_NVCC CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH CUDA_HOME
CUDA_PATH CUDNN_HOME CUDNN_PATH CUTLASS_PATH CUTE_DSL_LIBS NVCC_CCBIN NVCC_PREPEND_PATH TRITON_*_PATH
FLASHINFER_CUBIN_DIR FLASHINFER_NVCC
""")
"""Variables of compilers whose values name programs, files and folders, which workers with walls may read. As in the
lists below `*` stands for any characters."""
RECORDED: Final = _split("""
CUBLAS_* CUBLASLT_* CUDNN_* NVIDIA_TF32_OVERRIDE PYTORCH_* TORCHINDUCTOR_* TORCHDYNAMO_* TRITON_*
""")
"""Settings that may change what is computed, by solutions and references alike. So a trace has those that are set."""
SETTINGS: Final = _split("""
PATH LANG LC_ALL TZ MAX_JOBS CUDA_* NVCC_* NVIDIA_* CUPTI_* TORCH_* FLASHINFER_* TVM_* TILELANG_* CUTE_* CUTLASS_* DG_*
NUMBA_* CUPY_* OMP_* KMP_* MKL_* OPENBLAS_*
""")
PASSED_ON: Final = (*NAMES_PATHS, *RECORDED, *SETTINGS)
"""What a worker sees of the user's environment. docs/building.md lists it."""
WITHHELD: Final = {
    "*_CACHE_DIR": "each solution has a folder of its own",
    "*_CACHE_PATH": "each solution has a folder of its own",
    "*_DUMP_DIR": "solutions write to folders of their own only",
    "*_OVERRIDE_DIR": "solutions read no folder in which kernels may be kept",
    "TORCH_EXTENSIONS_DIR": "each solution has a folder of its own",
    "TRITON_HOME": "each solution has a folder of its own",
    "TORCHINDUCTOR_COMPILE_THREADS": "torch.compile compiles in the worker, without a pool of processes",
    "LD_PRELOAD": "the engine's processes have loaded it, and what a solution starts has not",
}
"""Variables that do not reach workers, whatever else is said of them → why."""


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
    own = {name: value for name, value in environment.items() if not _is_secret(name, value)}
    package_parent = str(PACKAGE.parent)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH")]))
    own["PYTHONSAFEPATH"] = "1"
    if kind == "cpu":
        own.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin in the session would hold up the worker's
    return own


def worker_environment(environment: Mapping[str, str], cache_root: Path) -> dict[str, str]:
    """Return what a worker sees of a session's environment, its own folder aside.

    FlashInfer compiles its kernels for minutes. So without walls all solutions share its folder, and one of them could
    harm it. With walls each solution has a layer of its own over `library_folder` (`workers/sandbox_policy.py`).
    """
    kept = {name: value for name, value in environment.items() if is_passed_on(name)}
    if _why_no_program(kept) is not None:
        del kept["CC"]
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


@cache
def is_passed_on(name: str) -> bool:
    """Tell whether a variable of the user's reaches workers."""
    return _why_withheld(name) is None and _is_among(name, PASSED_ON)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _why_withheld(name: str) -> str | None:
    return next((why for pattern, why in WITHHELD.items() if fnmatchcase(name, pattern)), None)


def _why_no_program(environment: Mapping[str, str]) -> str | None:
    """Return why $CC cannot be passed on: Triton takes it for the path of one program."""
    if "CC" not in environment or shutil.which(environment["CC"], path=environment.get("PATH")) is not None:
        return None
    return "it has to name one program, and `ccache gcc` would fail each build of Triton's"


def _is_secret(name: str, value: str) -> bool:
    return any(mark in name.upper() for mark in SECRET_MARKS) or SECRET_VALUE.search(value) is not None


def tell_withheld(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each variable for compilers and libraries that the user set, and that reaches no solution."""
    found = {name: _why_withheld(name) for name in sorted(environment) if _is_among(name, (*PASSED_ON, "LD_PRELOAD"))}
    found["CC"] = _why_no_program(environment)
    return [f"variable {name} is not passed on to solutions: {why}" for name, why in found.items() if why is not None]


def named_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the programs, files and folders that variables for workers name, as they stand there."""
    values = [value for name, value in environment.items() if _is_among(name, NAMES_PATHS) and is_passed_on(name)]
    return [part for value in values for part in value.split(os.pathsep) if part]


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set and may change what is computed, which a trace tells."""
    return {
        name: value[:MOST_RECORDED]
        for name, value in sorted(environment.items())
        if _is_among(name, RECORDED) and not _is_among(name, NAMES_PATHS)
        if is_passed_on(name) and not _is_secret(name, value)
    }


def solution_environment(own: Path) -> dict[str, str]:
    """Return where a solution's compilers at run time keep what they make, in a folder of its own."""
    return {"TRITON_CACHE_DIR": str(own / "triton"), "TORCH_EXTENSIONS_DIR": str(own / "torch")}
