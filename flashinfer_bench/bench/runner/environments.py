"""The environment variables that reach a device session, its workers, and a solution in a worker.

A program that fills FlashInfer's folder of kernels gets the same compiler variables as a worker. If the compilers'
names differed, the library would compile each kernel again.
"""

from __future__ import annotations

import os
import re
import shutil
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Final

from flashinfer_bench.bench.machine import Device

PACKAGE: Final = Path(__file__).parents[2]
SECRET_MARKS: Final = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "API_KEY", "_KEY", "AUTH")
"""A variable with one of these words in its name is secret: it does not reach a session or a worker."""
SECRET_VALUE: Final = re.compile(r"://[^/\s@]*:[^/\s@]*@")
"""Matches a value with a password in a URL. A variable with such a value is secret, too."""
MOST_RECORDED: Final = 200
"""Maximum characters of a variable's value in a trace. Longer values are cut."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES_PATHS: Final = _split("""
CC CXX CUDACXX CUDAHOSTCXX PYTORCH_NVCC CPATH C_INCLUDE_PATH CPLUS_INCLUDE_PATH LIBRARY_PATH LD_LIBRARY_PATH CUDA_HOME
CUDA_PATH CUDNN_HOME CUDNN_PATH CUTLASS_PATH CUTE_DSL_LIBS NVCC_CCBIN NVCC_PREPEND_PATH TRITON_*_PATH
FLASHINFER_CUBIN_DIR FLASHINFER_NVCC
""")
"""Variables of compilers whose values name programs, files and folders. Workers in a sandbox may read the named files.
In this list and the lists below `*` stands for any characters."""
RECORDED: Final = _split("""
CUBLAS_* CUBLASLT_* CUDNN_* NVIDIA_TF32_OVERRIDE PYTORCH_* TORCHINDUCTOR_* TORCHDYNAMO_* TRITON_*
""")
"""Settings that can change results of solutions and references. A trace records each variable that is set."""
SETTINGS: Final = _split("""
PATH LANG LC_ALL TZ MAX_JOBS CUDA_* NVCC_* NVIDIA_* CUPTI_* TORCH_* FLASHINFER_* TVM_* TILELANG_* CUTE_* CUTLASS_* DG_*
NUMBA_* CUPY_* OMP_* KMP_* MKL_* OPENBLAS_*
""")
PASSED_ON: Final = (*NAMES_PATHS, *RECORDED, *SETTINGS)
"""Variables of the user that reach a worker. docs/building.md lists them."""
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
"""Variables that never reach workers → why."""


def session_environment(environment: Mapping[str, str], device: Device, *, interpret_triton: bool) -> dict[str, str]:
    """Return the environment in which a session of this device is started."""
    own = server_environment(environment, device.kind)
    if device.kind == "cuda":
        own["CUDA_VISIBLE_DEVICES"] = device.uuid
        own["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        own.pop("TRITON_INTERPRET", None)
    else:
        own["CUDA_VISIBLE_DEVICES"] = ""
        if interpret_triton:
            own["TRITON_INTERPRET"] = "1"
    return own


def server_environment(environment: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the environment of the fork server that starts sessions on devices of this kind."""
    own = {name: value for name, value in environment.items() if not _is_secret(name, value)}
    package_parent = str(PACKAGE.parent)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [package_parent, environment.get("PYTHONPATH")]))
    own["PYTHONSAFEPATH"] = "1"
    # A virtual environment that is not activated may have ninja.
    own["PATH"] = os.pathsep.join([environment.get("PATH", os.defpath), sysconfig.get_path("scripts")])
    if kind == "cpu":
        own.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads in the session would delay the worker's threads
    return own


def worker_environment(environment: Mapping[str, str], cache_root: Path) -> dict[str, str]:
    """Return the session's variables that reach a worker, without variables that name the worker's own folders.

    FlashInfer compiles its kernels for minutes. So without a sandbox all solutions share FlashInfer's folder, and each
    solution could damage the folder. In a sandbox each solution has a private overlay over `library_folder`
    (`workers/sandbox_policy.py`).
    """
    kept = {name: value for name, value in environment.items() if is_passed_on(name)}
    if _why_no_program(kept) is not None:
        del kept["CC"]
    return {"FLASHINFER_WORKSPACE_BASE": str(cache_root / "jit"), **kept}


def library_folder(environment: Mapping[str, str], cache_root: Path) -> Path:
    """Return FlashInfer's folder of modules compiled ahead. Workers in a sandbox can only read it."""
    return Path(environment.get("FLASHINFER_WORKSPACE_BASE") or cache_root / "modules")


def ahead_environment(
    environment: Mapping[str, str], device: Device, cache_root: Path, *, for_sandbox: bool = False
) -> dict[str, str]:
    """Return the environment of a program that calls solutions before a run, so that their modules are compiled.

    The result is a session's environment with a worker's compiler variables.

    Args:
        environment: the user's environment.
        device: the device that the program can use.
        cache_root: folder of the build results.
        for_sandbox: workers are in a sandbox, and read the program's build results.
    """
    session = session_environment(environment, device, interpret_triton=False)
    others = {name: value for name, value in session.items() if not is_passed_on(name)}
    library = {"FLASHINFER_WORKSPACE_BASE": str(library_folder(environment, cache_root))} if for_sandbox else {}
    return {**others, **worker_environment(session, cache_root), **library}


@cache
def is_passed_on(name: str) -> bool:
    """Return whether a user's variable reaches workers."""
    return _why_withheld(name) is None and _is_among(name, PASSED_ON)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _why_withheld(name: str) -> str | None:
    return next((why for pattern, why in WITHHELD.items() if fnmatchcase(name, pattern)), None)


def _why_no_program(environment: Mapping[str, str]) -> str | None:
    """Return why $CC cannot be passed on; None if it can. Triton takes the value as the path of one program."""
    if "CC" not in environment or shutil.which(environment["CC"], path=environment.get("PATH")) is not None:
        return None
    return "it has to name one program, and `ccache gcc` would fail each build of Triton's"


def _is_secret(name: str, value: str) -> bool:
    return any(mark in name.upper() for mark in SECRET_MARKS) or SECRET_VALUE.search(value) is not None


def tell_withheld(environment: Mapping[str, str]) -> list[str]:
    """Return a line for each compiler or library variable of the user that reaches no solution.

    `torch.compile` sets variables of its own folder in the process that calls it. The user did not set them.
    """
    of_torch = f"{tempfile.gettempdir()}/torchinductor_"
    of_user = [name for name, value in sorted(environment.items()) if not value.startswith(of_torch)]
    found = {name: _why_withheld(name) for name in of_user if _is_among(name, (*PASSED_ON, "LD_PRELOAD"))}
    found["CC"] = _why_no_program(environment)
    return [f"variable {name} is not passed on to solutions: {why}" for name, why in found.items() if why is not None]


def named_paths(environment: Mapping[str, str]) -> list[str]:
    """Return the paths, unresolved, of programs, files and folders that are named by variables for workers."""
    values = [value for name, value in environment.items() if _is_among(name, NAMES_PATHS) and is_passed_on(name)]
    return [part for value in values for part in value.split(os.pathsep) if part]


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are set and can change results, for the trace."""
    return {
        name: value[:MOST_RECORDED]
        for name, value in sorted(environment.items())
        if _is_among(name, RECORDED) and not _is_among(name, NAMES_PATHS)
        if is_passed_on(name) and not _is_secret(name, value)
    }
