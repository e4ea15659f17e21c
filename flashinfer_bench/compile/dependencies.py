"""The packages that a solution says it depends on (`triton >= 2.3`, `torch`, `cublas`), and whether they are installed.

The solution is not blamed for a package that is missing or too old. Text that names no package ("any recent driver") is
ignored: in doubt a solution runs.
"""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from flashinfer_bench.compile.toolchain import Toolchain, find_package
from flashinfer_bench.compile.toolkit import LIBRARIES, is_in

DISTRIBUTIONS: Final = {
    "pytorch": "torch",
    "flashinfer": "flashinfer-python",
    "tvm-ffi": "apache-tvm-ffi",
    "cutlass": "nvidia-cutlass-dsl",
    "cute": "nvidia-cutlass-dsl",
    "cute-dsl": "nvidia-cutlass-dsl",
    "cutedsl": "nvidia-cutlass-dsl",
    "cutile": "cuda-tile",
    "cudnn": "nvidia-cudnn-frontend",
    "cupti": "cupti-python",
}
"""A name that people write → the package that has it."""
MODULES: Final = {"nvidia-cutlass-dsl": "cutlass", "nvidia-cudnn-frontend": "cudnn", "flashinfer-python": "flashinfer"}
CUTLASS: Final = frozenset({"cutlass", "cute", "nvidia-cutlass"})
TOOLKIT: Final = frozenset({"cuda", "cudatoolkit", "cuda-toolkit", "nvcc"})
COMPILERS: Final = frozenset({"gcc", "clang", "cpp", "cmake", "ninja", "make"})
"""Words for a compiler. They are not looked up: the solution's language says already which compiler it needs."""
TOOLKIT_HEADERS: Final = {
    **{library.name: library.header for library in LIBRARIES},
    "cublaslt": "cublasLt.h",
    "cudnn": "cudnn.h",
    "cub": "cub/cub.cuh",
    "thrust": "thrust/version.h",
}
"""A library that comes with the toolkit, or with a package of NVIDIA's → a header that it has."""

Versions = Callable[[str], str | None]
"""Returns the version of a distribution: "" where the version is unknown, None where it is not installed."""


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package; "" where it has none to tell; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        module = MODULES.get(distribution, distribution.replace("-", "_"))
    try:
        return "" if importlib.util.find_spec(module) is not None else None
    except (ImportError, ValueError):
        return None


def find_missing(
    dependencies: Iterable[str],
    toolchain: Toolchain,
    *,
    is_compiled: bool,
    versions: Versions = installed_version,
    environment: Mapping[str, str] = os.environ,
) -> list[str]:
    """Return a line for each dependency that is not met. It says what is there, and what to install."""
    found = (_why_missing(text, toolchain, versions, environment, is_compiled=is_compiled) for text in dependencies)
    return [reason for reason in found if reason is not None]


def cutlass_includes(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the folders of CUTLASS's headers: from $CUTLASS_PATH, else nvidia-cutlass, else FlashInfer's copy."""
    homes = [Path(environment["CUTLASS_PATH"])] if environment.get("CUTLASS_PATH") else []
    for package, inner in (("cutlass_library", "source"), ("flashinfer", "data/cutlass")):
        folder = find_package(package)
        if folder is not None:
            homes.append(folder / inner)
    for home in homes:
        if (home / "include" / "cutlass" / "cutlass.h").is_file():
            return [folder for folder in (home / "include", home / "tools" / "util" / "include") if folder.is_dir()]
    return []


def wants_cutlass(dependencies: Iterable[str]) -> bool:
    """Tell whether a compiled solution names CUTLASS."""
    parsed = (_parse(text) for text in dependencies)
    return any(requirement is not None and canonicalize_name(requirement.name) in CUTLASS for requirement in parsed)


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text.strip())
    except InvalidRequirement:
        return None


def _why_missing(
    text: str, toolchain: Toolchain, versions: Versions, environment: Mapping[str, str], *, is_compiled: bool
) -> str | None:
    requirement = _parse(text)
    if requirement is None or (requirement.marker is not None and not requirement.marker.evaluate()):
        return None
    name = canonicalize_name(requirement.name)
    if name in COMPILERS:
        return None
    if name == "python":
        return _hold(requirement, platform.python_version(), "run it with that Python")
    if name in TOOLKIT:
        version = ".".join(map(str, toolchain.cuda.version)) if toolchain.cuda else None
        return _hold(requirement, version, "install the CUDA toolkit, or set CUDA_HOME to it")
    if is_compiled and name in CUTLASS:
        there = "" if cutlass_includes(environment) else None
        return _hold(requirement, there, "pip install nvidia-cutlass, or set CUTLASS_PATH to its sources")
    if is_compiled and name in TOOLKIT_HEADERS:
        there = "" if _has_header(toolchain, TOOLKIT_HEADERS[name]) else None
        return _hold(requirement, there, "it comes with the CUDA toolkit, or with NVIDIA's pip packages")
    distribution = DISTRIBUTIONS.get(name, name)
    return _hold(requirement, versions(distribution), f"pip install '{distribution}{requirement.specifier}'")


def _hold(requirement: Requirement, version: str | None, remedy: str) -> str | None:
    """Return why an installed version does not meet a requirement; a version of None means not installed."""
    if version is None:
        return f"it needs {requirement}, which is not installed; try: {remedy}"
    try:
        fits = version == "" or requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = True
    return None if fits else f"it needs {requirement}, and {version} is installed; try: {remedy}"


def _has_header(toolchain: Toolchain, header: str) -> bool:
    folders = [toolchain.cuda.include, toolchain.cuda.include / "cccl"] if toolchain.cuda else []
    folders += [package / "include" for package in toolchain.nvidia_packages]
    return is_in(header, folders)
