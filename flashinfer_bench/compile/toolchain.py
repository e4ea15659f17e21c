"""Finds this machine's toolchain: compilers, the CUDA toolkit, headers and libraries of the bindings.

It only reads files. It starts no compiler and imports nothing. So a run that finds all its artifacts in the cache pays
only for a few `stat` calls.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

CXX_NAMES: Final = ("g++", "c++", "clang++")
DRIVER_FOLDERS: Final = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
"""Folders that may have the driver's libcuda.so if the toolkit has no stub of it."""
OF_PACKAGES: Final = ("include", "lib", "bin")
"""Folders of NVIDIA's pip packages."""
TORCH_FOLDERS: Final = ("include", "include/torch/csrc/api/include")
OLDEST_TORCH_STANDARD: Final = 17
"""The C++ standard for torch's headers if its own extension builder names none."""


@dataclass(frozen=True)
class Compiler:
    """One compiler on disk."""

    path: Path
    identity: str
    """Changes when the compiler is replaced: a digest of its real path, size and time."""

    def files(self) -> list[Path]:
        """Return its files: the compiler itself and, if it lies in a `bin`, the folders beside it."""
        real = self.path.resolve()
        if real.parent.name != "bin":
            return [self.path, real]
        prefix = real.parents[1]
        own = [prefix / name for name in ("bin", "lib", "lib64", "libexec", "include")]
        return [self.path, *own, *prefix.glob("*-linux-gnu*")]


@dataclass(frozen=True)
class CudaToolkit:
    """nvcc with its headers and libraries."""

    home: Path
    nvcc: Compiler
    version: tuple[int, int]

    @property
    def include(self) -> Path:
        """Return the folder of its headers."""
        return self.home / "include"

    def library_folders(self) -> list[Path]:
        """Return the folders of its libraries that exist, then the possible folders of the driver's library."""
        own = [self.home / "lib64", self.home / "lib", self.home / "lib64" / "stubs"]
        return [folder for folder in (*own, *map(Path, DRIVER_FOLDERS)) if folder.is_dir()]


@dataclass(frozen=True)
class BindingFiles:
    """The files of the package that a binding needs: apache-tvm-ffi, or torch."""

    home: Path
    version: str
    folders: tuple[str, ...]
    """Folders of its headers, below `home`."""
    standard: int = 17
    """The C++ standard that its headers need."""
    has_new_abi: bool = True
    """Whether the package was compiled with libstdc++'s C++11 ABI."""
    has_cuda: bool = False

    def includes(self) -> list[Path]:
        """Return the folders of its headers."""
        return [self.home / folder for folder in self.folders]


@dataclass(frozen=True)
class Toolchain:
    """Everything that a compiled solution may be built with; None for each part that is not installed."""

    cxx: Compiler | None
    cuda: CudaToolkit | None
    tvm_ffi: BindingFiles | None
    torch: BindingFiles | None
    python_include: Path | None
    """The folder with Python.h."""
    nvidia_packages: tuple[Path, ...] = ()
    """Folders of NVIDIA's pip packages. torch requires these packages, which have cuBLAS, cuDNN and others."""


def find_toolchain(environment: Mapping[str, str] = os.environ) -> Toolchain:
    """Search for everything. $CXX and $CUDA_HOME come before the path."""
    include = Path(sysconfig.get_paths()["include"])
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
    packages = [folder for root in roots if root.is_dir() for folder in sorted(root.iterdir())]
    return Toolchain(
        cxx=find_cxx(environment),
        cuda=find_cuda(environment),
        tvm_ffi=find_tvm_ffi(),
        torch=find_torch(),
        python_include=include if (include / "Python.h").is_file() else None,
        nvidia_packages=tuple(one for one in packages if any((one / name).is_dir() for name in OF_PACKAGES)),
    )


def find_cxx(environment: Mapping[str, str]) -> Compiler | None:
    """Return the C++ compiler: $CXX, else the first of g++, c++ and clang++ on the path."""
    names = [environment["CXX"]] if environment.get("CXX") else list(CXX_NAMES)
    result = next((path for name in names if (path := shutil.which(name, path=environment.get("PATH")))), None)
    return _compiler(Path(result)) if result else None


def find_cuda(environment: Mapping[str, str]) -> CudaToolkit | None:
    """Return the CUDA toolkit: $CUDA_HOME or $CUDA_PATH, else the toolkit of the nvcc on the path, else
    /usr/local/cuda."""
    for home in _cuda_homes(environment):
        nvcc, header = home / "bin" / "nvcc", home / "include" / "cuda.h"
        if nvcc.is_file() and header.is_file():
            result = re.search(rb"^#define\s+CUDA_VERSION\s+(\d+)", header.read_bytes(), re.MULTILINE)
            number = int(result[1]) if result else 0
            return CudaToolkit(home, _compiler(nvcc), (number // 1000, number % 1000 // 10))
    return None


def _cuda_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    given = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if given:
        yield Path(given)
        return
    on_path = shutil.which("nvcc", path=environment.get("PATH"))
    if on_path:
        yield Path(on_path).resolve().parents[1]
    yield Path("/usr/local/cuda")  # an nvcc on the path may be a script that starts this nvcc


def _compiler(path: Path) -> Compiler:
    real = path.resolve()
    stat = real.stat()
    text = f"{real}|{stat.st_size}|{stat.st_mtime_ns}"
    return Compiler(path, hashlib.sha256(text.encode()).hexdigest()[:16])


def find_package(name: str) -> Path | None:
    """Return the folder of a Python package without importing it."""
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) if folders else None


def find_tvm_ffi() -> BindingFiles | None:
    """Return apache-tvm-ffi's files."""
    home = find_package("tvm_ffi")
    if home is None or not (home / "include" / "tvm" / "ffi" / "function.h").is_file():
        return None
    return BindingFiles(home, _version("apache-tvm-ffi"), ("include", "3rdparty/dlpack/include"))


def find_torch() -> BindingFiles | None:
    """Return torch's files, and the C++ standard and ABI that they need."""
    home = find_package("torch")
    if home is None or not (home / "include" / "torch" / "extension.h").is_file():
        return None
    settings = home / "share" / "cmake" / "Torch" / "TorchConfig.cmake"  # names the ABI, up to about torch 2.6
    loader = home / "utils" / "cpp_extension.py"
    asked = re.search(r"-std=c\+\+(\d+)", loader.read_text(encoding="utf-8")) if loader.is_file() else None
    return BindingFiles(
        home=home,
        version=_version("torch"),
        folders=TORCH_FOLDERS,
        standard=int(asked[1]) if asked else OLDEST_TORCH_STANDARD,
        has_new_abi=not (settings.is_file() and b"_GLIBCXX_USE_CXX11_ABI=0" in settings.read_bytes()),
        has_cuda=(home / "lib" / "libc10_cuda.so").is_file(),
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
