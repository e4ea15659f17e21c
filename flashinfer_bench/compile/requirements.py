"""A solution's requirements that this machine lacks, with the package to install. Nothing is run here.

A solution is not blamed if the machine lacks a compiler, a package, a library of the CUDA toolkit, or a toolkit or GPU
for the architecture. `why_not_buildable` checks before a build, `find_lacked` reads a failed compiler's output. A
dependency that names no package ("any recent driver") is ignored: in doubt a solution runs.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from flashinfer_bench.compile.artifact import BuildFailure
from flashinfer_bench.compile.flags import check_flags
from flashinfer_bench.compile.toolchain import CudaToolkit, Toolchain, find_package
from flashinfer_bench.data import Solution, SupportedBindings, SupportedLanguages
from flashinfer_bench.data.entry import find_binding
from flashinfer_bench.data.languages import Language

DISTRIBUTIONS: Final = {
    "pytorch": "torch",
    "flashinfer": "flashinfer-python",
    "tvm-ffi": "apache-tvm-ffi",
    **dict.fromkeys(("cutlass", "cute", "cute-dsl", "cutedsl"), "nvidia-cutlass-dsl"),
    "cutile": "cuda-tile",
    "cudnn": "nvidia-cudnn-frontend",
    "cupti": "cupti-python",
}
"""Name that people write in a dependency → name of the package to install."""
MODULES: Final = {
    "nvidia-cutlass-dsl": "cutlass",
    "cuda-tile": "cuda.tile",
    "nvidia-cudnn-frontend": "cudnn",
    "flashinfer-python": "flashinfer",
}
CUTLASS: Final = ("cutlass", "cute", "nvidia-cutlass")
TOOLKIT: Final = ("cuda", "cudatoolkit", "cuda-toolkit", "nvcc")
COMPILERS: Final = ("gcc", "clang", "cpp", "cmake", "make")
"""Words for a compiler. They are not checked, since the solution's language implies the compiler."""


class ToolkitLibrary(NamedTuple):
    """A library of the CUDA toolkit that a machine may lack though it has nvcc."""

    header: str
    """A header that every installation of the library has."""
    headers: str
    """Pattern of all its headers, as `#include` names them."""
    package: str
    """NVIDIA's package on PyPI, after "nvidia-"."""


LIBRARIES: Final = {
    "cublas": ToolkitLibrary("cublas_v2.h", r"cublas(_v2|_api|Lt|Xt)?\.h", "cublas"),
    "cusparse": ToolkitLibrary("cusparse.h", r"cusparse(_v2)?\.h", "cusparse"),
    "cusolver": ToolkitLibrary("cusolverDn.h", r"cusolver(Dn|_common|Sp|Rf|Mg)\.h", "cusolver"),
    "curand": ToolkitLibrary("curand.h", r"curand(_kernel)?\.h", "curand"),
    "cufft": ToolkitLibrary("cufft.h", r"cufft(Xt|w)?\.h", "cufft"),
    "nvrtc": ToolkitLibrary("nvrtc.h", r"nvrtc\.h", "cuda-nvrtc"),
    "nvJitLink": ToolkitLibrary("nvJitLink.h", r"nvJitLink\.h", "nvjitlink"),
    "cccl": ToolkitLibrary("cub/cub.cuh", r"(cub|thrust)/.+", "cuda-cccl"),
    "nvtx": ToolkitLibrary("nvtx3/nvToolsExt.h", r"(nvtx3/)?nvToolsExt\.h", "nvtx"),
}
"""Name without `lib` → library."""
FURTHER_HEADERS: Final = {
    "cublaslt": "cublasLt.h",
    "cudnn": "cudnn.h",
    "cub": "cub/cub.cuh",
    "thrust": "thrust/version.h",
}
"""Name of a further library in a dependency → a header of that library."""
PIP_SUFFIX: Final = {11: "-cu11", 12: "-cu12"}
LACKS: Final = (
    re.compile(r"fatal error: ([\w./+\-]+): No such file"),
    re.compile(r"(?:cannot|could not) open source file \"([\w./+\-]+)\""),
    re.compile(r"^\S*ld(?:\.\w+)?: cannot find -l(\w+)", re.MULTILINE),
)
"""How g++, nvcc and ld report a file that they lack."""
NAMED: Final = re.compile(r"(sm|compute|lto)_(\d+)([af]?)")


def is_installed(package: str) -> bool:
    """Return whether a Python package is installed. Only its parents are imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):  # a parent is missing, or a loaded module has no spec
        return False


def find_unavailable_languages(toolchain: Toolchain) -> dict[str, str | None]:
    """Return each language that solutions may name → why it cannot be built here, or None if it can."""
    return {language.value: _why_unavailable(language.record, toolchain) for language in SupportedLanguages}


def _why_unavailable(record: Language, toolchain: Toolchain) -> str | None:
    missing = find_missing(record.dependencies, toolchain, is_compiled=record.is_compiled)
    if missing:
        return "; ".join(missing)
    if record.package is not None and not is_installed(record.package):
        return f"{record.package} is not installed; try: pip install {record.package}"
    if record.requires_cuda and toolchain.cuda is None:
        return "there is no nvcc; install the CUDA toolkit, or set CUDA_HOME to it"
    if record.is_compiled and toolchain.cxx is None:
        return "there is no C++ compiler; install g++ (apt-get install g++), or name one in CXX"
    if record.program is not None and not has_program(record.program, toolchain):
        return f"there is no {record.program}; install a CUDA toolkit that has it, or its pip package"
    return None


def has_program(program: str, toolchain: Toolchain) -> bool:
    """Return whether a program is on the path, in the CUDA toolkit, or in one of NVIDIA's pip packages."""
    homes = [*([toolchain.cuda.home] if toolchain.cuda else []), *toolchain.nvidia_packages]
    folders = [os.environ.get("PATH", ""), *(str(home / "bin") for home in homes)]
    return shutil.which(program, path=os.pathsep.join(folders)) is not None


def why_not_buildable(
    solution: Solution, toolchain: Toolchain, capabilities: Sequence[tuple[int, int]] = ()
) -> str | None:
    """Return what this machine lacks for a solution, and what to install; None if nothing is missing.

    Args:
        capabilities: the compute capabilities of the GPUs that run it; empty if the solution is only compiled.
    """
    record = solution.spec.language.record
    reason = _why_unavailable(record, toolchain)
    if reason is not None:
        return reason
    missing = find_missing(solution.spec.dependencies, toolchain, is_compiled=record.is_compiled)
    if missing or not record.is_compiled:
        return "; ".join(missing) or None
    if find_binding(solution).binding is SupportedBindings.TVM_FFI:
        if toolchain.tvm_ffi is None:
            return "binding tvm-ffi: apache-tvm-ffi is not installed; try: pip install apache-tvm-ffi"
    elif toolchain.torch is None:
        return "binding torch: the installed torch brings no C++ headers; install it from PyPI"
    elif toolchain.python_include is None:
        return "binding torch: Python's own headers are missing; install them (apt-get install python3-dev)"
    cuda = toolchain.cuda if record.requires_cuda else None
    return _why_wrong_architecture(solution, cuda, capabilities) if cuda else None


def _why_wrong_architecture(
    solution: Solution, cuda: CudaToolkit, capabilities: Sequence[tuple[int, int]]
) -> str | None:
    try:
        chosen = chosen_targets(check_flags(solution.spec.compile_options, [cuda.home]).cuda_cflags)
    except BuildFailure:
        return None  # the build reports the error of its flags
    unfit = [one for one in capabilities if chosen and not any(runs_on(name, one) for name in chosen)]
    there = " and ".join(f"sm_{major}{minor}" for major, minor in unfit)
    return f"it is compiled for {', '.join(chosen)} alone; the GPU here is {there}" if unfit else None


def chosen_targets(flags: Iterable[str]) -> list[str]:
    """Return the targets that a solution's own nvcc flags name ("sm_90a", "compute_80"); empty without such flags.

    `-arch=sm_80` alone makes machine code and PTX, which the driver compiles for newer GPUs. So this flag counts as
    both targets.
    """
    targets: list[str] = []
    for flag in flags:
        name, _, value = flag.partition("=")
        if name in ("-gencode", "--generate-code"):
            targets += [result[0] for result in NAMED.finditer(value.partition("code=")[2])]
        elif name in ("-arch", "--gpu-architecture") and NAMED.fullmatch(value):
            targets += [value, value.replace("sm_", "compute_")]
    return list(dict.fromkeys(targets))


def runs_on(target: str, capability: tuple[int, int]) -> bool:
    """Return whether code for a target runs on a GPU of this compute capability."""
    result = NAMED.fullmatch(target)
    if result is None:
        return True
    kind, number, suffix = result.groups()
    compiled = int(number[:-1]), int(number[-1])
    if suffix == "a":
        return compiled == capability
    return compiled <= capability and (compiled[0] == capability[0] or (kind != "sm" and not suffix))


def toolkit_includes(cuda: CudaToolkit, packages: Sequence[Path]) -> list[Path]:
    """Return the folders of the toolkit's headers. If the toolkit lacks a library, add the header folders of NVIDIA's
    pip packages."""
    has_all = all(is_in(library.header, cuda.includes) for library in LIBRARIES.values())
    return cuda.includes if has_all else [*cuda.includes, *package_includes(packages)]


def package_includes(packages: Iterable[Path]) -> list[Path]:
    """Return the folders of the headers of NVIDIA's pip packages."""
    return [package / "include" for package in packages if (package / "include").is_dir()]


def is_in(header: str, folders: Iterable[Path]) -> bool:
    """Return whether one of the folders has this header."""
    return any((folder / header).is_file() for folder in folders)


def find_lacked(output: str, version: tuple[int, int]) -> tuple[str, str] | None:
    """Return the toolkit's header or library that a failed step did not find, with a message. If there is none, return
    None.

    A source can print the same words, so the caller must check whether the header is really missing.

    Args:
        output: the step's output.
        version: the toolkit's version.
    """
    result = next((result for pattern in LACKS if (result := pattern.search(output))), None)
    for name, library in LIBRARIES.items() if result else ():
        if result and (result[1] in (name, f"{name}Lt") or re.fullmatch(library.headers, result[1])):
            pip = f"nvidia-{library.package}{PIP_SUFFIX.get(version[0], '')}"
            what = f"{result[1]} of the CUDA toolkit's {name} is not installed"
            return result[1], f"{what}; try: pip install {pip}"
    return None


def cutlass_includes() -> list[Path]:
    """Return the folders of CUTLASS's headers: from $CUTLASS_PATH, else nvidia-cutlass, else FlashInfer's copy."""
    homes = [Path(named)] if (named := os.environ.get("CUTLASS_PATH")) else []
    for package, inner in (("cutlass_library", "source"), ("flashinfer", "data/cutlass")):
        folder = find_package(package)
        homes += [folder / inner] if folder is not None else []
    for home in homes:
        if (home / "include" / "cutlass" / "cutlass.h").is_file():
            return [folder for folder in (home / "include", home / "tools" / "util" / "include") if folder.is_dir()]
    return []


def wants_cutlass(dependencies: Iterable[str]) -> bool:
    """Return whether the dependencies of a compiled solution name CUTLASS."""
    parsed = map(_parse, dependencies)
    return any(requirement is not None and canonicalize_name(requirement.name) in CUTLASS for requirement in parsed)


def find_missing(dependencies: Iterable[str], toolchain: Toolchain, *, is_compiled: bool) -> list[str]:
    """Return a line for each dependency that is not met: the installed version, and what to install."""
    lines: list[str] = []
    for requirement in map(_parse, dependencies):
        if requirement is None or (requirement.marker is not None and not requirement.marker.evaluate()):
            continue
        name = canonicalize_name(requirement.name)
        header = LIBRARIES[name].header if name in LIBRARIES else FURTHER_HEADERS.get(name)
        if name in COMPILERS or (is_compiled and name == "ninja"):
            continue
        there: str | None
        if name == "python":
            there, remedy = platform.python_version(), "run it with that Python"
        elif name in TOOLKIT:
            there = ".".join(map(str, toolchain.cuda.version)) if toolchain.cuda else None
            remedy = "install the CUDA toolkit, or set CUDA_HOME to it"
        elif is_compiled and name in CUTLASS:
            there = "" if cutlass_includes() else None
            remedy = "pip install nvidia-cutlass, or set CUTLASS_PATH to its sources"
        elif is_compiled and header is not None:
            own = toolchain.cuda.includes if toolchain.cuda else []
            there = "" if is_in(header, [*own, *package_includes(toolchain.nvidia_packages)]) else None
            remedy = "it comes with the CUDA toolkit, or with NVIDIA's pip packages"
        else:
            distribution = DISTRIBUTIONS.get(name, name)
            there = "" if name == "ninja" and shutil.which(name) else installed_version(distribution)
            remedy = f"pip install '{distribution}{requirement.specifier}'"
        if there is None:
            lines.append(f"it needs {requirement}, which is not installed; try: {remedy}")
        elif not _fits(requirement, there):
            lines.append(f"it needs {requirement}, and {there} is installed; try: {remedy}")
    return lines


def _parse(text: str) -> Requirement | None:
    try:
        return Requirement(text.strip())
    except InvalidRequirement:
        return None


def _fits(requirement: Requirement, version: str) -> bool:
    try:
        return version == "" or requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        return True


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed package; "" if it has no version; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "" if is_installed(MODULES.get(distribution, distribution.replace("-", "_"))) else None
