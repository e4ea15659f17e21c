"""Libraries of the CUDA toolkit that a machine may lack though it has nvcc: their headers, and the packages with them.

A solution is not blamed for a missing one. The compiler's or linker's own output tells what is missing (`find_lacked`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from flashinfer_bench.compile.toolchain import CudaToolkit


class ToolkitLibrary(NamedTuple):
    """A library of the toolkit."""

    name: str
    header: str
    """A header that it always has."""
    headers: str
    """Pattern of all its headers, as they are included."""
    pip: str
    """NVIDIA's package on PyPI; {} is "-cu12" for CUDA 12, and nothing from CUDA 13 on."""
    apt: str
    """NVIDIA's package for Debian and Ubuntu; {} is the toolkit's version, such as "-12-8"."""


LIBRARIES: Final = (
    ToolkitLibrary("cublas", "cublas_v2.h", r"cublas(_v2|_api|Lt|Xt)?\.h", "nvidia-cublas{}", "libcublas-dev{}"),
    ToolkitLibrary("cusparse", "cusparse.h", r"cusparse(_v2)?\.h", "nvidia-cusparse{}", "libcusparse-dev{}"),
    ToolkitLibrary(
        "cusolver", "cusolverDn.h", r"cusolver(Dn|_common|Sp|Rf|Mg)\.h", "nvidia-cusolver{}", "libcusolver-dev{}"
    ),
    ToolkitLibrary("curand", "curand.h", r"curand(_kernel)?\.h", "nvidia-curand{}", "libcurand-dev{}"),
    ToolkitLibrary("cufft", "cufft.h", r"cufft(Xt|w)?\.h", "nvidia-cufft{}", "libcufft-dev{}"),
    ToolkitLibrary("nvrtc", "nvrtc.h", r"nvrtc\.h", "nvidia-cuda-nvrtc{}", "cuda-nvrtc-dev{}"),
    ToolkitLibrary("nvJitLink", "nvJitLink.h", r"nvJitLink\.h", "nvidia-nvjitlink{}", "libnvjitlink-dev{}"),
    ToolkitLibrary("cccl", "cub/cub.cuh", r"(cub|thrust)/.+", "nvidia-cuda-cccl{}", "cuda-cccl{}"),
    ToolkitLibrary("nvtx", "nvtx3/nvToolsExt.h", r"(nvtx3/)?nvToolsExt\.h", "nvidia-nvtx{}", "cuda-nvtx{}"),
)
PIP_SUFFIX: Final = {11: "-cu11", 12: "-cu12"}
LACKS: Final = (
    re.compile(r"fatal error: ([\w./+\-]+): No such file"),
    re.compile(r"(?:cannot|could not) open source file \"([\w./+\-]+)\""),
    re.compile(r"^\S*ld(?:\.\w+)?: cannot find -l(\w+)", re.MULTILINE),
)
"""How g++, nvcc and ld report a file that they lack."""


def toolkit_includes(cuda: CudaToolkit, packages: Sequence[Path]) -> list[Path]:
    """Return the folders of the toolkit's headers; if it lacks a library, with those of NVIDIA's pip packages."""
    own = [folder for folder in (cuda.include, cuda.include / "cccl") if folder.is_dir()]
    if all(is_in(library.header, own) for library in LIBRARIES):
        return own
    return [*own, *(package / "include" for package in packages if (package / "include").is_dir())]


def is_in(header: str, folders: Iterable[Path]) -> bool:
    """Tell whether a header lies in one of some folders."""
    return any((folder / header).is_file() for folder in folders)


def describe_missing(name: str, version: tuple[int, int]) -> str | None:
    """Say that a header or library is missing here, and which package has it; None if it is none of the toolkit's.

    Args:
        name: a header as it is included, or a library's name without `lib`.
        version: the toolkit's.
    """
    for library in LIBRARIES:
        if name in (library.name, f"{library.name}Lt") or re.fullmatch(library.headers, name):
            pip = library.pip.format(PIP_SUFFIX.get(version[0], ""))
            apt = library.apt.format("-{}-{}".format(*version))
            what = f"{name} of the CUDA toolkit's {library.name} is not installed"
            return f"{what}; try: pip install {pip}, or apt-get install {apt}"
    return None


def find_lacked(output: str, version: tuple[int, int]) -> tuple[str, str] | None:
    """Return the header or library of the toolkit that a failed step did not find, and what to say of it; or None.

    A source can have the same words printed. The caller has to check whether the header is really missing.
    """
    for pattern in LACKS:
        found = pattern.search(output)
        if found and (words := describe_missing(found[1], version)):
            return found[1], words
    return None
