"""Libraries of the CUDA toolkit that a machine may lack though it has nvcc: their headers, and the packages with them.

A CUDA solution that needs one is not built here, and not blamed. What is missing is read off its sources first, and
off the compiler's output where that showed nothing. In doubt it is compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from flashinfer_bench.compile.toolchain import CudaToolkit, Toolchain


@dataclass(frozen=True)
class ToolkitLibrary:
    """A library of the toolkit."""

    name: str
    headers: tuple[str, ...]
    """The first one is always there; one that ends in "/" stands for all below it."""
    pip: str
    """NVIDIA's package on PyPI; {} is "-cu12" for CUDA 12, and nothing from CUDA 13 on."""
    apt: str
    """NVIDIA's package for Debian and Ubuntu; {} is the toolkit's version, such as "-12-8"."""


LIBRARIES: Final = (
    ToolkitLibrary(
        "cublas",
        ("cublas_v2.h", "cublas.h", "cublas_api.h", "cublasLt.h", "cublasXt.h"),
        "nvidia-cublas{}",
        "libcublas-dev{}",
    ),
    ToolkitLibrary("cusparse", ("cusparse.h", "cusparse_v2.h"), "nvidia-cusparse{}", "libcusparse-dev{}"),
    ToolkitLibrary(
        "cusolver",
        ("cusolverDn.h", "cusolver_common.h", "cusolverSp.h", "cusolverRf.h", "cusolverMg.h"),
        "nvidia-cusolver{}",
        "libcusolver-dev{}",
    ),
    ToolkitLibrary("curand", ("curand.h", "curand_kernel.h"), "nvidia-curand{}", "libcurand-dev{}"),
    ToolkitLibrary("cufft", ("cufft.h", "cufftXt.h", "cufftw.h"), "nvidia-cufft{}", "libcufft-dev{}"),
    ToolkitLibrary("nvrtc", ("nvrtc.h",), "nvidia-cuda-nvrtc{}", "cuda-nvrtc-dev{}"),
    ToolkitLibrary("nvJitLink", ("nvJitLink.h",), "nvidia-nvjitlink{}", "libnvjitlink-dev{}"),
    ToolkitLibrary("cccl", ("cub/cub.cuh", "cub/", "thrust/"), "nvidia-cuda-cccl{}", "cuda-cccl{}"),
    ToolkitLibrary("nvtx", ("nvtx3/nvToolsExt.h", "nvToolsExt.h"), "nvidia-nvtx{}", "cuda-nvtx{}"),
)
PIP_SUFFIX: Final = {11: "-cu11", 12: "-cu12"}
FOLLOWED: Final = ("ATen/cuda/", "c10/cuda/")
"""torch's headers that are read for what they include: these need the toolkit's libraries."""
MOST_FOLLOWED: Final = 64
"""So many of torch's headers are read at most."""
DIRECTIVE: Final = re.compile(r"^[ \t]*#[ \t]*(\w+)[ \t]*(.*)$", re.MULTILINE)
COMMENT: Final = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
NAMED: Final = re.compile(r'[<"]([^>"\n]+)[>"]')
LACKS: Final = (
    re.compile(r"fatal error: ([\w./+\-]+): No such file"),
    re.compile(r"(?:cannot|could not) open source file \"([\w./+\-]+)\""),
    re.compile(r"^\S*ld(?:\.\w+)?: cannot find -l(\w+)", re.MULTILINE),
)
"""How g++, nvcc and ld say that they lack a file."""


def toolkit_includes(cuda: CudaToolkit, packages: Sequence[Path]) -> list[Path]:
    """Return the folders of the toolkit's headers, with those of NVIDIA's pip packages where it lacks a library."""
    own = [folder for folder in (cuda.include, cuda.include / "cccl") if folder.is_dir()]
    if all(is_in(library.headers[0], own) for library in LIBRARIES):
        return own
    return [*own, *(package / "include" for package in packages if (package / "include").is_dir())]


def find_missing_headers(sources: Mapping[str, str], toolchain: Toolchain) -> list[str]:
    """Return a line for each library of the toolkit that a CUDA solution needs on any machine and that is not here.

    Args:
        sources: path → text. Of torch's headers that they include those are read, too, which use the toolkit.
        toolchain: what this machine has.
    """
    cuda = toolchain.cuda
    if cuda is None:
        return []
    folders = toolkit_includes(cuda, toolchain.nvidia_packages)
    if all(is_in(library.headers[0], folders) for library in LIBRARIES):
        return []
    torch = toolchain.torch.includes() if toolchain.torch is not None else []
    wanted = {name for text in sources.values() for name in read_includes(text)}
    followed: set[str] = set()
    while left := sorted(name for name in wanted - followed if name.startswith(FOLLOWED))[:MOST_FOLLOWED]:
        if len(followed) > MOST_FOLLOWED:
            break
        followed.update(left)
        paths = (folder / name for name in left for folder in torch)
        texts = (path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file())
        wanted.update(name for text in texts for name in read_includes(text, begins_with_guard=True))
    of_toolkit = {name: library for name in sorted(wanted) if (library := find_library(name)) is not None}
    missing = [name for name in of_toolkit if not is_in(name, folders) and not is_among(name, sources)]
    lacking = {of_toolkit[name].name: name for name in missing}
    return [line for name in lacking.values() if (line := describe_missing(name, cuda.version)) is not None]


def read_includes(text: str, *, begins_with_guard: bool = False) -> Iterator[str]:
    """Yield the headers that a source includes outside of `#if`; a guard around the whole file is no condition.

    Args:
        text: the source.
        begins_with_guard: its first directive is a guard whatever it says, as in torch's headers.
    """
    conditions: list[bool] = []
    guard = ""
    for number, (word, rest) in enumerate(DIRECTIVE.findall(COMMENT.sub(" ", text))):
        if word == "define" and guard and rest.split()[:1] == [guard]:
            conditions[-1] = False
        guard = rest.strip() if word == "ifndef" else ""
        if word in ("if", "ifdef", "ifndef"):
            conditions.append(number > 0 or not begins_with_guard)
        elif word == "endif" and conditions:
            conditions.pop()
        elif word == "include" and not any(conditions) and (found := NAMED.match(rest)) and _stays_inside(found[1]):
            yield found[1]


def _stays_inside(header: str) -> bool:
    """Tell whether a header lies below the folder that it is looked for in: a source may name any path."""
    path = PurePosixPath(header)
    return not path.is_absolute() and ".." not in path.parts


def is_in(header: str, folders: Iterable[Path]) -> bool:
    """Tell whether a header lies in one of some folders."""
    return any((folder / header).is_file() for folder in folders)


def is_among(header: str, paths: Iterable[str]) -> bool:
    """Tell whether a header may be one of a solution's own files, in whatever folder."""
    parts = PurePosixPath(header).parts
    return any(PurePosixPath(path).parts[-len(parts) :] == parts for path in paths)


def find_library(name: str) -> ToolkitLibrary | None:
    """Return the toolkit's library with a header as it is included, or of a name as the linker has it."""
    for library in LIBRARIES:
        below = tuple(header for header in library.headers if header.endswith("/"))
        if name in (library.name, f"{library.name}Lt", *library.headers) or name.startswith(below):
            return library
    return None


def describe_missing(name: str, version: tuple[int, int]) -> str | None:
    """Say that a header or library is missing here, and which package has it; None where it is none of the toolkit's.

    Args:
        name: a header as it is included, or a library's name without `lib`.
        version: the toolkit's.
    """
    library = find_library(name)
    if library is None:
        return None
    pip = library.pip.format(PIP_SUFFIX.get(version[0], ""))
    apt = library.apt.format("-{}-{}".format(*version))
    what = f"{name} of the CUDA toolkit's {library.name} is not installed"
    return f"{what}; try: pip install {pip}, or apt-get install {apt}"


def find_lacked(output: str) -> str | None:
    """Return the header or library of the toolkit that a failed step did not find; None where it lacked none.

    The source can have the same words printed: whoever asks has to see whether it is really missing.
    """
    found = (pattern.search(output) for pattern in LACKS)
    return next((one[1] for one in found if one is not None and find_library(one[1]) is not None), None)
