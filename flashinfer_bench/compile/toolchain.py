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
from typing import Final, Literal

CXX_NAMES: Final = ("g++", "c++", "clang++")
DRIVER_FOLDERS: Final = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
"""Folders that may have the driver's libcuda.so if the toolkit has no stub of it."""
OF_PACKAGES: Final = ("include", "lib", "bin")
"""Folders of NVIDIA's pip packages."""
MODULE: Final = "solution"
"""Name of the library of a solution and, with torch's binding, of the extension module."""


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
    def includes(self) -> list[Path]:
        """Return the folders of its headers."""
        include = self.home / "include"
        return [folder for folder in (include, include / "cccl") if folder.is_dir()]

    def library_folders(self) -> list[Path]:
        """Return the folders of its libraries that exist, then the possible folders of the driver's library."""
        own = [self.home / "lib64", self.home / "lib", self.home / "lib64" / "stubs"]
        return [folder for folder in (*own, *map(Path, DRIVER_FOLDERS)) if folder.is_dir()]


@dataclass(frozen=True)
class Binding:
    """One way to make a library callable from Python, with the installed package that it needs."""

    kind: Literal["tvm-ffi", "torch"]
    home: Path
    """Folder of the package."""
    version: str
    """Version of the package."""
    includes: tuple[Path, ...]
    """Folders of the package's headers."""
    macros: tuple[str, ...]
    libraries: tuple[str, ...]
    exports: str
    """Symbol that the library exports; {0} stands for the entry function."""
    lacks: str
    """The change that the author must make if the symbol is missing."""
    main_header: str
    """The header that solutions with this binding include."""
    cuda_libraries: tuple[str, ...] = ()
    """Further libraries of solutions in CUDA."""
    standard: int = 17
    """The C++ standard that the headers need."""
    nvcc_macros: tuple[str, ...] = ()
    gcc_flags: tuple[str, ...] = ()
    """Flags that make g++ faster; no other compiler gets them."""


@dataclass(frozen=True)
class Toolchain:
    """Everything that a compiled solution may be built with; None for each part that is not installed."""

    cxx: Compiler | None
    cuda: CudaToolkit | None
    tvm_ffi: Binding | None
    torch: Binding | None
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
        torch=find_torch(find_package("torch")),
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


def find_tvm_ffi() -> Binding | None:
    """Return the binding of apache-tvm-ffi."""
    home = find_package("tvm_ffi")
    if home is None or not (home / "include" / "tvm" / "ffi" / "function.h").is_file():
        return None
    return Binding(
        kind="tvm-ffi",
        home=home,
        version=_version("apache-tvm-ffi"),
        includes=(home / "include", home / "3rdparty" / "dlpack" / "include"),
        macros=("-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1",),  # tells the worker the number of arguments
        libraries=("-ltvm_ffi",),
        exports="__tvm_ffi_{0}",
        lacks="no function {0!r} is exported; export it with TVM_FFI_DLL_EXPORT_TYPED_FUNC({0}, your_function)",
        main_header="tvm/ffi/tvm_ffi.h",
    )


def find_torch(home: Path | None) -> Binding | None:
    """Return the binding of the torch in a folder, with the C++ standard and the ABI that it needs."""
    if home is None or not (home / "include" / "torch" / "extension.h").is_file():
        return None
    settings = home / "share" / "cmake" / "Torch" / "TorchConfig.cmake"  # names the ABI, up to about torch 2.6
    loader = home / "utils" / "cpp_extension.py"
    asked = re.search(r"-std=c\+\+(\d+)", loader.read_text(encoding="utf-8")) if loader.is_file() else None
    has_old_abi = settings.is_file() and b"_GLIBCXX_USE_CXX11_ABI=0" in settings.read_bytes()
    # The CUDA headers in a CPU build of torch include a header that the build lacks. The last macro skips the include.
    has_cuda = (home / "lib" / "libc10_cuda.so").is_file()
    no_cuda = () if has_cuda else ("-DC10_CUDA_NO_CMAKE_CONFIGURE_FILE",)
    return Binding(
        kind="torch",
        home=home,
        version=_version("torch"),
        includes=(home / "include", home / "include" / "torch" / "csrc" / "api" / "include"),
        macros=(
            f"-DTORCH_EXTENSION_NAME={MODULE}",
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(not has_old_abi)}",
            *no_cuda,
        ),
        libraries=("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python"),
        cuda_libraries=("-lc10_cuda", "-ltorch_cuda") if has_cuda else (),
        exports=f"PyInit_{MODULE}",
        lacks="no module is defined; bind with PYBIND11_MODULE(TORCH_EXTENSION_NAME, m)",
        main_header="torch/extension.h",
        standard=int(asked[1]) if asked else 17,
        # The same macros as in torch's own extension builder, which existing solutions expect.
        nvcc_macros=tuple(
            f"-D__CUDA_NO_{name}__"
            for name in ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
        ),
        # Without the first flag, g++ optimises all virtual functions of torch's headers before it drops them. Without
        # the second, g++ collects garbage more often, which frees little memory.
        gcc_flags=("-fno-devirtualize", "--param=ggc-min-expand=200"),
    )


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
